"""Geodesics on a surface ι(x) = Σ_k b_k(x) p_k, from nothing but its control points' Gram matrix.

The surface inherits the metric of parameter space, g_ab = Σ_jk ∂_a b_j ∂_b b_k ⟨v_j, v_k⟩. Any points with
these inner products, in as few dimensions as they need, span a surface with the same lengths, angles and
geodesics. A geodesic accelerates orthogonally to the surface: g ẍ = −⟨∂ι, ∂²ι(ẋ, ẋ)⟩.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.domains import Domain

ROUGHNESS = 0.03
"""ε: the metric is g + ε² m I, where m is the greatest squared length of an offset. A surface whose control
points still coincide, or that is folded, is no immersion; this makes it one, as the paper asks of ι."""
TOLERANCE = 1e-3
"""The relative residual that the solver of the boundary value problem allows."""
NODES = 100
"""The most nodes of its mesh."""
SEGMENTS = 16
"""The segments of the first approximation."""
SLACK = 1e-6
"""How far rounding and the solver's error may take a geodesic out of its domain."""
LONGER = 1.01
"""A solution with more energy than this, relative to the way that it started from, is another geodesic."""
DESCENTS = 12
"""The most steps towards it."""

Curve = Callable[[Floats], Floats]
"""Maps parameters (m,) in [0, 1] to points (d, m) of a domain."""


