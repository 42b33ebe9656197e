# SPDX-License-Identifier: Apache-2.0
"""grad and its kin: what they return, of what, in any order, and what they refuse."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import optimize

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import errors
from mixgrad.testing import assert_no_leaks, check_gradient

X = np.array([0.3, -1.2, 2.0])


def cube_sum(x: Any) -> Any:
    return mnp.sum(x**3)


class TestGrad:
    def test_of_an_array(self) -> None:
        gradient = mixgrad.grad(cube_sum)(X)
        assert type(gradient) is np.ndarray
        np.testing.assert_allclose(gradient, 3 * X**2)

    def test_of_a_float_is_a_numpy_scalar(self) -> None:
        gradient = mixgrad.grad(lambda x: x * x)(3.0)
        assert type(gradient) is np.float64
        assert gradient == 6.0

    def test_of_a_0d_array_is_a_numpy_scalar(self) -> None:
        gradient = mixgrad.grad(lambda x: x * x)(np.array(3.0, np.float32))
        assert type(gradient) is np.float32
        assert gradient == 6.0

    def test_float32_with_a_python_float_stays_float32(self) -> None:
        gradient = mixgrad.grad(lambda x: mnp.sum(2.5 * x + 1.0))(np.ones(2, np.float32))
        assert gradient.dtype == np.float32

    def test_any_order(self) -> None:
        f: Any = lambda x: x**5
        for want in (5 * 2.0**4, 20 * 2.0**3, 60 * 2.0**2, 120 * 2.0, 120.0, 0.0):
            f = mixgrad.grad(f)
            assert f(2.0) == pytest.approx(want)

    def test_argnum(self) -> None:
        f: Any = lambda x, y, *, k=1.0: x * y**2 * k
        assert mixgrad.grad(f, 1)(2.0, 3.0) == 12.0
        assert mixgrad.grad(f, -1)(2.0, 3.0, k=10.0) == 120.0
        assert mixgrad.grad(f, (1, 0))(2.0, 3.0) == (12.0, 9.0)
        assert mixgrad.grad(f, (0,))(2.0, 3.0) == (9.0,)

    def test_one_element_is_one_number(self) -> None:
        np.testing.assert_array_equal(mixgrad.grad(lambda x: x * x)(np.array([3.0])), [6.0])

    def test_plain_numpy_code(self) -> None:
        np.testing.assert_allclose(mixgrad.grad(lambda x: np.sum(np.sin(x) * x))(X), np.sin(X) + X * np.cos(X))

    def test_the_result_is_the_callers_own(self) -> None:
        x = np.ones(3)
        gradient = mixgrad.grad(mnp.sum)(x)
        gradient += 1.0
        np.testing.assert_array_equal(x, np.ones(3))

    def test_the_same_source_as_two_arguments(self) -> None:
        assert mixgrad.grad(lambda x, y: x * y, (0, 1))(3.0, 3.0) == (3.0, 3.0)

    def test_name_and_documentation(self) -> None:
        gradient = mixgrad.grad(cube_sum)
        assert gradient.__name__ == "grad(cube_sum)"
        assert "cube_sum" in (gradient.__doc__ or "")

    def test_mixes_native_and_python(self) -> None:
        f: Any = lambda x: mnp.sum(mnp.sin(x) * mnp.exp(x) / (1.0 + x * x))
        want = mixgrad.hessian(f)(X)
        with mixgrad.prefer("python"):
            np.testing.assert_allclose(mixgrad.hessian(f)(X), want, rtol=1e-13)
        with mixgrad.prefer("python", "multiply", "divide"):
            np.testing.assert_allclose(mixgrad.hessian(f)(X), want, rtol=1e-13)


class TestValueAndGrad:
    def test_value_is_plain(self) -> None:
        value, gradient = mixgrad.value_and_grad(cube_sum)(X)
        assert type(value) is np.float64
        assert value == np.sum(X**3)
        np.testing.assert_allclose(gradient, 3 * X**2)

    def test_the_value_is_numpys_to_the_bit(self) -> None:
        f: Any = lambda x: np.sum(np.sin(x) * np.exp(x))
        assert mixgrad.value_and_grad(f)(X)[0] == f(X)

    def test_for_scipy(self) -> None:
        def rosenbrock(x: Any) -> Any:
            return mnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)

        x = np.linspace(-1.0, 1.0, 8)
        value, gradient = mixgrad.value_and_grad(rosenbrock)(x)
        assert value == pytest.approx(optimize.rosen(x), rel=1e-14)
        np.testing.assert_allclose(gradient, optimize.rosen_der(x), rtol=1e-12)
        np.testing.assert_allclose(mixgrad.hessian(rosenbrock)(x), optimize.rosen_hess(x), rtol=1e-12)
        v = np.cos(x)
        np.testing.assert_allclose(mixgrad.hvp(rosenbrock)(x, v), optimize.rosen_hess_prod(x, v), rtol=1e-12)
        found = optimize.minimize(
            mixgrad.value_and_grad(rosenbrock), x, jac=True, hessp=mixgrad.hvp(rosenbrock), method="Newton-CG"
        )
        np.testing.assert_allclose(found.x, np.ones(8), rtol=1e-3)

    def test_aux(self) -> None:
        def f(x: Any, scale: float) -> Any:
            y = x * scale
            return mnp.sum(y), {"y": y, "scale": scale}

        (value, aux), gradient = mixgrad.value_and_grad(f, has_aux=True)(X, 2.0)
        assert value == np.sum(2 * X)
        assert type(aux["y"]) is np.ndarray
        assert aux["y"].flags.writeable
        np.testing.assert_array_equal(aux["y"], 2 * X)
        assert aux["scale"] == 2.0
        np.testing.assert_array_equal(gradient, [2.0, 2.0, 2.0])
        gradient, aux = mixgrad.grad(f, has_aux=True)(X, 2.0)
        np.testing.assert_array_equal(gradient, [2.0, 2.0, 2.0])
        np.testing.assert_array_equal(aux["y"], 2 * X)

    def test_value_and_aux_are_recorded_by_an_outer_derivative(self) -> None:
        def outer(x: Any) -> Any:
            (value, aux), gradient = mixgrad.value_and_grad(lambda y: (y**2, y**3), has_aux=True)(x)
            return value + aux + gradient

        assert mixgrad.grad(outer)(2.0) == 4.0 + 12.0 + 2.0

    def test_aux_that_is_not_there(self) -> None:
        with pytest.raises(TypeError, match=r"\(value, aux\); it returned a Array"):
            mixgrad.value_and_grad(lambda x: x * x, has_aux=True)(1.0)


@dataclass(frozen=True)
class Dense:
    weight: Any
    bias: Any


class Pair(NamedTuple):
    first: Any
    second: Any


class TestContainers:
    def test_gradients_have_the_arguments_form(self) -> None:
        def loss(model: dict[str, Any], x: Any) -> Any:
            for layer in model["layers"]:
                x = mnp.tanh(layer.weight @ x + layer.bias)
            return mnp.sum(x) * model["scale"].first

        model = {
            "layers": [Dense(np.eye(3) * 0.5, np.zeros(3)), Dense(np.ones((2, 3)), np.zeros(2))],
            "scale": Pair(2.0, np.float32(1.0)),
        }
        gradient = mixgrad.grad(loss)(model, X)
        assert [type(layer) for layer in gradient["layers"]] == [Dense, Dense]
        assert gradient["layers"][1].weight.shape == (2, 3)
        assert type(gradient["scale"]) is Pair
        assert gradient["scale"].second == 0.0
        assert gradient["scale"].second.dtype == np.float32
        check_gradient(
            lambda w: loss({**model, "layers": [Dense(w, model["layers"][0].bias), model["layers"][1]]}, X), np.eye(3)
        )

    def test_both_a_container_and_an_array(self) -> None:
        gradients = mixgrad.grad(lambda a, b: a[0] * b + a[1], (0, 1))([2.0, 3.0], 5.0)
        assert gradients == ([5.0, 1.0], 2.0)

    def test_an_empty_container(self) -> None:
        assert mixgrad.grad(lambda a: 1.0)({}) == {}

    def test_jacobian_and_hessian(self) -> None:
        f: Any = lambda p: {"product": p["x"] * p["y"], "x": p["x"]}
        jacobian = mixgrad.jacobian(f)({"x": X, "y": 2.0})
        np.testing.assert_array_equal(jacobian["product"]["x"], 2 * np.eye(3))
        np.testing.assert_array_equal(jacobian["product"]["y"], X)
        np.testing.assert_array_equal(jacobian["x"]["y"], np.zeros(3))
        hessian = mixgrad.hessian(lambda p: mnp.sum(p[0] ** 2) * p[1])((X, 2.0))
        np.testing.assert_allclose(hessian[0][0], 4 * np.eye(3))
        np.testing.assert_allclose(hessian[0][1], 2 * X)
        np.testing.assert_allclose(hessian[1][0], 2 * X)
        assert hessian[1][1] == 0.0

    def test_vjp_and_jvp(self) -> None:
        f: Any = lambda p: [p["a"] * p["b"], p["a"]]
        value, pull = mixgrad.vjp(f, {"a": 2.0, "b": 3.0})
        assert value == [6.0, 2.0]
        assert pull([1.0, 10.0]) == {"a": 13.0, "b": 2.0}
        value, tangent = mixgrad.jvp(f, ({"a": 2.0, "b": 3.0},), ({"a": 1.0, "b": 10.0},))
        assert value == [6.0, 2.0]
        assert tangent == [23.0, 1.0]

    def test_hvp(self) -> None:
        product = mixgrad.hvp(lambda p: p["a"] ** 2 * p["b"])
        assert product({"a": 2.0, "b": 3.0}, {"a": 1.0, "b": 10.0}) == {"a": 6.0 + 40.0, "b": 4.0}

    def test_optree_is_imported_for_containers_only(self) -> None:
        program = (
            "import sys, numpy, mixgrad\n"
            "mixgrad.grad(lambda x: (x * x).sum())(numpy.ones(3)); mixgrad.vjp(numpy.sin, 1.0); mixgrad.hessian(numpy.sin)(1.0)\n"
            "assert 'optree' not in sys.modules\n"
            "mixgrad.grad(lambda x: x[0] * x[1])([1.0, 2.0])\n"
            "assert 'optree' in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True)


class TestConstantResults:
    """A value that depends on no source has gradient zero, of the source's shape and dtype."""

    @pytest.mark.parametrize("value", [1.0, 3, np.float32(2.0), np.ones(1)])
    def test_zeros(self, value: Any) -> None:
        gradient = mixgrad.grad(lambda x: value)(np.ones((2, 2), np.float32))
        np.testing.assert_array_equal(gradient, np.zeros((2, 2)))
        assert gradient.dtype == np.float32

    def test_of_one_argument_of_two(self) -> None:
        assert mixgrad.grad(lambda x, y: x * x, (0, 1))(2.0, 3.0) == (4.0, 0.0)

    def test_everywhere(self) -> None:
        f: Any = lambda x: np.ones(2)
        np.testing.assert_array_equal(mixgrad.jacobian(f)(X), np.zeros((2, 3)))
        np.testing.assert_array_equal(mixgrad.elementwise_grad(f)(X), np.zeros(3))
        value, pull = mixgrad.vjp(f, X)
        np.testing.assert_array_equal(pull(np.ones(2)), np.zeros(3))
        value, tangent = mixgrad.jvp(f, (X,), (X,))
        np.testing.assert_array_equal(value, np.ones(2))
        np.testing.assert_array_equal(tangent, np.zeros(2))
        np.testing.assert_array_equal(mixgrad.hvp(mnp.sum)(X, X), np.zeros(3))
        np.testing.assert_array_equal(mixgrad.hessian(mnp.sum)(X), np.zeros((3, 3)))

    def test_through_integers(self) -> None:
        np.testing.assert_array_equal(mixgrad.grad(np.argmax)(X), np.zeros(3))


