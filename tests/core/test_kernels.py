"""The loops over raw memory: values are NumPy's own to the bit, warnings are NumPy's own, threads change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import _core

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
SHAPES = ((), (1,), (3,), (100,), (9000,), (5, 7), (1, 7), (5, 1), (64, 3), (2, 3, 4), (0, 3), (20, 30, 5))
LAYOUTS: dict[str, Any] = {
    "as it is": lambda a: a,
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1] if a.ndim else a,
    "every second": lambda a: a[..., ::2] if a.ndim else a,
}


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.2, 0.9, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.uniform(0.2, 0.9, shape)
    return np.asarray(values, dtype)


def value(f: Any, *args: Any) -> Any:
    """f of an Array of the first argument, as plain NumPy."""
    with mixgrad.Tape() as tape:
        return np.asarray(f(tape.watch(args[0]), *args[1:]))


def same_bits(a: Any, b: Any) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["add", "subtract", "multiply", "divide", "exp", "log", "sin", "tanh", "sqrt", "maximum"]
)
def test_elementwise_bits(name: str, dtype: Any, layout: str) -> None:
    ufunc = getattr(np, name)
    for shape in SHAPES:
        x, y = (LAYOUTS[layout](numbers(shape, dtype, seed)) for seed in (0, 1))
        args = (x,) if ufunc.nin == 1 else (x, y)
        same_bits(value(getattr(mnp, name), *args), ufunc(*args))


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcasting(dtype: Any) -> None:
    for left, right in [
        ((3, 1), (1, 4)),
        ((4,), (3, 4)),
        ((), (2, 3)),
        ((2, 1, 3), (4, 1)),
        ((4, 0), (4, 1)),
        ((1,), ()),
    ]:
        x, y = numbers(left, dtype), numbers(right, dtype, 1)
        same_bits(value(mnp.multiply, x, y), x * y)
        same_bits(value(mnp.subtract, y, x), y - x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_reductions_bits(name: str, dtype: Any, layout: str) -> None:
    for shape in [s for s in SHAPES if 0 not in s]:
        x = LAYOUTS[layout](numbers(shape, dtype))
        for axis in [None, *range(x.ndim), tuple(range(x.ndim))]:
            for keepdims in (False, True):
                got = value(lambda x, a=axis, k=keepdims: getattr(mnp, name)(x, axis=a, keepdims=k), x)
                want = getattr(np, name)(x, axis=axis, keepdims=keepdims)
                if name == "mean" and np.dtype(dtype).kind == "c":
                    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype).eps)
                else:
                    same_bits(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_products(dtype: Any) -> None:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((3, 4), (4, 5)),
        ((1, 4), (4, 5)),
        ((64, 64), (64,)),
        ((64, 1), (1, 64)),
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 0), (0, 2)),
        ((0, 3), (3, 2)),
    ]
    tolerance = 64 * float(np.finfo(dtype).eps)
    for left, right in shapes:
        for change_left in LAYOUTS.values():
            a = change_left(numbers(left, dtype))
            b = numbers(right, dtype, 1)
            if a.shape[-1:] != b.shape[-2:][:1]:
                continue
            np.testing.assert_allclose(value(mnp.matmul, a, b), a @ b, rtol=tolerance)


def test_products_of_strided_and_broadcast_operands() -> None:
    w = numbers((6, 8), np.float64)
    for a in (w[::2, ::2], w[::-1], np.broadcast_to(w[0], (3, 8)), w.T):
        b = numbers((a.shape[1], 2), np.float64, 1)
        np.testing.assert_allclose(value(mnp.matmul, a, b), a @ b, rtol=1e-14)


def caught(f: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        f()
    return [str(w.message) for w in record]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("divide", (1.0, 0.0)),
        ("divide", (0.0, 0.0)),
        ("log", (0.0,)),
        ("log", (-1.0,)),
        ("sqrt", (-1.0,)),
        ("exp", (1000.0,)),
        ("multiply", (1e308, 1e308)),
        ("add", (1.0, 2.0)),
    ],
)
@pytest.mark.parametrize("n", [1, 300, 200_000])
def test_floating_point_warnings_are_numpys(name: str, args: tuple[float, ...], n: int) -> None:
    arrays = [np.full(n, a) for a in args]
    expected = caught(lambda: getattr(np, name)(*arrays))
    assert caught(lambda: value(getattr(mnp, name), *arrays)) == expected
    with np.errstate(all="ignore"):
        assert caught(lambda: value(getattr(mnp, name), *arrays)) == []
    if expected:
        with np.errstate(all="raise"), pytest.raises(FloatingPointError):
            value(getattr(mnp, name), *arrays)


def test_flags_of_before_are_not_reported() -> None:
    with np.errstate(all="ignore"):
        np.float64(1.0) / np.float64(0.0)
    assert caught(lambda: value(mnp.multiply, np.ones(3), 2.0)) == []


def test_gradients_report_no_floating_point_errors() -> None:
    assert caught(lambda: mixgrad.grad(mnp.sqrt)(0.0)) == []


def test_threads_change_nothing() -> None:
    x = numbers((700, 1000), np.float32)
    before = _core.thread_count()
    try:
        _core.set_thread_count(1)
        one = value(lambda x: mnp.tanh(x * x.T[:1000, :1].T + 1.0), x)
        gradient = mixgrad.grad(lambda x: mnp.sum(mnp.tanh(x * x)))(x)
        _core.set_thread_count(4)
        same_bits(value(lambda x: mnp.tanh(x * x.T[:1000, :1].T + 1.0), x), one)
        same_bits(mixgrad.grad(lambda x: mnp.sum(mnp.tanh(x * x)))(x), gradient)
    finally:
        _core.set_thread_count(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_threads_after_a_fork() -> None:
    program = (
        "import os, sys, numpy as np, mixgrad, mixgrad.numpy as mnp\n"
        "from mixgrad import _core\n"
        "_core.set_thread_count(3)\n"
        "x = np.ones(400_000)\n"
        "f = lambda: mixgrad.grad(lambda x: mnp.sum(mnp.exp(x)))(x)\n"
        "f()\n"
        "pid = os.fork()\n"
        "ok = bool(np.allclose(f(), np.e))\n"
        "if pid == 0: os._exit(0 if ok else 1)\n"
        "sys.exit(0 if ok and os.waitpid(pid, 0)[1] == 0 else 1)\n"
    )
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    assert subprocess.run([sys.executable, "-c", program], env=env, timeout=120, check=False).returncode == 0


def test_operands_in_odd_memory() -> None:
    x = numbers((5,), np.float64)
    swapped = x.astype(">f8")
    buffer = np.zeros(41, np.uint8)
    misaligned = buffer[1:].view(np.float64)
    misaligned[:] = x
    for odd in (swapped, misaligned):
        same_bits(value(mnp.multiply, x, odd), x * odd)
        np.testing.assert_array_equal(mixgrad.grad(lambda x, o=odd: mnp.sum(x * o))(x), x)
        np.testing.assert_array_equal(mixgrad.grad(lambda o: mnp.sum(o * x))(odd), x)


@pytest.mark.parametrize("constant", [np.arange(3), np.array([True, False, True]), np.float16(2.0), 3, True, 2.5, 1j])
@pytest.mark.parametrize("dtype", DTYPES)
def test_promotion_is_numpys(dtype: Any, constant: Any) -> None:
    x = numbers((3,), dtype)
    functions: list[Any] = [lambda x: x * constant, lambda x: constant + x, lambda x: x**constant]
    for f in functions:
        want = f(x)
        got = value(f, x)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=8 * float(np.finfo(dtype).eps))
