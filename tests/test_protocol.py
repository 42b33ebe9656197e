# SPDX-License-Identifier: Apache-2.0
"""NumPy's own functions on Arrays, Array's methods, and the namespace mixgrad.numpy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import errors, ops, protocol
from mixgrad.testing import check_gradient

A = np.array
X = A([[0.5, -1.5, 2.5], [1.0, 3.0, -2.0]])


def value_of(f: Any, x: Any = X) -> Any:
    """What f gives for an Array that is being recorded."""
    return mixgrad.vjp(f, x)[0]


def refusal(f: Any, x: Any = X) -> str:
    with pytest.raises(errors.UnsupportedError) as caught:
        mixgrad.vjp(f, x)
    return str(caught.value)


class TestUfuncs:
    def test_numpy_and_mixgrad_are_the_same(self) -> None:
        for f in (lambda x: np.sin(x) * np.float64(2), lambda x: mnp.sin(x) * 2, lambda x: np.multiply(2, np.sin(x))):
            np.testing.assert_allclose(mixgrad.grad(lambda x, f=f: f(x).sum())(X), 2 * np.cos(X))

    @pytest.mark.parametrize("left", [2, 2.0, np.float64(2), np.float32(2), np.int64(2), A(2.0), A([2.0, 2.0, 2.0])])
    def test_whatever_is_on_the_left(self, left: Any) -> None:
        functions: tuple[Any, ...] = (
            lambda x: left * x,
            lambda x: left - -x - left + x,
            lambda x: left / (1 / x),
            lambda x: np.multiply(left, x),
        )
        for f in functions:
            with mixgrad.Tape() as tape:
                assert isinstance(f(tape.watch(X)), mixgrad.Array)
            np.testing.assert_allclose(mixgrad.grad(lambda x, f=f: f(x).sum())(X), np.full((2, 3), 2.0))

    def test_comparisons_are_plain(self) -> None:
        def f(x: Any) -> Any:
            for mask in (x > 0, np.greater(x, 0), np.less(0, x), np.isfinite(x), x == X):
                assert type(mask) is np.ndarray
                assert mask.dtype == bool
            return x

        value_of(f)

    def test_methods(self) -> None:
        for f, g in (
            (np.add.reduce, lambda x: np.sum(x, axis=0)),
            (lambda x: np.add.reduce(x, axis=None), np.sum),
            (lambda x: np.multiply.reduce(x, axis=1, keepdims=True), lambda x: np.prod(x, axis=1, keepdims=True)),
            (lambda x: np.maximum.reduce(x, 1), lambda x: np.max(x, axis=1)),
            (np.add.accumulate, lambda x: np.cumsum(x, axis=0)),
            (lambda x: np.multiply.outer(x, x[0]), lambda x: x[..., None] * x[0]),
            (lambda x: np.subtract.outer([1.0, 2.0], x), lambda x: A([1.0, 2.0])[:, None, None] - x),
        ):
            np.testing.assert_array_equal(value_of(f), g(X), strict=True)
            check_gradient(f, X)

    def test_divmod(self) -> None:
        quotient, rest = value_of(lambda x: divmod(x, 2.0))
        np.testing.assert_array_equal([quotient, rest], divmod(X, 2.0))
        np.testing.assert_array_equal(mixgrad.grad(lambda x: divmod(7.0, x)[1].sum())(A([2.0, 3.0])), [-3.0, -2.0])

    def test_methods_that_are_refused(self) -> None:
        assert "np.add.at does not take an Array. It changes its argument in place" in refusal(
            lambda x: np.add.at(x, 0, 1.0)
        )
        # Called directly: NumPy itself loses a reference to the argument when a reduction is refused.
        for ufunc, method, *more in ((np.add, "reduceat", [0, 1]), (np.hypot, "reduce")):
            text = refusal(lambda x, u=ufunc, m=method, more=more: protocol.array_ufunc(x, u, m, x, *more))
            assert f"np.{ufunc.__name__}.{method} does not take an Array" in text

    def test_out(self) -> None:
        buffer = np.zeros((2, 3))
        text = refusal(lambda x: np.add(x, 1.0, out=buffer))
        assert "np.add: out= cannot be used with an Array" in text
        assert "y = np.add(...)" in text
        assert not buffer.any()

        def augmented(x: Any) -> Any:
            total = np.zeros((2, 3))
            total += x
            return total

        assert "a = a + x" in refusal(augmented)
        np.testing.assert_array_equal(value_of(lambda x: np.add(x, 1.0, out=None)), X + 1)

    def test_where(self) -> None:
        text = refusal(lambda x: np.log(x, where=X > 0))
        assert "mixgrad.numpy.where(condition, np.log(...), other)" in text
        np.testing.assert_array_equal(value_of(lambda x: np.square(x, where=True)), X**2)

    def test_dtype(self) -> None:
        assert ".astype" in refusal(lambda x: np.add(x, 1.0, dtype=np.float32))

    def test_a_ufunc_that_is_not_known(self) -> None:
        ufunc = np.frompyfunc(lambda x: x, 1, 1)
        text = refusal(ufunc)
        assert "register_op" in text
        assert "np.asarray(x)" in text


class TestFunctions:
    @pytest.mark.parametrize(
        ("f", "want"),
        [
            (np.shape, (2, 3)),
            (np.ndim, 2),
            (np.size, 6),
            (lambda x: np.size(x, 1), 3),
            (lambda x: np.result_type(x, np.float32), np.float64),
            (np.iscomplexobj, False),
            (np.isrealobj, True),
            (lambda x: np.array_equal(x, X), True),
            (lambda x: np.allclose(X, x + 1e-12), True),
            (lambda x: np.isclose(x, X).tolist(), [[True] * 3] * 2),
            (lambda x: np.zeros_like(x).tolist(), [[0.0] * 3] * 2),
            (lambda x: np.ones_like(x, dtype=int).tolist(), [[1] * 3] * 2),
            (lambda x: np.empty_like(x).shape, (2, 3)),
            (lambda x: np.full_like(x, 7.0).tolist(), [[7.0] * 3] * 2),
            (lambda x: np.argsort(x).tolist(), [[1, 0, 2], [2, 0, 1]]),
            (np.argmax, 4),
            (lambda x: [a.tolist() for a in np.nonzero(x > 1)], [[0, 1], [2, 1]]),
            (lambda x: np.argwhere(x).shape, (6, 2)),
            (lambda x: np.searchsorted(x[0], 2.0), 2),
            (lambda x: np.isreal(x).all(), True),
            (np.count_nonzero, 6),
            (lambda x: np.any(x > 2), True),
            (lambda x: np.array_str(x[0]), "[ 0.5 -1.5  2.5]"),
            (len, 2),
        ],
    )
    def test_questions_are_answered_plainly(self, f: Any, want: Any) -> None:
        answers: list[Any] = []

        def ask(x: Any) -> Any:
            answers.append(f(x))
            return x

        value_of(ask)
        assert not isinstance(answers[0], mixgrad.Array)
        assert answers[0] == want

    def test_questions_inside_a_gradient_that_is_differentiated(self) -> None:
        def gradient(op: Any, g: Any) -> Any:
            (x,) = op.inputs
            assert np.shape(g) == (2,)
            return g * np.cos(x) * np.ones_like(x) if np.allclose(x, x) else None

        with mixgrad.override_gradient("sin", gradient):
            h = mixgrad.hessian(lambda x: np.sin(x).sum())(A([0.5, 1.0]))
        np.testing.assert_allclose(h, np.diag(-np.sin([0.5, 1.0])))

    def test_what_is_not_known_is_refused(self) -> None:
        text = refusal(lambda x: np.interp(x, [0.0, 1.0], [0.0, 1.0]))
        assert text.startswith("np.interp met an Array, and mixgrad has no gradient for it")
        assert "register_op" in text
        assert "np.asarray(x)" in text
        assert "np.linalg.svd met an Array" in refusal(np.linalg.svd)

    def test_what_is_in_place_is_refused(self) -> None:
        for f in (
            lambda x: np.copyto(x, 1.0),
            lambda x: np.copyto(np.zeros((2, 3)), x),
            lambda x: np.put(x, 0, 1.0),
            lambda x: np.fill_diagonal(x, 1.0),
            lambda x: np.putmask(x, x > 0, 0.0),
        ):
            assert "in place" in refusal(f)

    def test_out_of_a_function(self) -> None:
        assert "np.sum: out= cannot" in refusal(lambda x: np.sum(x, axis=0, out=np.zeros(3)))
        np.testing.assert_array_equal(value_of(lambda x: np.sum(x, axis=0, out=None)), X.sum(axis=0))

    def test_classes_with_a_protocol_of_their_own_are_asked(self) -> None:
        class Other:
            def __array_ufunc__(self, *args: Any, **kwargs: Any) -> str:
                return "theirs"

            def __array_function__(self, *args: Any, **kwargs: Any) -> str:
                return "theirs"

        answers: list[Any] = []

        def ask(x: Any) -> Any:
            other: Any = Other()
            answers.extend([np.add(x, other), np.concatenate([x, other])])
            return x

        value_of(ask)
        assert answers == ["theirs", "theirs"]

    def test_masked_arrays_and_matrices_are_plain(self) -> None:
        class Mine(np.ndarray):
            pass

        mine = np.ones(3).view(Mine)
        np.testing.assert_array_equal(mixgrad.grad(lambda x: (x * mine).sum())(A([1.0, 2.0, 3.0])), np.ones(3))


class TestMethods:
    @pytest.mark.parametrize(
        "f",
        [
            lambda x: x.sum(),
            lambda x: x.sum(axis=0),
            lambda x: x.sum(1, keepdims=True),
            lambda x: x.mean(axis=-1),
            lambda x: x.var(ddof=1),
            lambda x: x.std(axis=0),
            lambda x: x.prod(),
            lambda x: x.max(axis=1),
            lambda x: x.min(),
            lambda x: x.cumsum(axis=1),
            lambda x: x.cumprod(0),
            lambda x: x.reshape(3, 2),
            lambda x: x.reshape((3, -1)),
            lambda x: x.reshape(-1),
            lambda x: x.reshape(3, 2, order="F"),
            lambda x: x.transpose(),
            lambda x: x.transpose(1, 0),
            lambda x: x.transpose((1, 0)),
            lambda x: x.T,
            lambda x: x.mT,
            lambda x: x.ravel(),
            lambda x: x.flatten("F"),
            lambda x: x.swapaxes(0, 1),
            lambda x: x[None].squeeze(),
            lambda x: x.repeat(2, axis=0),
            lambda x: x.take([0, 0], axis=1),
            lambda x: x.diagonal(1),
            lambda x: x.trace(),
            lambda x: x.dot(x.T),
            lambda x: x @ x.T,
            lambda x: x.clip(-1.0, 2.0),
            lambda x: x.clip(max=2.0),
            lambda x: x.conj(),
            lambda x: x.real,
            lambda x: x.astype(np.float64),
            lambda x: x.copy(),
            abs,
        ],
    )
    def test_they_are_numpys(self, f: Any) -> None:
        np.testing.assert_array_equal(value_of(f), f(X), strict=True)
        check_gradient(f, X, order=2)

    def test_those_without_a_gradient_are_plain(self) -> None:
        def f(x: Any) -> Any:
            assert (x.argmax(), x.argmin(axis=1).tolist(), bool(x.any()), bool(x.all())) == (4, [1, 2], True, True)
            assert [a.tolist() for a in x.nonzero()] == [a.tolist() for a in X.nonzero()]
            assert x[0].searchsorted(1.0) == X[0].searchsorted(1.0)
            assert (x.dtype, x.shape, x.ndim, x.size, x.itemsize, x.nbytes) == (np.float64, (2, 3), 2, 6, 8, 48)
            return x

        value_of(f)

    def test_complex_parts(self) -> None:
        z = A([1.0 + 2.0j, -1.0j])
        np.testing.assert_allclose(mixgrad.grad(lambda z: (z.real * z.imag).sum())(z), z.imag - 1j * z.real)

    @pytest.mark.parametrize("name", ["sort", "partition", "fill", "put", "resize"])
    def test_those_that_change_in_place_are_refused(self, name: str) -> None:
        text = refusal(lambda x: getattr(x, name)(0))
        assert text.startswith(f"Array.{name} would change the Array in place")

    def test_assignment_is_refused(self) -> None:
        def f(x: Any) -> Any:
            x[0] = 1.0

        assert "mixgrad.numpy.where" in refusal(f)

    def test_they_have_names_and_texts(self) -> None:
        method = vars(mixgrad.Array)["sum"]
        assert method.__name__ == "sum"
        assert "numpy.sum" in method.__doc__


class TestNamespace:
    def test_ops_are_called_directly(self) -> None:
        assert mnp.add is ops.add
        assert mnp.abs is mnp.absolute is ops.absolute
        assert mnp.concatenate is ops.concatenate
        assert mnp.linalg.det is ops.det

    def test_everything_else_is_numpys(self) -> None:
        for name in (
            "pi",
            "float32",
            "newaxis",
            "arange",
            "random",
            "fft",
            "errstate",
            "ndarray",
            "interp",
            "zeros_like",
        ):
            assert getattr(mnp, name) is getattr(np, name)
        assert mnp.linalg.LinAlgError is np.linalg.LinAlgError
        assert set(dir(np)) == set(dir(mnp))
        with pytest.raises(AttributeError, match="nonsense"):
            mnp.nonsense  # noqa: B018

    def test_on_plain_arrays_it_is_numpy(self) -> None:
        functions: tuple[Any, ...] = (
            lambda m: m.vstack([X, X]),
            lambda m: m.einsum("ij->j", X),
            lambda m: m.sort(X, axis=0),
            lambda m: m.linalg.norm(X, 1),
            lambda m: m.split(X, 3, 1),
            lambda m: m.pad(X, 1, "maximum"),
            lambda m: m.median(X),
            lambda m: m.atleast_3d([1.0, 2.0]),
            lambda m: m.sum([[1, 2], [3, 4]], axis=0),
            lambda m: m.reshape([1, 2, 3, 4], (2, 2)),
            lambda m: m.array([X, X]),
        )
        for f in functions:
            found, want = f(mnp), f(np)
            assert type(found) is type(want)
            np.testing.assert_array_equal(found, want)

    def test_star_import(self) -> None:
        code = (
            "from mixgrad.numpy import *; import mixgrad, numpy; assert sin is mixgrad.ops.sin; assert pi == numpy.pi"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_names_follow_the_registry(self) -> None:
        assert mnp.interp is np.interp

        @mixgrad.register_op("interp_for_test", numpy=np.interp, inputs=("x",))
        def interp(x: Any, xp: Any, fp: Any) -> Any:
            return np.interp(x, xp, fp)

        try:
            assert mnp.interp is interp
            assert np.shape(value_of(lambda x: np.interp(x, [0.0, 1.0], [0.0, 1.0]))) == X.shape
        finally:
            mixgrad.unregister("interp_for_test")
        assert mnp.interp is np.interp
        assert "np.interp met an Array" in refusal(lambda x: np.interp(x, [0.0, 1.0], [0.0, 1.0]))

    def test_implements(self) -> None:
        @protocol.implements(np.trapezoid)
        def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
            assert (x, axis) == (None, -1)
            return (y[..., 1:] + y[..., :-1]).sum(axis=-1) * dx / 2

        try:
            np.testing.assert_allclose(value_of(np.trapezoid), np.trapezoid(X))
            check_gradient(lambda x: mnp.trapezoid(x, dx=0.5), X)
        finally:
            protocol.no_longer(trapezoid)
        assert "np.trapezoid met an Array" in refusal(np.trapezoid)

    def test_ops_by_name(self) -> None:
        assert ops.mul is ops.multiply
        assert "concatenate" in dir(ops)
        with pytest.raises(AttributeError, match="no op or family of ops named 'nonsense'"):
            ops.nonsense  # noqa: B018

    def test_it_can_be_imported_first(self) -> None:
        code = "import mixgrad.numpy as mnp; import mixgrad; assert mnp.sin is mixgrad.ops.sin"
        subprocess.run([sys.executable, "-c", code], check=True)


def test_another_op_over_a_ufunc_does_not_take_it() -> None:
    x = np.array([0.5, 1.0])
    mixgrad.op(np.exp, name="test_own_exp").gradient(lambda g, x, out: g * 0.0)
    try:
        np.testing.assert_array_equal(mixgrad.grad(lambda x: np.sum(np.exp(x)))(x), np.exp(x))
        np.testing.assert_array_equal(mixgrad.grad(lambda x: np.sum(mixgrad.ops.test_own_exp(x)))(x), [0.0, 0.0])
    finally:
        mixgrad.unregister("test_own_exp")
    np.testing.assert_array_equal(mixgrad.grad(lambda x: np.sum(np.exp(x)))(x), np.exp(x))


def test_an_op_that_takes_a_function_gives_it_back() -> None:
    x = np.array([0.5, 1.0])
    mixgrad.op(np.exp, name="test_taking_exp", numpy=np.exp).gradient(lambda g, x, out: g * 0.0)
    np.testing.assert_array_equal(mixgrad.grad(lambda x: np.sum(np.exp(x)))(x), [0.0, 0.0])
    mixgrad.unregister("test_taking_exp")
    np.testing.assert_array_equal(mixgrad.grad(lambda x: np.sum(np.exp(x)))(x), np.exp(x))


def test_an_op_that_is_replaced_hands_its_functions_on() -> None:
    first = mixgrad.op(lambda x: x + 1.0, name="test_replaced", numpy=np.nanmin)
    first.gradient(lambda g, x, out: g)
    second = mixgrad.op(lambda x: x * 2.0, name="test_replaced", replace=True)
    second.gradient(lambda g, x, out: g * 2.0)
    try:
        assert mixgrad.grad(np.nanmin)(3.0) == 2.0
    finally:
        mixgrad.unregister("test_replaced")
    assert not protocol.is_taken(np.nanmin)
