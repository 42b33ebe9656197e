"""The ten gradients of docs/gradients_in_cpp.md: the same in both languages, right to second order, and as long as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import Sample, testing

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "docs" / "gradients_in_cpp.md"

X, Y = np.array([[0.5, 1.5, 2.0], [0.7, 1.1, 0.3]]), np.array([[1.2], [0.6]])

FORWARDS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "my_multiply": (lambda x, y: x * y, (X, Y)),
    "my_divide": (lambda x, y: x / y, (X, Y)),
    "my_exp": (np.exp, (X,)),
    "my_log": (np.log, (X,)),
    "my_tanh": (np.tanh, (X,)),
    "my_softplus": (lambda x: np.logaddexp(0.0, x), (X,)),
    "my_hypot": (np.hypot, (X, Y)),
    "my_leaky": (lambda x, slope=0.1: np.where(x > 0, x, x * slope), (X - 1.0,)),
    "my_norm": (lambda x: np.sqrt(np.sum(x * x)), (X,)),
    "my_matmul": (lambda x, y: x @ y, (X, X.T)),
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


PYTHON = next(block for block in blocks("python") if "my_multiply" in block)
CPP = next(block for block in blocks("cpp") if "my_multiply" in block)


@pytest.fixture(scope="module", autouse=True)
def ten() -> Iterator[None]:
    """The ops, with the page's gradients in both languages."""
    for name, (forward, inputs) in FORWARDS.items():

        def wrapped(x: Any, y: Any, f: Any = forward) -> Any:
            return f(x, y)

        mixgrad.op(
            forward if len(inputs) == 1 else wrapped,
            name=name,
            inputs=("x", "y")[: len(inputs)],
            broadcasts=name in ("my_multiply", "my_divide", "my_hypot"),
            samples=lambda inputs=inputs: [Sample(*inputs)],
        )
    exec(PYTHON, {"mixgrad": mixgrad, "mnp": mnp})  # noqa: S102  the page's own code
    mixgrad.cpp.load_inline(CPP, name="ten")
    yield
    for name in FORWARDS:
        mixgrad.unregister(name)


@pytest.mark.parametrize("language", ["native", "python"])
@pytest.mark.parametrize("name", FORWARDS)
def test_against_differences_to_second_order(name: str, language: Any) -> None:
    with mixgrad.prefer(language, name):
        testing.check_gradient(
            lambda *args: mnp.sum(mnp.sin(mixgrad.registry[name](*args))), *FORWARDS[name][1], order=2
        )
    assert f"runs   {language}" in explained(name, language)


def explained(name: str, language: Any) -> str:
    with mixgrad.prefer(language, name):
        return mixgrad.registry.explain(name)


@pytest.mark.parametrize("name", FORWARDS)
def test_native_against_python(name: str) -> None:
    testing.check_parity(name)


@pytest.mark.parametrize("name", FORWARDS)
def test_the_lines_are_counted_right(name: str) -> None:
    python = re.search(rf'@mixgrad\.register_gradient\("{name}"\)\n.*?(?=\n\n|\Z)', PYTHON, re.DOTALL)
    cpp = re.search(rf"MIXGRAD_REGISTER_GRADIENT\({name}\).*?\n}}", CPP, re.DOTALL)
    assert python is not None
    assert cpp is not None
    counts = [len(text.group().strip().splitlines()) for text in (python, cpp)]
    assert abs(counts[0] - counts[1]) <= 1
    assert f"| {name} | {counts[0]} | {counts[1]} |" in PAGE.read_text()


def test_the_whole_op_of_the_page() -> None:
    mixgrad.cpp.load_inline(next(block for block in blocks("cpp") if "NewOp" in block), name="page")
    try:
        testing.check_gradient(mixgrad.ops.softsign, X - 1.0, order=2)
        assert mixgrad.ops.softsign(1.0) == 0.5
    finally:
        mixgrad.unregister("softsign")