class TestWrongTargets:
    def test_an_array(self) -> None:
        with pytest.raises(errors.TargetError, match=r"returned an array of shape \(3,\).*elementwise_grad.*jacobian"):
            mixgrad.grad(lambda x: x * x)(X)
        with pytest.raises(errors.TargetError, match="elementwise_grad"):
            mixgrad.grad(lambda x: np.ones(3))(X)

    def test_complex(self) -> None:
        for f in (lambda z: z, lambda z: z * z, lambda z: 2j):
            with pytest.raises(errors.TargetError, match=r"complex128.*holomorphic=True"):
                mixgrad.grad(f)(1j)
        with pytest.raises(errors.TargetError, match="complex128"):
            mixgrad.elementwise_grad(lambda z: z * z)(np.ones(2) + 1j)
        with pytest.raises(errors.TargetError, match="complex128"):
            mixgrad.jacobian(lambda x: x * 1j)(X)

    def test_no_number(self) -> None:
        with pytest.raises(errors.TargetError, match="returned None"):
            mixgrad.grad(lambda x: None)(1.0)
        with pytest.raises(errors.TargetError, match="has_aux=True"):
            mixgrad.grad(lambda x: (x * x, x))(1.0)
        with pytest.raises(errors.TargetError, match="returned a str"):
            mixgrad.grad(lambda x: "a")(1.0)


