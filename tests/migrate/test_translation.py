# SPDX-License-Identifier: Apache-2.0
"""Python gradients in C++: what is written, that it agrees with Python, and what cannot be translated."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import Sample, _core, registry
from mixgrad.errors import MissingGradientError
from mixgrad.migrate import scaffold, translate
from mixgrad.migrate.translation import prove_parity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAMILIES = ("math", "reduce", "shape")


def block(op: Any, **options: Any) -> str:
    """The C++ without the line that says where it comes from."""
    return translate(op, **options)[0].partition("\n")[2]


@pytest.fixture
def example() -> Iterator[Any]:
    """A function that makes ops for the length of a test."""
    made: list[Any] = []

    def make(forward: Any, gradient: Any = None, **options: Any) -> Any:
        op = mixgrad.op(forward, name=f"translated_{len(made)}", **options)
        if gradient is not None:
            op.gradient()(gradient)
        made.append(op)
        return op

    yield make
    for op in made:
        mixgrad.unregister(op.name)


def pair(*shape: int) -> Any:
    return lambda: [Sample(np.ones(shape), 2.0 * np.ones(shape))]


def test_names_are_kept(example: Any) -> None:
    scale = 1.75

    def gradient(op: Any, g: Any) -> Any:
        x, y = op.inputs
        slope = mnp.exp(-x) * scale
        both = slope + slope * y
        return g * both, g * slope

    op = example(lambda x, y: x * y, gradient, broadcasts=True, samples=pair(3))
    assert block(op) == (
        "static constexpr double scale = 1.75;\n"
        "MIXGRAD_REGISTER_GRADIENT(translated_0) {\n"
        "  auto [x, y] = op.inputs<2>();\n"
        "  const Array slope = exp(-x) * scale;\n"
        "  const Array both = slope + slope * y;\n"
        "  return {g * both, g * slope};\n"
        "}"
    )


def test_helpers_are_followed_and_brackets_kept(example: Any) -> None:
    def half(value: Any) -> Any:
        return value / 2

    def gradient(op: Any, g: Any) -> Any:
        x, y = op.inputs
        return g - (x - half(y + 1)), (g * (x > y)) / (x / y)

    op = example(lambda x, y: x * y, gradient, broadcasts=True, samples=pair(3))
    assert "  return {g - (x - (y + 1.0) / 2.0), g * (x > y) / (x / y)};" in block(op)


def test_shapes_and_attributes(example: Any) -> None:
    def forward(x: Any, axis: int = 0, rate: float = 0.5) -> Any:
        return rate * np.sum(x, axis=axis)

    def gradient(op: Any, g: Any) -> Any:
        (x,) = op.inputs
        rate, axis = op.attributes["rate"], op.attributes["axis"]
        return mnp.broadcast_to(mnp.expand_dims(rate * g, axis), x.shape) / (2 * x.shape[0])

    op = example(
        forward, gradient, samples=lambda: [Sample(np.ones((2, 3))), Sample(np.ones((4, 3)), axis=1, rate=0.25)]
    )
    text = block(op)
    assert 'call("expand_dims", {op.attribute<double>("rate") * g}, {op.pass("axis")})' in text
    assert "const auto shape = op.input_shape();" in text
    assert "/ (2.0 * static_cast<double>(shape[0]))" in text
    assert prove_parity({op.name: "#include <mixgrad/mixgrad.hpp>\nusing namespace mixgrad;\n"}, [])[op.name][
        0
    ].startswith("not built")


def test_element_wise_gradients_are_fused() -> None:
    assert block(registry["multiply"], fuse=True) == (
        'static const Elementwise multiply_{"multiply",\n'
        "    [](auto g, auto, auto y, auto) { return g * y; },\n"
        "    [](auto g, auto x, auto, auto) { return g * x; }};"
    )
    assert "MIXGRAD_REGISTER_GRADIENT(sum)" in block(registry["sum"], fuse=True)


def test_attributes_that_decide_are_guards() -> None:
    text, gaps = translate(registry["mean"])
    assert '  if (!op.is("where", true)) return decline;\n' in text
    assert gaps == ["it declines where where is not True: Python does something else there"]


@pytest.mark.parametrize(
    ("gradient", "reason"),
    [
        (
            lambda op, g: g if op.inputs[0] > 0 else -g,
            "the truth of numbers that are known at run time only: data-dependent control flow",
        ),
        (lambda op, g: g * float(op.inputs[0]), "float() of numbers that are known at run time only"),
        (lambda op, g: g * np.asarray(op.inputs[0]), "`asarray` is no op"),
        (lambda op, g: mnp.linalg.solve(g, op.inputs[0]), "LinAlgError"),
        (lambda op, g: g * np.array([1.0, 2.0]), "a constant ndarray"),
        (lambda op, g: np.ones(3), "it returns array([1., 1., 1.]), which does not depend on g"),
    ],
    ids=["if", "float", "asarray", "fails", "constant", "no-g"],
)
def test_gaps(example: Any, gradient: Any, reason: str) -> None:
    op = example(lambda x: 2.0 * x, gradient, samples=lambda: [Sample(np.array(1.5))])
    text, gaps = translate(op)
    assert len(gaps) == 1
    assert f"the gradient of x: {reason}" in gaps[0]
    assert f"  // GAP: the gradient of x: {reason}" in text
    assert "  if (op.needs_gradient(0)) return decline;" in text


def test_control_flow_by_the_number_of_axes_is_a_guard(example: Any) -> None:
    def gradient(op: Any, g: Any) -> Any:
        (x,) = op.inputs
        return g * 2.0 if x.ndim == 1 else g + g

    op = example(lambda x: 2.0 * x, gradient, samples=lambda: [Sample(np.ones(2)), Sample(np.ones((2, 2)))])
    text, gaps = translate(op)
    assert gaps == ["it declines where x does not have 2 axes: Python does something else there"]
    assert "  if (op.input_shape().size() != 2) return decline;\n  return g + g;" in text


def test_what_cannot_be_begun(example: Any) -> None:
    with pytest.raises(ValueError, match="has no sample calls to trace"):
        translate(example(lambda x: 2.0 * x, lambda op, g: 2.0 * g))
    with pytest.raises(MissingGradientError, match="has no Python gradient"):
        translate(example(lambda x: 2.0 * x, samples=lambda: [Sample(1.0)]))
    assert translate(registry["concatenate"])[1] == ["an op on a list of arrays"]


def ops_of(family: str) -> list[Any]:
    module = sys.modules[f"mixgrad.ops.{family}"]
    ops = {value for value in vars(module).values() if isinstance(value, _core.Op) and value.differentiable}
    return [op for op in ops if op.name in vars(module) and _core.python_gradient(op) and op.samples is not None]


def is_whole(gaps: list[str]) -> bool:
    """Whether nothing but an attribute makes it decline."""
    return all(gap.startswith("it declines where") for gap in gaps)


def test_most_of_mixgrad_s_own_gradients_are_translated_and_agree() -> None:
    """At least 80 % of the element-wise ones, reductions and shapes; all that are translated pass parity."""
    ops = {op.name: op for family in FAMILIES for op in ops_of(family)}
    made = {name: translate(op) for name, op in ops.items()}
    whole = {name: text for name, (text, gaps) in made.items() if is_whole(gaps)}
    assert len(ops) > 90
    assert len(whole) >= 0.8 * len(ops)
    head = "#include <mixgrad/mixgrad.hpp>\n\nusing namespace mixgrad;\n\n"
    verdicts = prove_parity({name: f"{head}{text}\n" for name, text in whole.items()})
    assert {name: failure for name, (failure, _) in verdicts.items() if failure} == {}


def test_all_fused_gradients_agree() -> None:
    head = "#include <mixgrad/mixgrad.hpp>\n\nusing namespace mixgrad;\n\n"
    fused = {op.name: translate(op, fuse=True)[0] for op in ops_of("math")}
    fused = {name: f"{head}{text}\n" for name, text in fused.items() if "Elementwise" in text}
    assert len(fused) >= 50
    assert {name: failure for name, (failure, _) in prove_parity(fused).items() if failure} == {}


def test_files_and_their_proof(tmp_path: Path) -> None:
    made = scaffold("tanh", tmp_path / "native")
    assert made.proved
    assert [path.name for path in made.files] == ["tanh.cpp", "test_tanh.py"]
    assert made.files[0].read_text() == made.source
    assert str(made).startswith("op 'tanh': translated\n  wrote ")
    assert "  built; parity proved: float32 (" in str(made)
    assert set(made.parity) == {"float32", "float64", "complex64", "complex128"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(made.files[1])],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout
    with pytest.raises(FileExistsError, match=r"tanh\.cpp exists; nothing was written"):
        scaffold("tanh", tmp_path / "native", prove=False)


def test_the_command_on_ops_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np, mixgrad, mixgrad.numpy as mnp\n"
        "from mixgrad import Sample\n"
        "@mixgrad.op(name='swish', saves='x', samples=lambda: [Sample(np.linspace(-2, 2, 5))])\n"
        "def swish(x):\n"
        "    return x / (1 + np.exp(-x))\n"
        "@swish.gradient()\n"
        "def swish_gradient(op, g):\n"
        "    (x,) = op.inputs\n"
        "    s = 1 / (1 + mnp.exp(-x))\n"
        "    return g * (s + x * s * (1 - s))\n"
    )
    command = [sys.executable, "-m", "mixgrad", "scaffold", "swish"]
    done = subprocess.run(
        [*command, "--module", "mine", "--into", "native"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "op 'swish': translated\n  wrote native/swish.cpp\n  wrote native/test_swish.py\n  built; parity proved: float32 ("
    )
    assert "const Array s = 1.0 / (1.0 + exp(-x));" in (tmp_path / "native" / "swish.cpp").read_text()
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "native/test_swish.py"]
    done = subprocess.run(test, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout
    unknown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert unknown.returncode == 2
    assert "swish" in unknown.stderr
