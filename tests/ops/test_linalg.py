# SPDX-License-Identifier: Apache-2.0
"""Products, norms and determinants beyond what their samples check: closed forms, traps, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mixgrad
import mixgrad.numpy as mnp
from mixgrad import errors
from mixgrad.testing import check_gradient

A = np.array
M = A([[1.0, 2.0], [3.0, 4.0]])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


class TestMatmul:
    def test_closed_forms(self, rng: np.random.Generator) -> None:
        x, y, w = rng.normal(size=(2, 3)), rng.normal(size=(3, 4)), rng.normal(size=(2, 4))
        gx, gy = mixgrad.grad(lambda x, y: mnp.sum((x @ y) * w), (0, 1))(x, y)
        np.testing.assert_allclose(gx, w @ y.T)
        np.testing.assert_allclose(gy, x.T @ w)

    def test_a_vector_and_itself(self) -> None:
        np.testing.assert_array_equal(mixgrad.grad(lambda x: x @ x)(A([1.0, -2.0])), [2.0, -4.0])

    def test_quadratic_form(self, rng: np.random.Generator) -> None:
        m, x = rng.normal(size=(3, 3)), rng.normal(size=3)
        np.testing.assert_allclose(mixgrad.grad(lambda x: x @ m @ x)(x), (m + m.T) @ x)
        np.testing.assert_allclose(mixgrad.hessian(lambda x: x @ m @ x)(x), m + m.T)
        np.testing.assert_allclose(mixgrad.grad(lambda m: x @ m @ x)(m), np.outer(x, x))

    @pytest.mark.parametrize(
        ("x", "y"),
        [
            ((3,), (5, 3, 2)),
            ((5, 2, 3), (3,)),
            ((1, 2, 3), (5, 3, 2)),
            ((5, 1, 2, 3), (1, 4, 3, 2)),
            ((2, 3), (2, 2, 3, 1)),
            ((4, 2, 0), (0, 3)),
            ((0, 2, 3), (3, 2)),
        ],
    )
    def test_batches_are_summed_to_the_input(self, rng: np.random.Generator, x: Any, y: Any) -> None:
        a, b = rng.normal(size=x), rng.normal(size=y)
        w = rng.normal(size=(a @ b).shape)
        found = mixgrad.grad(lambda a, b: mnp.sum((a @ b) * w), (0, 1))(a, b)
        # The same product, element by element.
        left, right = a[..., :, :, None] if len(x) > 1 else a[:, None], b[..., None, :, :] if len(y) > 1 else b[:, None]
        w = w.reshape((left * right).sum(axis=-2).shape)
        want = mixgrad.grad(lambda p, q: mnp.sum(mnp.sum(p * q, axis=-2) * w), (0, 1))(left, right)
        for got, expected, source in zip(found, want, (a, b), strict=True):
            assert got.shape == source.shape
            np.testing.assert_allclose(got, expected.reshape(source.shape), atol=1e-12)

    def test_a_plain_matrix_on_the_left(self) -> None:
        for product in (lambda x: M @ x, lambda x: np.matmul(M, x), lambda x: np.dot(M, x)):
            np.testing.assert_array_equal(
                mixgrad.grad(lambda x, product=product: product(x)[1])(A([1.0, 1.0])), [3.0, 4.0]
            )

    def test_what_does_not_fit(self) -> None:
        with pytest.raises(ValueError, match="mismatch"):
            mixgrad.grad(lambda x: (x @ np.ones((3, 2))).sum())(M)
        with pytest.raises(ValueError, match="matmul"):
            mixgrad.grad(lambda x: (x @ 2.0).sum())(M)


class TestContractions:
    def test_tensordot_negative_axes(self) -> None:
        g = mixgrad.grad(lambda a: mnp.sum(mnp.tensordot(a, M, axes=[[-1], [0]])))(np.ones((3, 2)))
        np.testing.assert_array_equal(g, np.tile([3.0, 7.0], (3, 1)))

    def test_vdot_conjugates_its_first_argument(self) -> None:
        a, b = A([1.0 + 2.0j, -1.0j]), A([0.5j, 2.0 - 1.0j])
        f: Any = lambda module: lambda a, b: module.real((1 - 2j) * module.vdot(a, b))
        ga, gb = mixgrad.grad(f(mnp), (0, 1))(a, b)
        # real(c sum conj(a) b): df/da = conj(c) conj(b) as a function of conj(a), that is conj of c b; df/db = c conj(a).
        np.testing.assert_allclose(ga, np.conj((1 - 2j) * b))
        np.testing.assert_allclose(gb, (1 - 2j) * np.conj(a))

    def test_kron(self) -> None:
        w = np.arange(16.0).reshape(4, 4)
        ga, gb = mixgrad.grad(lambda a, b: mnp.sum(np.kron(a, b) * w), (0, 1))(M, M)
        blocks = w.reshape(2, 2, 2, 2)
        np.testing.assert_allclose(ga, np.einsum("ikjl,kl->ij", blocks, M))
        np.testing.assert_allclose(gb, np.einsum("ikjl,ij->kl", blocks, M))

    def test_dot_of_more_axes(self, rng: np.random.Generator) -> None:
        a, b = rng.normal(size=(2, 4, 3)), rng.normal(size=(5, 3, 2))
        w = rng.normal(size=(2, 4, 5, 2))
        ga, gb = mixgrad.grad(lambda a, b: mnp.sum(np.dot(a, b) * w), (0, 1))(a, b)
        np.testing.assert_allclose(ga, np.einsum("ijkl,kml->ijm", w, b))
        np.testing.assert_allclose(gb, np.einsum("ijkl,ijm->kml", w, a))


class TestEinsum:
    def test_trace(self) -> None:
        np.testing.assert_array_equal(mixgrad.grad(lambda m: mnp.einsum("ii->", m))(M), np.eye(2))
        np.testing.assert_array_equal(mixgrad.grad(lambda m: mnp.einsum("ii", m))(M), np.eye(2))

    def test_diagonal(self) -> None:
        g = mixgrad.grad(lambda m: mnp.sum(mnp.einsum("ii->i", m) * A([2.0, 3.0])))(M)
        np.testing.assert_array_equal(g, np.diag([2.0, 3.0]))

    def test_size1_broadcast(self) -> None:
        gx, gy = mixgrad.grad(lambda x, y: mnp.einsum("i,i", x, y), (0, 1))(A([3.0, 4.0]), A([2.0]))
        np.testing.assert_array_equal(gx, [2.0, 2.0])
        np.testing.assert_array_equal(gy, [7.0])

    @pytest.mark.parametrize("optimize", [False, True, "optimal"])
    @pytest.mark.parametrize(
        ("subscripts", "shapes"),
        [
            ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
            ("ij,ij,ij->", [(2, 3), (1, 3), (2, 1)]),
            ("...i,...ij->...j", [(4, 1, 2), (5, 2, 3)]),
            ("i...,...->...", [(2, 3), (3,)]),
            ("ab...,b...c->c...a", [(2, 3, 4), (3, 4, 5)]),
            ("iij,jk", [(2, 2, 3), (3, 4)]),
            ("iji,kk->jk", [(2, 3, 2), (4, 4)]),
            ("ij,k->", [(2, 3), (4,)]),
            ("bA,Aa->ba", [(2, 3), (3, 4)]),
            ("...", [(2, 3)]),
        ],
    )
    def test_forms(self, rng: np.random.Generator, subscripts: str, shapes: Any, optimize: Any) -> None:
        operands = [rng.normal(size=shape) for shape in shapes]
        f: Any = lambda *x: np.einsum(subscripts, *x, optimize=optimize)
        np.testing.assert_array_equal(mixgrad.vjp(f, *operands)[0], f(*operands), strict=True)
        check_gradient(f, *operands, order=2, signs=False)

    def test_lists_of_axes(self, rng: np.random.Generator) -> None:
        x, y = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
        functions: tuple[Any, ...] = (
            lambda x, y: np.einsum(x, [0, 1], y, [1, 2], [2, 0]),
            lambda x, y: np.einsum(x, [7, 1], y, [1, 30]),
            lambda x, y: np.einsum(x, [..., 1], y, [1, 2], [..., 2]),
        )
        for f in functions:
            np.testing.assert_array_equal(mixgrad.vjp(f, x, y)[0], f(x, y), strict=True)
            check_gradient(f, x, y, order=2, signs=False)

    def test_complex(self, rng: np.random.Generator) -> None:
        x, y = (rng.normal(size=(2, 2)) + 1j * rng.normal(size=(2, 2)) for _ in range(2))
        check_gradient(lambda x, y: np.einsum("ij,jj->i", x, y), x, y, order=2)

    def test_what_numpy_refuses(self) -> None:
        with pytest.raises(ValueError, match="einstein sum subscripts string"):
            mixgrad.grad(lambda x: mnp.einsum("ij->k", x))(M)
        with pytest.raises(errors.UnsupportedError, match=r"dtype= cannot be used.*\.astype"):
            mixgrad.grad(lambda x: np.einsum("ii", x, dtype=np.float32))(M)


class TestNorm:
    @pytest.mark.parametrize("x", [np.zeros(3), np.zeros((2, 2)), np.zeros(2, complex)])
    def test_at_zero(self, x: Any) -> None:
        g = mixgrad.grad(mnp.linalg.norm)(x)
        np.testing.assert_array_equal(g, x)

    @pytest.mark.parametrize("order", [None, 1, 2, 3, 2.5, np.inf])
    def test_of_vectors_at_zero(self, order: Any) -> None:
        g = mixgrad.grad(lambda x: np.linalg.norm(x, order))(np.zeros(3))
        # The dual norm of a subgradient is at most 1.
        dual = {None: 2, 1: np.inf, 2: 2, 3: 1.5, 2.5: 5 / 3, np.inf: 1}[order]
        assert np.linalg.norm(g, dual) <= 1

    def test_one_row_at_zero(self) -> None:
        g = mixgrad.grad(lambda x: np.linalg.norm(x, axis=1).sum())(A([[0.0, 0.0], [3.0, 4.0]]))
        np.testing.assert_allclose(g, [[0.0, 0.0], [0.6, 0.8]])

    def test_hessian(self) -> None:
        x = A([3.0, 4.0])
        np.testing.assert_allclose(mixgrad.hessian(np.linalg.norm)(x), (np.eye(2) - np.outer(x, x) / 25) / 5)
        assert np.all(np.isfinite(mixgrad.hessian(np.linalg.norm)(np.zeros(2))))

    @pytest.mark.parametrize(
        ("ord", "axis", "keepdims"),
        [
            (None, None, False),
            (None, (0, 2), True),
            ("fro", (0, 1), False),
            (2, 1, False),
            (1, 0, True),
            (3, -1, False),
            (np.inf, 1, False),
            (-np.inf, 2, True),
            (0.5, 0, False),
            (-2, 0, False),
            (1, (0, 1), False),
            (-1, (2, 0), True),
            (np.inf, (0, -1), False),
            (-np.inf, (1, 0), False),
        ],
    )
    def test_orders(self, rng: np.random.Generator, ord: Any, axis: Any, keepdims: bool) -> None:
        x = rng.normal(size=(2, 3, 4))
        f: Any = lambda x: np.linalg.norm(x, ord, axis, keepdims)
        np.testing.assert_allclose(mixgrad.vjp(f, x)[0], f(x), rtol=1e-15, strict=True)
        check_gradient(f, x, order=2)

    def test_order_0_counts(self) -> None:
        value, g = mixgrad.value_and_grad(lambda x: np.linalg.norm(x, 0))(A([1.0, 0.0, -2.0]))
        assert value == 2.0
        np.testing.assert_array_equal(g, np.zeros(3))

    def test_complex(self) -> None:
        z = A([3.0 + 0.0j, 4.0j])
        np.testing.assert_allclose(mixgrad.grad(np.linalg.norm)(z), np.conj(z) / 5)

    def test_what_is_refused(self) -> None:
        with pytest.raises(errors.UnsupportedError, match=r"ord='nuc' over 2 axes.*singular values"):
            mixgrad.grad(lambda x: np.linalg.norm(x, "nuc"))(M)
        with pytest.raises(ValueError, match="Invalid norm order"):
            mixgrad.grad(lambda x: mnp.linalg.norm(x, "nonsense"))(M)


class TestDet:
    def test_of_a_regular_matrix(self) -> None:
        np.testing.assert_allclose(mixgrad.grad(np.linalg.det)(M), [[4.0, -3.0], [-2.0, 1.0]])

    def test_of_zeros(self) -> None:
        np.testing.assert_array_equal(mixgrad.grad(mnp.linalg.det)(np.zeros((4, 4))), np.zeros((4, 4)))

    def test_of_rank_n_minus_1(self) -> None:
        g = mixgrad.grad(np.linalg.det)(np.diag([2.0, 0.0, 3.0]))
        np.testing.assert_allclose(g, np.diag([0.0, 6.0, 0.0]), atol=1e-14)

    def test_second_order_of_a_singular_matrix(self) -> None:
        # det [[a, b], [c, d]] = ad - bc, whose second derivatives do not depend on where.
        h = mixgrad.hessian(np.linalg.det)(np.ones((2, 2))).reshape(4, 4)
        np.testing.assert_allclose(h, np.fliplr(np.diag([1.0, -1.0, -1.0, 1.0])), atol=1e-14)
        # det of diag(x, y, z) + e: d2/dxdy = z.
        h = mixgrad.hessian(np.linalg.det)(np.diag([0.0, 0.0, 5.0]))
        np.testing.assert_allclose(h[0, 0, 1, 1], 5.0)
        np.testing.assert_allclose(h[0, 1, 1, 0], -5.0)

    def test_complex(self, rng: np.random.Generator) -> None:
        check_gradient(np.linalg.det, rng.normal(size=(2, 3, 3)) + 1j * rng.normal(size=(2, 3, 3)), order=2)