class TestWrongSources:
    @pytest.mark.parametrize("source", [3, True, np.int64(3), np.array([3, 4]), np.array([True]), "x"])
    def test_dtype(self, source: Any) -> None:
        with pytest.raises(TypeError):
            mixgrad.grad(lambda x: np.sum(x * 0.5))(source)

    def test_in_a_container(self) -> None:
        with pytest.raises(errors.UnsupportedError) as caught:
            mixgrad.grad(lambda p: p["w"])({"w": 1.0, "n": 3})
        notes = getattr(caught.value, "__notes__", None)
        assert notes is None or ("argument 0" in notes[0] and "['n']" in notes[0])

    def test_no_such_argument(self) -> None:
        for f in (mixgrad.grad(cube_sum, 1), mixgrad.grad(cube_sum, (0, 1)), mixgrad.jacobian(cube_sum, 1)):
            with pytest.raises(
                TypeError, match=r"\(cube_sum\) differentiates argument 1, but was called with 1 positional argument"
            ):
                f(X)
        with pytest.raises(TypeError, match="0 positional arguments"):
            mixgrad.grad(cube_sum)(x=X)

    def test_the_next_call_works(self) -> None:
        with pytest.raises(TypeError):
            mixgrad.grad(cube_sum)(3)
        np.testing.assert_allclose(mixgrad.grad(cube_sum)(X), 3 * X**2)


class TestComplex:
    def test_convention(self) -> None:
        assert mixgrad.grad(lambda z: mnp.real(z) ** 2 + 3.0 * mnp.imag(z))(2.0 + 5.0j) == 4.0 - 3.0j
        np.testing.assert_allclose(mixgrad.grad(mnp.abs)(3.0 + 4.0j), 0.6 - 0.8j)

    def test_holomorphic(self) -> None:
        z = 1.0 + 2.0j
        assert mixgrad.grad(lambda z: z**3, holomorphic=True)(z) == pytest.approx(3 * z**2)
        value, gradient = mixgrad.value_and_grad(mnp.exp, holomorphic=True)(z)
        assert value == pytest.approx(np.exp(z))
        assert gradient == pytest.approx(np.exp(z))
        f = mixgrad.grad(mixgrad.grad(lambda z: z**3, holomorphic=True), holomorphic=True)
        assert f(z) == pytest.approx(6 * z)
        w = np.array([1.0 + 1j, 2.0])
        np.testing.assert_allclose(mixgrad.jacobian(lambda z: z * z, holomorphic=True)(w), np.diag(2 * w))
        np.testing.assert_allclose(mixgrad.hessian(lambda z: mnp.sum(z**3), holomorphic=True)(w), np.diag(6 * w))

    def test_holomorphic_needs_complex_arguments(self) -> None:
        for transform in (mixgrad.grad, mixgrad.jacobian, mixgrad.hessian):
            with pytest.raises(errors.UnsupportedError, match="needs complex arguments"):
                transform(cube_sum, holomorphic=True)(X)

    def test_a_real_argument_on_the_way_through_complex(self) -> None:
        gradient = mixgrad.grad(lambda x: mnp.sum(mnp.abs(x * (1.0 + 2.0j)) ** 2))(X)
        assert gradient.dtype == np.float64
        np.testing.assert_allclose(gradient, 10 * X)

    def test_jvp_is_the_directional_derivative(self) -> None:
        z, v = np.array([1.0 + 2.0j, -1.0 + 0.5j]), np.array([0.3 - 1.0j, 2.0 + 1.0j])
        for f in (
            lambda z: z * z,
            mnp.abs,
            lambda z: mnp.conj(z) * z[::-1],
            lambda z: mnp.real(z) * mnp.exp(z),
        ):
            _, tangent = mixgrad.jvp(f, (z,), (v,))
            h = 1e-6
            np.testing.assert_allclose(tangent, (f(z + h * v) - f(z - h * v)) / (2 * h), rtol=1e-8, atol=1e-9)
        x, t = X, np.array([1.0, -2.0, 0.5])
        _, tangent = mixgrad.jvp(lambda x: mnp.exp(1j * x), (x,), (t,))
        np.testing.assert_allclose(tangent, 1j * np.exp(1j * x) * t)


