"""Surfaces that a client learns: the paper's ι_φ on a domain of any dimension (section 3, "Training step").

ι(x) = Σ_k b_k(x) φ_k with Bernstein polynomials b_k. The surface takes the value of the base model at the
domain's start and of the local model at its end ω. Batches are trained near the geodesic between them, and
the server moves along it; both are functions of the control points' Gram matrix (``geometry/geodesics.py``).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from asyncmanifold.checks import check
from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.domains import Domain, ball, cube
from asyncmanifold.geometry.embeddings import Embedding, Surroundings, leave_across
from asyncmanifold.geometry.geodesics import SurfaceMetric
from asyncmanifold.geometry.paths import Spot, SurfacePath


@dataclass(frozen=True)
class Surface(Embedding):
    """A polynomial surface from the base model to the local one.

    Arguments:
        degree: of the polynomials.
        surface_dimension: of the domain; in one dimension it is a Bézier curve, traversed by arc length.
        interior_start: where control points other than ω begin the curve phase: at the ``"base"`` model, as
            in the paper, or spread evenly on the ``"chord"``.
        freeze_end: keep the end point ω as the point phase left it.
        step: where a step of fraction s ends: where the ``"chord"`` has s times the whole chord's length, or
            at the ``"parameter"`` t = s, that fraction of the geodesic's length (the exponential map of s v).
        sideways: how far beside the geodesic batches are trained when the curve phase starts, as a share of
            the way to the domain's boundary; it shrinks to 0 until the phase ends.
        radius: how far off the surface batches are trained, orthogonally to it, as in ``Tunnel``; 0 stays on
            it.
        sharpness_aware: leave the surface in the direction in which the loss rises fastest, as in ``Tunnel``.
    """

    degree: int = 2
    _: KW_ONLY
    surface_dimension: int = 2
    interior_start: Literal["base", "chord"] = "base"
    freeze_end: bool = False
    step: Literal["chord", "parameter"] = "chord"
    sideways: float = 0.5
    radius: float = 0.0
    sharpness_aware: bool = False

    def __post_init__(self) -> None:
        check(self, degree="at least 1", surface_dimension="at least 1", interior_start="'base' or 'chord'")
        check(self, step="'chord' or 'parameter'", sideways="between 0 and 1", radius="at least 0 and finite")

    @property
    def domain(self) -> Domain:
        """The domain 𝓜 with its polynomials."""
        raise TypeError(f"{type(self).__name__} must say what its domain is")

    @property
    def points(self) -> int:
        return len(self.domain.factors)

    @property
    def end(self) -> Spot:
        return tuple(self.domain.end.tolist())

    @property
    def follows_shape(self) -> bool:
        return True

    def weights(self, t: Spot) -> list[float]:
        return [float(weight) for weight in self.domain.weights(np.array(t))]

    def tangents(self, t: Spot) -> list[list[float]]:
        monomials, coefficients = self.domain.gradients
        slopes = coefficients @ self.domain.monomials(monomials, np.array(t))
        return [[float(slope) for slope in row] for row in slopes.T]

    def path(self, gram: Floats, *, exactly: bool = True) -> SurfacePath:
        shape = SurfaceMetric(self.domain, gram)
        return SurfacePath(shape, shape.connect() if exactly else shape.shortened(), self.sideways)

    def stop(self, gram: Floats, fraction: float) -> tuple[float, Spot]:
        if fraction <= 0.0 or not gram[-1, -1] > 0.0:
            return 0.0, tuple(self.domain.start.tolist())
        path = self.path(gram)
        t = path.crossing(fraction) if self.step == "chord" else min(1.0, fraction)
        return t, path.at(t)

    def interior_shares(self) -> list[float]:
        return [] if self.interior_start == "base" else self.domain.shares[:-1]

    def trained(self, active: list[int]) -> list[int]:
        return [k for k in active if k != self.points - 1] if self.freeze_end else active

    def leave(self, surroundings: Surroundings) -> None:
        leave_across(surroundings, self.radius, self.sharpness_aware)


@dataclass(frozen=True)
class Disc(Surface):
    """A surface on the unit disc D_1(R²), as in the paper's figure, or on the unit ball of another dimension.

    A Bézier triangle of any degree; base model and local model lie opposite to each other on the boundary. It
    has C(degree + d, d) − 1 free control points in d dimensions.

    >>> from asyncmanifold import Disc
    >>> Disc(2).points
    5
    >>> Disc(2).weights((0.0, 0.0))  # in the middle, between the base model and the local one
    [0.5, 0.0, 0.0, 0.0, 0.25]
    """

    @property
    def domain(self) -> Domain:
        return ball(self.degree, self.surface_dimension)


@dataclass(frozen=True)
class Patch(Surface):
    """A tensor-product surface on the square [0, 1]², or on the cube of another dimension.

    Base model and local model are opposite corners. It has (degree + 1)^d − 1 free control points in d
    dimensions.

    >>> from asyncmanifold import Patch
    >>> Patch(1).points
    3
    >>> Patch(1).weights((0.5, 0.5))  # the mean of all four corners
    [0.25, 0.25, 0.25]
    """

    @property
    def domain(self) -> Domain:
        return cube(self.degree, self.surface_dimension)
