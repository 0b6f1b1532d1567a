"""The domains 𝓜 that surfaces are learned on, and the Bernstein polynomials on them.

A domain is a convex part of R^d with two distinguished points: ``start``, where a surface takes the value of
the base model, and ``end``, the paper's ω, where it takes that of the local model. All its polynomials have
the form b_k(x) = f_k Π_i λ_i(x)^e_ki, where the λ_i are affine functions of x: barycentric coordinates, or x
and 1 − x for each axis. So they are exactly 0 or 1 at the control points' corners, and derivatives are sums
of such products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, product
from math import comb, factorial, inf, prod, sqrt

import numpy as np

from asyncmanifold.geometry.bezier import Floats

Exponents = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Domain:
    """A convex domain with the Bernstein polynomials of all free control points, of which ω is the last."""

    exponents: Exponents
    """e_ki, one row for each control point."""
    factors: Floats
    """f_k."""
    matrix: Floats
    """λ(x) = matrix · x + shift."""
    shift: Floats
    start: Floats
    end: Floats
    shares: list[float]
    """Where on the chord each control point lies if the surface is the chord, traversed evenly."""
    room: Callable[[Floats, Floats], float]
    """How far the boundary is from an inner point in the direction of a unit vector."""
    depth: Callable[[Floats], float]
    """The least depth of points (d, m) inside the boundary; below 0 if one is outside."""

    @property
    def dimension(self) -> int:
        """The number d of coordinates."""
        return len(self.start)

    def weights(self, x: Floats) -> Floats:
        """Return b_k(x) for each control point k; ``x`` has shape (d,), or (d, m) for m points."""
        return self.factors.reshape(-1, *[1] * (x.ndim - 1)) * self.monomials(self.exponents, x)

    def monomials(self, exponents: Exponents, x: Floats) -> Floats:
        """Return Π_i λ_i(x)^e_i for each row of exponents."""
        coordinates = self.matrix @ x + self.shift.reshape(-1, *[1] * (x.ndim - 1))
        powers = coordinates ** exponents.reshape(*exponents.shape, *[1] * (x.ndim - 1))
        return np.asarray(powers.prod(axis=1))

    @cached_property
    def gradients(self) -> tuple[Exponents, Floats]:
        """The monomials of all ∂_a b_k, and their coefficients, of shape (K, d, monomials)."""
        return self._differentiate(self.exponents, np.diag(self.factors)[:, None, :])

    @cached_property
    def hessians(self) -> tuple[Exponents, Floats]:
        """The monomials of all ∂_a ∂_b b_k, and their coefficients, of shape (K, d · d, monomials)."""
        return self._differentiate(*self.gradients)

    def _differentiate(self, exponents: Exponents, coefficients: Floats) -> tuple[Exponents, Floats]:
        """Differentiate polynomials (K, rows, monomials) along each axis, to (K, rows · d, new monomials)."""
        lowered = np.maximum(exponents[:, None, :] - np.eye(exponents.shape[1], dtype=np.int64), 0)
        monomials, where = np.unique(lowered.reshape(-1, exponents.shape[1]), axis=0, return_inverse=True)
        spread = np.zeros((*exponents.shape, len(monomials)))
        np.put_along_axis(spread, where.reshape(*exponents.shape, 1), exponents[:, :, None], axis=2)
        found = np.einsum("krm,min,ia->kran", coefficients, spread, self.matrix)
        return monomials, found.reshape(len(coefficients), -1, len(monomials))


@lru_cache
def ball(degree: int, dimension: int) -> Domain:
    """Return the unit ball D_1(R^d) with the polynomials of a total degree; for d = 2, Bézier triangles.

    They are Bernstein's on the inscribed simplex with the corners start = (−1, 0 …), end = (1, 0 …) and one
    on each further axis, so that the way from start to end has room on all sides.
    """
    downwards = product(range(degree, -1, -1), repeat=dimension + 1)  # from start to end, as along a curve
    exponents = [e for e in downwards if sum(e) == degree]
    factors = [factorial(degree) / prod(map(factorial, e)) for e in exponents]
    matrix, shift = np.eye(dimension + 1, dimension, k=-1), np.zeros(dimension + 1)
    matrix[:2], shift[:2] = -0.5, 0.5
    matrix[1, 0] = 0.5
    axis = np.eye(dimension)[0]
    corners = ((degree, *[0] * dimension), (0, degree, *[0] * (dimension - 1)))
    shares = [(e[1] + sum(e[2:]) / 2.0) / degree for e in exponents]
    order = _free_points(exponents, corners)
    return Domain(
        np.array(exponents)[order],
        np.array(factors)[order],
        matrix,
        shift,
        start=-axis,
        end=axis,
        shares=[shares[k] for k in order],
        room=_room_in_ball,
        depth=lambda x: 1.0 - float((x**2).sum(axis=0).max()),
    )


@lru_cache
def cube(degree: int, dimension: int) -> Domain:
    """Return the cube [0, 1]^d with the polynomials of a degree in each axis: tensor-product patches.

    The way from start = (0 …) to end = (1 …) is the diagonal.
    """
    each = [(degree - k, k) for k in range(degree + 1)]
    exponents = [tuple(chain(*choice)) for choice in product(each, repeat=dimension)]
    factors = [float(prod(comb(degree, k) for k in e[1::2])) for e in exponents]
    matrix = np.repeat(np.eye(dimension), 2, axis=0)
    matrix[::2] *= -1.0
    corners = ((degree, 0) * dimension, (0, degree) * dimension)
    shares = [sum(e[1::2]) / (degree * dimension) for e in exponents]
    order = _free_points(exponents, corners)
    return Domain(
        np.array(exponents)[order],
        np.array(factors)[order],
        matrix,
        np.tile([1.0, 0.0], dimension),
        start=np.zeros(dimension),
        end=np.ones(dimension),
        shares=[shares[k] for k in order],
        room=_room_in_cube,
        depth=lambda x: float(np.minimum(x, 1.0 - x).min()),
    )


def _free_points(
    exponents: list[tuple[int, ...]], corners: tuple[tuple[int, ...], tuple[int, ...]]
) -> list[int]:
    """Return the order of the free control points: those between, then ω; the one at the start is fixed."""
    return [k for k, e in enumerate(exponents) if e not in corners] + [exponents.index(corners[1])]


def _room_in_ball(x: Floats, direction: Floats) -> float:
    """Solve ‖x + r · direction‖ = 1 for the greater r."""
    along = float(x @ direction)
    return sqrt(max(0.0, along**2 + 1.0 - float(x @ x))) - along


def _room_in_cube(x: Floats, direction: Floats) -> float:
    """Return the least distance to a face that the direction points at."""
    least = inf
    for place, slope in zip(x.tolist(), direction.tolist(), strict=True):
        if slope != 0.0:
            least = min(least, (1.0 - place) / slope if slope > 0.0 else -place / slope)
    return least