class TestElementwise:
    def test_is_the_gradient_of_the_sum(self) -> None:
        np.testing.assert_allclose(mixgrad.elementwise_grad(np.sin)(X), np.cos(X))

    def test_repeatedly(self) -> None:
        f: Any = mnp.tanh
        for _ in range(3):
            f = mixgrad.elementwise_grad(f)
        t = np.tanh(X)
        np.testing.assert_allclose(f(X), -2 * (1 - t**2) * (1 - 3 * t**2))

    def test_argnum_and_several_outputs(self) -> None:
        np.testing.assert_array_equal(mixgrad.elementwise_grad(lambda x, y: (x * y, y), 1)(X, X), X + 1.0)


class TestVjp:
    def test_pull_may_be_called_repeatedly(self) -> None:
        value, pull = mixgrad.vjp(lambda x: x * x, X)
        np.testing.assert_array_equal(value, X * X)
        for scale in (1.0, 2.0):
            np.testing.assert_allclose(pull(np.full(3, scale)), 2 * X * scale)

    def test_several_arguments(self) -> None:
        value, pull = mixgrad.vjp(lambda x, y: x @ y, np.ones((2, 3)), X)
        assert value.shape == (2,)
        of_x, of_y = pull(np.array([1.0, 2.0]))
        np.testing.assert_array_equal(of_x, np.outer([1.0, 2.0], X))
        np.testing.assert_array_equal(of_y, np.full(3, 3.0))

    def test_aux(self) -> None:
        _value, pull, aux = mixgrad.vjp(lambda x: (x * x, x), X, has_aux=True)
        np.testing.assert_array_equal(aux, X)
        np.testing.assert_array_equal(pull(np.ones(3)), 2 * X)

    def test_what_arrives_is_checked(self) -> None:
        _, pull = mixgrad.vjp(lambda x: x * x, X)
        with pytest.raises(errors.GradientShapeError, match=r"shape \(2,\); it must have the shape \(3,\)"):
            pull(np.ones(2))
        with pytest.raises(errors.GradientShapeError, match="as the targets are"):
            pull([np.ones(3)])
        with pytest.raises(errors.GradientDtypeError):
            pull(np.ones(3) * 1j)
        with pytest.raises(errors.GradientShapeError, match="not None"):
            pull(None)

    def test_is_differentiable_in_what_arrives(self) -> None:
        def f(g: Any) -> Any:
            _, pull = mixgrad.vjp(lambda x: x**3, X)
            return mnp.sum(pull(g) ** 2)

        np.testing.assert_allclose(mixgrad.grad(f)(np.ones(3)), 2 * (3 * X**2) ** 2)

    def test_frees(self) -> None:
        with assert_no_leaks():
            value, pull = mixgrad.vjp(lambda x: mnp.sin(x) * x, np.ones(1000))
            pull(value)
            del value, pull

    def test_without_arguments(self) -> None:
        with pytest.raises(TypeError, match="needs the arguments"):
            mixgrad.vjp(lambda: 1.0)


class TestJvp:
    def test_against_the_jacobian(self) -> None:
        f: Any = lambda x, y: mnp.stack([mnp.sum(x * y), mnp.sum(mnp.exp(x)) * y])
        g: Any = lambda x, y: mnp.sin(x) * y
        v = (np.array([1.0, 2.0, -1.0]), 0.5)
        for h in (f, g):
            value, tangent = mixgrad.jvp(h, (X, 2.0), v)
            np.testing.assert_array_equal(value, h(X, 2.0))
            of_x, of_y = mixgrad.jacobian(h, (0, 1))(X, 2.0)
            np.testing.assert_allclose(tangent, of_x @ v[0] + of_y * v[1])

    def test_of_a_scalar(self) -> None:
        value, tangent = mixgrad.jvp(np.sin, (0.5,), (2.0,))
        assert value == np.sin(0.5)
        assert tangent == pytest.approx(2 * np.cos(0.5))
        assert type(tangent) is np.float64

    def test_of_the_identity(self) -> None:
        value, tangent = mixgrad.jvp(lambda x: x, (X,), (2 * X,))
        np.testing.assert_array_equal(value, X)
        np.testing.assert_array_equal(tangent, 2 * X)

    def test_nested(self) -> None:
        second = mixgrad.jvp(lambda x: mixgrad.jvp(lambda y: y**4, (x,), (1.0,))[1], (2.0,), (1.0,))[1]
        assert second == pytest.approx(48.0)
        assert mixgrad.grad(lambda x: mixgrad.jvp(lambda y: y**4, (x,), (1.0,))[1])(2.0) == pytest.approx(48.0)
        assert mixgrad.jvp(mixgrad.grad(lambda y: y**4), (2.0,), (1.0,))[1] == pytest.approx(48.0)

    def test_aux(self) -> None:
        value, tangent, aux = mixgrad.jvp(lambda x: (x * x, x), (2.0,), (1.0,), has_aux=True)
        assert (value, tangent, aux) == (4.0, 4.0, 2.0)

    def test_a_gradient_of_first_order_only_is_an_error(self) -> None:
        f = mixgrad.register_op("transforms_first_order")(lambda x: 2.0 * x)
        f.gradient(lambda g, x, out: 2.0 * np.asarray(g), differentiable=False)
        try:
            with pytest.raises(errors.NotDifferentiableError, match="transforms_first_order"):
                mixgrad.jvp(f, (1.0,), (1.0,))
        finally:
            mixgrad.unregister("transforms_first_order")

    def test_what_is_refused(self) -> None:
        with pytest.raises(TypeError, match="tuple"):
            mixgrad.jvp(np.sin, 1.0, (1.0,))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="tuple"):
            mixgrad.jvp(np.sin, (1.0,), 1.0)  # type: ignore[arg-type]
        with pytest.raises(errors.GradientShapeError, match="tangent for each value"):
            mixgrad.jvp(np.sin, (1.0,), (1.0, 2.0))
        with pytest.raises(errors.GradientShapeError, match="a tangent of jvp has shape"):
            mixgrad.jvp(np.sin, (X,), (1.0,))