class SurfaceMetric:
    """The geometry that a surface inherits from parameter space."""

    def __init__(self, domain: Domain, gram: Floats, roughness: float = ROUGHNESS) -> None:
        """Take the inner products of the offsets; lengths are in units of the longest offset."""
        self.domain = domain
        longest = float(np.diag(gram).max())
        points = coordinates_of(gram / longest) if longest > 0.0 else np.zeros((len(gram), 1))
        self._values = points.T * domain.factors
        """One row per coordinate of ι, one column per monomial."""
        self._slopes = np.einsum("kr,kam->ram", points, domain.gradients[1])
        self._bends = np.einsum("kr,kam->ram", points, domain.hessians[1])
        self._roughness = roughness

    def embed(self, x: Floats) -> Floats:
        """Return ι(x) relative to the base model, for points (d, m), in coordinates (r, m)."""
        return np.asarray(self._values @ self.domain.monomials(self.domain.exponents, x))

    def tangents(self, x: Floats) -> Floats:
        """Return ∂_a ι(x), of shape (r, d, m)."""
        return np.asarray(self._slopes @ self.domain.monomials(self.domain.gradients[0], x))

    def metric(self, x: Floats) -> Floats:
        """Return g + ε² I at points (d, m), of shape (m, d, d)."""
        return self._metric_of(self.tangents(x))

    def energy(self, x: Floats) -> float:
        """Return N Σ ‖x_i+1 − x_i‖² over the N pieces of a way, as long as they are on the surface."""
        steps, along = np.diff(self.embed(x)), np.diff(x)
        squares = float((steps**2).sum()) + self._roughness**2 * float((along**2).sum())
        return float(steps.shape[1] * squares)

    def acceleration(self, x: Floats, velocity: Floats) -> Floats:
        """Return ẍ of the geodesics through points (d, m) with these velocities."""
        tangents = self.tangents(x)
        bends = self._bends @ self.domain.monomials(self.domain.hessians[0], x)
        products = (velocity[:, None] * velocity[None]).reshape(-1, x.shape[1])
        normal = np.einsum("ram,am->rm", bends, products)
        forces = np.einsum("ram,rm->ma", tangents, normal)
        return np.asarray(-np.linalg.solve(self._metric_of(tangents), forces[..., None])[..., 0].T)

    def exponential(self, x: Floats, velocity: Floats, times: Floats, tolerance: float = 1e-6) -> Floats:
        """Return the points (d, m) that the geodesic from ``x`` reaches at increasing ``times``."""
        from scipy.integrate import solve_ivp

        found = solve_ivp(
            lambda _, y: self._flow(y[:, None])[:, 0],
            (0.0, float(times[-1])),
            np.concatenate([x, velocity]),
            t_eval=times,
            rtol=tolerance,
            atol=tolerance,
        )
        return np.asarray(found.y[: len(x)])

    def shortened(self) -> Curve:
        """Return a short way of ``SEGMENTS`` pieces from the domain's start to its end: nearly the geodesic.

        It starts as the straight way, stays in the domain and never gets longer.
        """
        grid, rough = self._shorten()
        return lambda t: np.stack([np.interp(t, grid, row) for row in rough])

    def connect(self, tolerance: float = TOLERANCE, nodes: int = NODES) -> Curve:
        """Return the geodesic from the domain's start to its end.

        A surface in no more dimensions than its domain has is flat or folded, and the shortened way will do.
        Elsewhere, from the shortened way the boundary value problem converges in a few steps. If it does not,
        or if its solution leaves the domain or is longer, the shortened way itself is taken.
        """
        from scipy.integrate import solve_bvp  # takes a second to load

        domain, size = self.domain, self.domain.dimension
        if len(self._values) <= size:
            return self.shortened()
        grid, rough = self._shorten()
        with np.errstate(all="ignore"):  # where Newton's steps go too far, the solver notices
            found = solve_bvp(
                lambda _, y: self._flow(y),
                lambda a, b: np.concatenate([a[:size] - domain.start, b[:size] - domain.end]),
                grid,
                np.vstack([rough, np.gradient(rough, grid, axis=1)]),
                tol=tolerance,
                max_nodes=nodes,
            )
        smooth = found.sol(grid)[:size]
        is_sound = found.success and domain.depth(smooth) > -SLACK
        if is_sound and self.energy(smooth) <= LONGER * self.energy(rough):
            return lambda t: np.asarray(found.sol(t)[:size])
        return lambda t: np.stack([np.interp(t, grid, row) for row in rough])

    def _flow(self, y: Floats) -> Floats:
        size = self.domain.dimension
        return np.vstack([y[size:], self.acceleration(y[:size], y[size:])])

    def _metric_of(self, tangents: Floats) -> Floats:
        inherited = np.einsum("ram,rbm->mab", tangents, tangents)
        return np.asarray(inherited + self._roughness**2 * np.eye(self.domain.dimension))

    def _shorten(self) -> tuple[Floats, Floats]:
        """Lower the energy of the straight way by Gauss–Newton steps, halved until they help."""
        grid = np.linspace(0.0, 1.0, SEGMENTS + 1)
        x = np.outer(self.domain.start, 1.0 - grid) + np.outer(self.domain.end, grid)
        least = self.energy(x)
        for _ in range(DESCENTS):
            step = self._descent(x)
            before = least
            for share in (1.0, 0.5, 0.25, 0.125):
                tried = x.copy()
                tried[:, 1:-1] += share * step
                if (energy := self.energy(tried)) < least and self.domain.depth(tried) > -SLACK:
                    x, least = tried, energy
                    break
            if least > (1.0 - 1e-4) * before:
                break
        return grid, x

    def _descent(self, x: Floats) -> Floats:
        """Return the Gauss–Newton step of the inner points, from a block-tridiagonal system."""
        size, count = self.domain.dimension, x.shape[1] - 2
        tangents = self.tangents(x[:, 1:-1])
        bend, along = np.diff(self.embed(x), n=2), np.diff(x, n=2)
        force = np.einsum("ram,rm->ma", tangents, bend) + self._roughness**2 * along.T
        matrix = np.zeros((count, size, count, size))
        inner = np.arange(count)
        matrix[inner, :, inner, :] = 2.0 * self._metric_of(tangents)
        between = np.einsum("ram,rbm->mab", tangents[:, :, :-1], tangents[:, :, 1:])
        between += self._roughness**2 * np.eye(size)
        matrix[inner[:-1], :, inner[1:], :] = -between
        matrix[inner[1:], :, inner[:-1], :] = -between.transpose(0, 2, 1)
        step = np.linalg.solve(matrix.reshape(count * size, -1), force.reshape(-1))
        return np.asarray(step.reshape(count, size).T)


def coordinates_of(gram: Floats) -> Floats:
    """Return points with these inner products, in as few dimensions as they need."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-12 * max(float(values[-1]), 1e-300)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))
