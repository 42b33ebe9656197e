"""The peers: each runs a workload's program. Those that are not installed are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from workloads import Workload


class ByHand:
    """Plain NumPy: the floor."""

    name = "numpy by hand"

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def forward(self) -> Any:
        return self.workload.forward(self.workload.parameters, self.workload.constants)

    def backward(self, state: Any) -> list[Any]:
        return self.workload.backward(state[1])


class Mixgrad:
    name = "mixgrad"
    prefer: str | None = None

    def __init__(self, workload: Workload) -> None:
        import mixgrad as mg

        self.mg, self.workload = mg, workload
        if "benchmark_sin" not in mg.registry:

            @mg.register_op("benchmark_sin", saves="x")
            def custom_sin(x: Any) -> Any:
                return np.sin(x)

            @mg.register_gradient("benchmark_sin")
            def gradient(op: Any, g: Any) -> Any:
                (x,) = op.inputs
                return g * np.cos(x)

        class F:
            sin, tanh, sum = mg.numpy.sin, mg.numpy.tanh, mg.numpy.sum
            relu, cross_entropy = mg.nn.relu, mg.nn.softmax_cross_entropy
            custom_sin = mg.registry["benchmark_sin"]

        self.F = F

    def forward(self) -> Any:
        with self.mg.Tape() as tape:
            sources = [tape.watch(p) for p in self.workload.parameters]
            loss = self.workload.function(self.F, sources, self.workload.constants)
        return tape, loss, sources

    def backward(self, state: Any) -> list[Any]:
        tape, loss, sources = state
        return list(tape.gradient(loss, sources))

    def value_and_grad(self) -> Any:
        (x,) = self.workload.parameters
        return self.mg.value_and_grad(lambda x: self.workload.function(self.F, [x], []))(x)


class MixgradPython(Mixgrad):
    """mixgrad with Python gradients for every op, on the same native forwards."""

    name = "mixgrad, python gradients"

    def backward(self, state: Any) -> list[Any]:
        with self.mg.prefer("python"):
            return super().backward(state)


class Torch:
    name = "torch"

    def __init__(self, workload: Workload) -> None:
        import torch

        self.torch, self.workload = torch, workload
        self.parameters = [torch.tensor(p, requires_grad=True) for p in workload.parameters]
        self.constants = [torch.tensor(c) for c in workload.constants]

        class CustomSin(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return torch.sin(x)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                (x,) = ctx.saved_tensors
                return g * torch.cos(x)

        class F:
            sin, tanh, sum, relu = torch.sin, torch.tanh, torch.sum, torch.relu
            cross_entropy = torch.nn.functional.cross_entropy
            custom_sin = CustomSin.apply

        self.F = F

    def forward(self) -> Any:
        return self.workload.function(self.F, self.parameters, self.constants)

    def backward(self, state: Any) -> list[Any]:
        return [g.numpy() for g in self.torch.autograd.grad(state, self.parameters)]

    def value_and_grad(self) -> Any:
        x = self.torch.from_numpy(self.workload.parameters[0]).requires_grad_()
        value = self.workload.function(self.F, [x], [])
        return float(value), self.torch.autograd.grad(value, [x])[0].numpy()


class Autograd:
    name = "autograd"

    def __init__(self, workload: Workload) -> None:
        import autograd
        import autograd.numpy as anp
        from autograd.core import make_vjp
        from autograd.extend import defvjp, primitive

        self.autograd, self.make_vjp, self.workload = autograd, make_vjp, workload
        custom = primitive(np.sin)
        defvjp(custom, lambda ans, x: lambda g: g * anp.cos(x))

        def cross_entropy(z: Any, labels: Any) -> Any:
            z = z - anp.max(z, axis=1, keepdims=True)
            rows = np.arange(len(labels))
            return anp.mean(anp.log(anp.sum(anp.exp(z), axis=1)) - z[rows, labels])

        class F:
            sin, tanh, sum = anp.sin, anp.tanh, anp.sum
            relu = staticmethod(lambda x: anp.maximum(x, 0))
            custom_sin = staticmethod(custom)

        F.cross_entropy = staticmethod(cross_entropy)  # type: ignore[attr-defined]
        self.F = F
        self.constants = workload.constants

    def forward(self) -> Any:
        from autograd.builtins import tuple as traced

        return self.make_vjp(
            lambda p: self.workload.function(self.F, list(p), self.constants), traced(tuple(self.workload.parameters))
        )

    def backward(self, state: Any) -> list[Any]:
        vjp, value = state
        return list(vjp(np.ones_like(value)))

    def value_and_grad(self) -> Any:
        (x,) = self.workload.parameters
        return self.autograd.value_and_grad(lambda x: self.workload.function(self.F, [x], []))(x)


PEERS = (ByHand, Mixgrad, MixgradPython, Torch, Autograd)


def available() -> list[type[Any]]:
    """The peers that can be imported."""
    found = []
    for peer in PEERS:
        module = {"Torch": "torch", "Autograd": "autograd"}.get(peer.__name__)
        try:
            if module:
                __import__(module)
        except ImportError:
            continue
        found.append(peer)
    return found