class TestJacobian:
    def test_shape(self) -> None:
        jacobian = mixgrad.jacobian(lambda x: mnp.outer(x[0], x[1]))(np.ones((2, 3)))
        assert jacobian.shape == (3, 3, 2, 3)

    def test_of_a_scalar_function_is_the_gradient(self) -> None:
        np.testing.assert_allclose(mixgrad.jacobian(cube_sum)(X), 3 * X**2)

    def test_of_a_scalar(self) -> None:
        assert mixgrad.jacobian(np.sin)(0.5) == np.cos(0.5)
        np.testing.assert_allclose(mixgrad.jacobian(lambda x: mnp.stack([x, x * x]))(3.0), [1.0, 6.0])

    def test_of_size_0(self) -> None:
        assert mixgrad.jacobian(lambda x: x[:0])(X).shape == (0, 3)
        assert mixgrad.jacobian(lambda x: mnp.stack([mnp.sum(x), mnp.sum(x)]))(np.ones(0)).shape == (2, 0)

    def test_twice(self) -> None:
        third = mixgrad.jacobian(mixgrad.hessian(lambda x: mnp.sum(x**4)))(X)
        want = np.zeros((3, 3, 3))
        want[range(3), range(3), range(3)] = 24 * X
        np.testing.assert_allclose(third, want, atol=1e-13)


class TestHessian:
    def test_is_symmetric_and_right(self) -> None:
        f: Any = lambda x: mnp.sum(mnp.exp(x[0] * x[1]) * x[2])
        hessian = mixgrad.hessian(f)(X)
        np.testing.assert_allclose(hessian, hessian.T, rtol=1e-13)
        e = np.exp(X[0] * X[1])
        np.testing.assert_allclose(hessian[0], [X[1] ** 2 * X[2] * e, (1 + X[0] * X[1]) * X[2] * e, X[1] * e])

    def test_of_a_matrix(self) -> None:
        assert mixgrad.hessian(lambda m: mnp.sum(m @ m))(np.ones((2, 2))).shape == (2, 2, 2, 2)

    def test_argnums(self) -> None:
        hessian = mixgrad.hessian(lambda x, y: x**2 * y, (0, 1))(2.0, 3.0)
        assert hessian == ((6.0, 4.0), (4.0, 0.0))

    def test_hvp_agrees(self) -> None:
        f: Any = lambda x, k: mnp.sum(mnp.sin(x) * x[::-1]) * k
        v = np.array([1.0, -2.0, 0.5])
        np.testing.assert_allclose(mixgrad.hvp(f)(X, 2.0, v), mixgrad.hessian(f)(X, 2.0) @ v)

    def test_hvp_refuses(self) -> None:
        with pytest.raises(TypeError, match="and then the vector"):
            mixgrad.hvp(cube_sum)(X)
        with pytest.raises(errors.GradientShapeError, match="the vector of hvp has shape"):
            mixgrad.hvp(cube_sum)(X, np.ones(2))


class TestNesting:
    def test_derivatives_of_one_variable_do_not_mix(self) -> None:
        assert mixgrad.grad(lambda x: mixgrad.grad(lambda y: x * y)(x))(3.0) == 1.0
        assert mixgrad.grad(lambda x: x * mixgrad.grad(lambda y: x + y)(1.0))(1.0) == 1.0

    def test_the_outer_variable_in_every_inner_transform(self) -> None:
        assert mixgrad.grad(lambda x: mixgrad.grad(lambda y: x * 1.0)(x))(3.0) == 0.0
        assert mixgrad.grad(lambda x: mixgrad.value_and_grad(lambda y: x * x)(x)[0])(3.0) == 6.0
        assert mixgrad.grad(lambda x: mixgrad.vjp(lambda y: x * x, 2.0)[0])(3.0) == 6.0
        assert mixgrad.grad(lambda x: mixgrad.jvp(lambda y: x * y, (2.0,), (x,))[1])(3.0) == 6.0
        assert mixgrad.grad(lambda x: mixgrad.hvp(lambda y: x * y**3)(2.0, x))(3.0) == 72.0
        assert mixgrad.grad(lambda x: mnp.sum(mixgrad.jacobian(lambda y: x * y**2)(np.ones(2))))(3.0) == 4.0
        assert mixgrad.jacobian(lambda x: mixgrad.jacobian(lambda y: x * y)(x))(np.ones(2)).shape == (2, 2, 2)

    def test_a_gradient_step_inside_a_loss(self) -> None:
        def loss(w: Any, x: Any) -> Any:
            return mnp.sum((w * x - 1.0) ** 2)

        def after_one_step(w: Any) -> Any:
            return loss(w - 0.1 * mixgrad.grad(loss)(w, X), X)

        check_gradient(after_one_step, 0.7, order=2)

    def test_a_gradient_may_itself_call_grad(self) -> None:
        with mixgrad.override_gradient("sin", lambda op, g: g * mixgrad.elementwise_grad(np.sin)(op.inputs[0])):
            assert mixgrad.grad(mnp.cos)(0.5) == pytest.approx(-np.sin(0.5))

        def by_grad(op: Any, g: Any) -> Any:
            return g * mixgrad.elementwise_grad(lambda x: x * x * x)(op.inputs[0])

        with mixgrad.override_gradient("sin", by_grad):
            assert mixgrad.grad(mnp.sin)(2.0) == 12.0
            assert mixgrad.grad(mixgrad.grad(mnp.sin))(2.0) == 12.0

    def test_second_order_of_x3_plus_x2_at_2_is_14(self) -> None:
        f: Any = lambda x: x * x * x + x**2
        assert mixgrad.grad(mixgrad.grad(f))(2.0) == 14.0
        with mixgrad.prefer("python"):
            assert mixgrad.grad(mixgrad.grad(f))(2.0) == 14.0


class TestStopGradient:
    def test_a_constant(self) -> None:
        assert mixgrad.grad(lambda x: x * mixgrad.stop_gradient(x * x))(3.0) == 9.0

    def test_in_every_order(self) -> None:
        f: Any = lambda x: x**3 * mixgrad.stop_gradient(x)
        assert mixgrad.grad(mixgrad.grad(f))(2.0) == 24.0

    def test_containers_and_plain_values(self) -> None:
        stopped = mixgrad.stop_gradient({"a": 1.0, "b": [X, "text"]})
        assert stopped["a"] == 1.0
        assert stopped["b"][0] is X

        def f(p: Any) -> Any:
            p = mixgrad.stop_gradient(p)
            return p["a"] * p["b"]

        assert mixgrad.grad(f)({"a": 1.0, "b": 2.0}) == {"a": 0.0, "b": 0.0}


class TestCheckpoint:
    @staticmethod
    def block(x: Any, w: Any) -> Any:
        for _ in range(5):
            x = mnp.tanh(w * x + 0.1)
        return x

    def test_the_gradient_is_the_same_to_the_bit(self) -> None:
        block = mixgrad.checkpoint(self.block)
        f, g = (lambda x, w: mnp.sum(self.block(x, w))), (lambda x, w: mnp.sum(block(x, w)))
        for one, other in zip(mixgrad.grad(f, (0, 1))(X, 0.5), mixgrad.grad(g, (0, 1))(X, 0.5), strict=True):
            np.testing.assert_array_equal(one, other)

    def test_higher_order(self) -> None:
        block = mixgrad.checkpoint(self.block)
        f, g = (lambda x: mnp.sum(self.block(x, x[0]))), (lambda x: mnp.sum(block(x, x[0])))
        np.testing.assert_allclose(mixgrad.hessian(g)(X), mixgrad.hessian(f)(X), rtol=1e-12)
        v = np.array([1.0, 2.0, 3.0])
        np.testing.assert_allclose(mixgrad.jvp(g, (X,), (v,))[1], mixgrad.jvp(f, (X,), (v,))[1], rtol=1e-12)
        third = mixgrad.grad(mixgrad.grad(mixgrad.grad(mixgrad.checkpoint(lambda x: x**4))))
        assert third(2.0) == pytest.approx(48.0)

    def test_what_it_uses_from_its_surroundings_is_an_input(self) -> None:
        def f(x: Any, w: Any) -> Any:
            hidden = w * w
            inner: Any = mixgrad.checkpoint(lambda v: mnp.sin(v * hidden) + w)
            return inner(x)

        def plain(x: Any, w: Any) -> Any:
            return mnp.sin(x * (w * w)) + w

        assert mixgrad.grad(f, (0, 1))(0.3, 0.7) == pytest.approx(mixgrad.grad(plain, (0, 1))(0.3, 0.7))
        for i in range(2):
            for j in range(2):
                second = mixgrad.grad(mixgrad.grad(f, i), j)(0.3, 0.7)
                assert second == pytest.approx(mixgrad.grad(mixgrad.grad(plain, i), j)(0.3, 0.7))

    def test_nested(self) -> None:
        inner: Any = mixgrad.checkpoint(lambda x: mnp.sin(x) * x)
        outer: Any = mixgrad.checkpoint(lambda x: inner(inner(x)) + x)
        plain: Any = lambda x: mnp.sin(mnp.sin(x) * x) * (mnp.sin(x) * x) + x
        assert mixgrad.grad(outer)(0.7) == pytest.approx(mixgrad.grad(plain)(0.7))
        assert mixgrad.grad(mixgrad.grad(outer))(0.7) == pytest.approx(mixgrad.grad(mixgrad.grad(plain))(0.7))

    def test_containers_and_several_outputs(self) -> None:
        @mixgrad.checkpoint
        def f(p: dict[str, Any], *, scale: float) -> dict[str, Any]:
            return {"product": p["a"] * p["b"] * scale, "a": p["a"], "n": 3, "unused": p["b"] * 2.0}

        gradient = mixgrad.grad(lambda p: (r := f(p, scale=2.0))["product"] + r["a"] * r["n"])({"a": 2.0, "b": 5.0})
        assert gradient == {"a": 13.0, "b": 4.0}

    def test_on_plain_values_it_is_the_function(self) -> None:
        block = mixgrad.checkpoint(self.block)
        np.testing.assert_array_equal(block(X, 0.5), self.block(X, 0.5))
        assert type(block(X, 0.5)) is np.ndarray
        assert block.__name__ == "block"

    def test_a_grad_inside(self) -> None:
        f: Any = mixgrad.checkpoint(lambda x: mixgrad.grad(lambda y: y**3 * x)(x))
        plain: Any = lambda x: mixgrad.grad(lambda y: y**3 * x)(x)
        assert mixgrad.grad(f)(2.0) == mixgrad.grad(plain)(2.0) == 36.0

        g: Any = mixgrad.checkpoint(mixgrad.grad(lambda y: y**3))
        assert mixgrad.grad(g)(2.0) == 12.0
        h: Any = mixgrad.checkpoint(mixgrad.custom_gradient(lambda y: (y * y, lambda g: 2.0 * g * y)))
        assert mixgrad.grad(h)(2.0) == 4.0
        assert mixgrad.grad(mixgrad.grad(h))(2.0) == 2.0

    def test_runs_twice(self) -> None:
        runs = []

        @mixgrad.checkpoint
        def f(x: Any) -> Any:
            runs.append(1)
            return x * x

        assert mixgrad.grad(f)(3.0) == 6.0
        assert len(runs) == 2

    def test_keeps_only_its_inputs(self) -> None:
        def deep(x: Any) -> Any:
            for _ in range(50):
                x = mnp.sin(x)
            return x

        held = []
        for f in (deep, mixgrad.checkpoint(deep)):
            with mixgrad.Tape() as tape:
                x = tape.watch(np.ones(1000))
                y = f(x)
                held.append(mixgrad._core.counters()["buffer_bytes"])
            tape.gradient(y, x)
            del tape, x, y
        assert held[1] < held[0] / 5

    def test_overrides_of_the_first_run_hold_in_the_second(self) -> None:
        f = mixgrad.checkpoint(mnp.sin)
        with mixgrad.Tape() as tape:
            x = tape.watch(0.5)
            with mixgrad.override_gradient("sin", lambda op, g: g * 100.0):
                y = f(x)
        assert tape.gradient(y, x) == 100.0

    def test_another_second_run_is_refused(self) -> None:
        rng = np.random.default_rng(0)
        with pytest.raises(errors.CheckpointError, match=r"output 0 was .* then"):
            mixgrad.grad(mixgrad.checkpoint(lambda x: x * rng.normal()))(1.0)

        calls: list[int] = []

        def counted(x: Any) -> Any:
            calls.append(1)
            return x * 1.0 if len(calls) % 2 else x * 1.0 * 1.0

        with pytest.raises(errors.CheckpointError, match="ops"):
            mixgrad.grad(mixgrad.checkpoint(counted))(1.0)

        def form(x: Any) -> Any:
            calls.append(1)
            return (x * 1.0,) if len(calls) % 2 else [x * 1.0]

        calls.clear()
        with pytest.raises(errors.CheckpointError, match="returned"):
            mixgrad.grad(lambda x: mixgrad.checkpoint(form)(x)[0])(1.0)

        def uses(x: Any, w: Any) -> Any:
            calls.append(1)
            return x * (x if len(calls) % 2 else w)

        calls.clear()
        with pytest.raises(errors.CheckpointError, match="tracked values"):
            mixgrad.grad(mixgrad.checkpoint(uses), (0, 1))(1.0, 1.0)

    def test_an_exception_leaves_everything_usable(self) -> None:
        def fails(x: Any) -> Any:
            _ = x * x
            raise ZeroDivisionError("on purpose")

        def loss(x: Any) -> Any:
            y = x * x
            with pytest.raises(ZeroDivisionError):
                mixgrad.checkpoint(fails)(x)
            return y * x

        assert mixgrad.grad(loss)(2.0) == 12.0

    def test_frees(self) -> None:
        f: Any = mixgrad.checkpoint(lambda x: mnp.sin(x) * x)
        with assert_no_leaks():
            mixgrad.grad(lambda x: mnp.sum(f(x)))(np.ones(100))


class TestCustomGradient:
    def test_the_given_gradient_runs(self) -> None:
        @mixgrad.custom_gradient
        def tenfold(x: Any) -> Any:
            return x * x, lambda g: 10.0 * g

        assert mixgrad.grad(tenfold)(3.0) == 10.0
        value, _ = mixgrad.value_and_grad(tenfold)(3.0)
        assert value == 9.0
        assert tenfold(3.0) == 9.0

    def test_higher_order(self) -> None:
        @mixgrad.custom_gradient
        def cube(x: Any) -> Any:
            square = x * x
            return square * x, lambda g: 3.0 * square * g

        assert mixgrad.grad(cube)(2.0) == 12.0
        assert mixgrad.grad(mixgrad.grad(cube))(2.0) == 12.0
        assert mixgrad.grad(mixgrad.grad(mixgrad.grad(cube)))(2.0) == 6.0
        check_gradient(lambda x: cube(x) + x * x, X, order=2)
        assert mixgrad.jvp(cube, (2.0,), (1.0,))[1] == 12.0

    def test_opaque_numpy_in_a_gradient_never_loses_a_part(self) -> None:
        @mixgrad.custom_gradient
        def cube(x: Any) -> Any:
            plain = np.asarray(mixgrad.stop_gradient(x))
            return x * x * x, lambda g: 3.0 * np.asarray(g) * plain**2

        assert mixgrad.grad(cube)(2.0) == 12.0
        with pytest.raises(errors.ConversionError):
            mixgrad.grad(mixgrad.grad(lambda x: cube(x) * x))(2.0)

    def test_several_arguments_and_outputs(self) -> None:
        @mixgrad.custom_gradient
        def f(x: Any, y: Any, n: int) -> Any:
            def gradient(g: Any) -> Any:
                return g["product"] * y * n, g["product"] * x * n + g["y"], None

            return {"product": x * y * n, "y": y}, gradient

        gradients = mixgrad.grad(lambda x, y: (r := f(x, y, 3))["product"] + 5.0 * r["y"], (0, 1))(2.0, 7.0)
        assert gradients == (21.0, 11.0)

    def test_containers(self) -> None:
        @mixgrad.custom_gradient
        def f(p: dict[str, Any], q: list[Any]) -> Any:
            return p["a"] * q[0], lambda g: ({"a": g * q[0], "n": None}, [g * p["a"]])

        gradient = mixgrad.grad(lambda a, b: f({"a": a, "n": 3}, [b]), (0, 1))(2.0, 7.0)
        assert gradient == (7.0, 2.0)

    def test_outputs_from_plain_numpy_code(self) -> None:
        @mixgrad.custom_gradient
        def sine(x: Any) -> Any:
            plain = np.asarray(mixgrad.stop_gradient(x))
            return np.sin(plain), lambda g: g * mnp.cos(x)

        np.testing.assert_allclose(mixgrad.jacobian(sine)(X), np.diag(np.cos(X)))
        np.testing.assert_allclose(mixgrad.hessian(lambda x: mnp.sum(sine(x)))(X), np.diag(-np.sin(X)))

    def test_keywords_are_not_differentiated(self) -> None:
        f: Any = mixgrad.custom_gradient(lambda x, *, k: (x * k, lambda g: g * k))
        assert mixgrad.grad(lambda x: f(x, k=4.0))(2.0) == 4.0

    def test_tracked_values_from_outside_are_refused(self) -> None:
        def loss(x: Any, w: Any) -> Any:
            return mixgrad.custom_gradient(lambda v: (v * w, lambda g: g * w))(x)

        with pytest.raises(errors.UnsupportedError, match=r"1 tracked value from outside.*positional arguments"):
            mixgrad.grad(loss, (0, 1))(2.0, 3.0)
        assert mixgrad.grad(loss)(2.0, 3.0) == 3.0

    class TestWrongReturns:
        @staticmethod
        def of(gradient: Any) -> Any:
            return mixgrad.grad(
                lambda x, y: mnp.sum(mixgrad.custom_gradient(lambda x, y: (x * y, gradient))(x, y)), (0, 1)
            )

        def test_count(self) -> None:
            with pytest.raises(
                errors.GradientCountError, match=r"test_transforms.py:\d+\) returned a single ndarray.*2 arguments"
            ):
                self.of(lambda g: g)(X, X)
            with pytest.raises(errors.GradientCountError, match=r"returned 3 values, but the function has 2 arguments"):
                self.of(lambda g: (g, g, g))(X, X)
            with pytest.raises(errors.GradientCountError, match=r"returned 2 values, but the function has 1 argument"):
                mixgrad.grad(mixgrad.custom_gradient(lambda x: (x * x, lambda g: (g, g))))(1.0)

        def test_none(self) -> None:
            with pytest.raises(errors.GradientCountError, match="None for argument 1, whose gradient is needed"):
                self.of(lambda g: (g, None))(X, X)

        def test_shape(self) -> None:
            with pytest.raises(errors.GradientShapeError, match=r"shape \(\) for argument 0, which has shape \(3,\)"):
                self.of(lambda g: (mnp.sum(g), g))(X, X)

        def test_dtype(self) -> None:
            with pytest.raises(errors.GradientDtypeError, match="dtype int64 for argument 0, which has dtype float64"):
                self.of(lambda g: (np.arange(3), g))(X, X)

        def test_container(self) -> None:
            f: Any = mixgrad.custom_gradient(lambda p: (p["a"] * p["b"], lambda g: {"a": g}))
            with pytest.raises(errors.GradientShapeError, match="made up as the argument"):
                mixgrad.grad(f)({"a": 1.0, "b": 2.0})

        def test_no_pair(self) -> None:
            for returned in (None, 1.0, (1.0, 2.0), (1.0, np.sin, 3.0)):
                f: Any = mixgrad.custom_gradient(lambda x, returned=returned: returned)
                with pytest.raises(TypeError, match=r"must return \(value, gradient\)"):
                    mixgrad.grad(f)(1.0)

    def test_casts_as_the_contract_says(self) -> None:
        f: Any = mixgrad.custom_gradient(lambda x: (x * 2.0, lambda g: g.astype(np.float64) * (2.0 + 1j)))
        gradient = mixgrad.grad(lambda x: mnp.sum(f(x)))(np.ones(2, np.float32))
        np.testing.assert_array_equal(gradient, [2.0, 2.0])
        assert gradient.dtype == np.float32

    def test_its_exception_arrives_as_it_was(self) -> None:
        class Oops(Exception):
            pass

        def fail(g: Any) -> Any:
            raise Oops("in the gradient")

        f: Any = mixgrad.custom_gradient(lambda x: (2.0 * x, fail))
        for _ in range(3):
            with pytest.raises(Oops, match="in the gradient"):
                mixgrad.grad(lambda x: mnp.sum(f(x)))(np.ones(2))
        np.testing.assert_array_equal(mixgrad.grad(lambda x: mnp.sum(x * x))(np.ones(2)), [2.0, 2.0])

    def test_frees_its_results(self) -> None:
        results = []

        @mixgrad.custom_gradient
        def double(x: Any) -> Any:
            y = np.asarray(mixgrad.stop_gradient(x)) * 2.0
            results.append(weakref.ref(y))
            return y, lambda g: 2.0 * g

        with assert_no_leaks():
            for _ in range(4):
                mixgrad.grad(lambda x: mnp.sum(double(x)))(np.ones(5))
        gc.collect()
        assert [r() for r in results] == [None] * 4


class TestMemory:
    @pytest.mark.parametrize(
        "use",
        [
            mixgrad.grad(cube_sum),
            mixgrad.value_and_grad(cube_sum),
            lambda x: mixgrad.grad(lambda p: cube_sum(p["x"]))({"x": x}),
            mixgrad.elementwise_grad(np.sin),
            mixgrad.jacobian(np.sin),
            mixgrad.hessian(cube_sum),
            lambda x: mixgrad.hvp(cube_sum)(x, x),
            lambda x: mixgrad.vjp(np.sin, x)[1](x),
            lambda x: mixgrad.jvp(np.sin, (x,), (x,)),
        ],
        ids=["grad", "value_and_grad", "container", "elementwise_grad", "jacobian", "hessian", "hvp", "vjp", "jvp"],
    )
    def test_nothing_stays(self, use: Any) -> None:
        use(X)
        with assert_no_leaks():
            for _ in range(3):
                use(X)

    def test_nothing_stays_after_an_exception(self) -> None:
        def fails(x: Any) -> Any:
            y = x * x
            if y[0] > 0:
                raise ZeroDivisionError
            return y

        with assert_no_leaks():
            for transform in (mixgrad.grad, mixgrad.jacobian, mixgrad.hessian, mixgrad.elementwise_grad):
                with pytest.raises(ZeroDivisionError):
                    transform(fails)(X)
            with pytest.raises(ZeroDivisionError):
                mixgrad.vjp(fails, X)
            with pytest.raises(ZeroDivisionError):
                mixgrad.jvp(fails, (X,), (X,))
