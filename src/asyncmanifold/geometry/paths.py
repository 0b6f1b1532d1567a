"""Ways from the base model to the local one, and where on them a batch is trained.

A curve is its own way. On a surface it is the geodesic, which the control points' Gram matrix determines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.crossing import first_crossing
from asyncmanifold.geometry.geodesics import Curve, SurfaceMetric

Spot = Any
"""A position in an embedding's domain: a number in [0, 1] on a curve, a tuple of coordinates on a surface."""
GRID = np.linspace(0.0, 1.0, 129)
"""The parameters at which lengths are measured."""


class Path(Protocol):
    """A way from the base model at t = 0 to the local model at t = 1."""

    def at(self, t: float) -> Spot:
        """Return the position at ``t``."""
        ...

    def draw(self, random: np.random.Generator, progress: float) -> Spot:
        """Draw where a batch is trained, after this share of the batches of the curve phase."""
        ...


class CurvePath(Path):
    """A curve with its own parameter, at which batches are drawn as the embedding says."""

    def __init__(self, draw: Callable[[np.random.Generator], float]) -> None:
        self._draw = draw

    def at(self, t: float) -> Spot:
        return t

    def draw(self, random: np.random.Generator, progress: float) -> Spot:
        return self._draw(random)


class MeasuredPath(Path):
    """A curve with its own parameter, on which batches are drawn uniformly by arc length."""

    def __init__(self, weights: Callable[[float], list[float]], gram: Floats) -> None:
        factors = np.array([weights(float(t)) for t in GRID])
        steps = np.diff(factors, axis=0)
        squares = np.einsum("ij,jk,ik->i", steps, gram, steps)
        self._lengths = shares_of_length(np.sqrt(np.maximum(squares, 0.0)))

    def at(self, t: float) -> Spot:
        return t

    def draw(self, random: np.random.Generator, progress: float) -> Spot:
        return float(np.interp(1.0 - float(random.random()), self._lengths, GRID))


class SurfacePath(Path):
    """A way across a surface, by arc length in parameter space.

    Batches are drawn uniformly along it and beside it: orthogonally, in the domain's coordinates, uniformly
    up to a share of the way to the domain's boundary. That share shrinks evenly from ``sideways`` to 0, as
    the paper's appendix asks.
    """

    def __init__(self, shape: SurfaceMetric, curve: Curve, sideways: float) -> None:
        self._domain, self._shape, self._curve, self._sideways = shape.domain, shape, curve, sideways
        steps = np.diff(shape.embed(curve(GRID)))
        self._lengths = shares_of_length(np.linalg.norm(steps, axis=0))

    def at(self, t: float) -> Spot:
        return tuple(self._place(t).tolist())

    def crossing(self, fraction: float) -> float:
        """Return the smallest t where the distance from the start is ``fraction`` of the end's."""

        def chord(t: float) -> float:
            return float(np.linalg.norm(self._shape.embed(self._place(t)[:, None])))

        return first_crossing(chord, chord(1.0), fraction)

    def draw(self, random: np.random.Generator, progress: float) -> Spot:
        t = 1.0 - float(random.random())
        place, width = self._place(t), self._sideways * (1.0 - progress)
        if width > 0.0 and self._domain.dimension > 1:
            along = self._place(min(1.0, t + GRID[1])) - self._place(max(0.0, t - GRID[1]))
            aside = random.standard_normal(len(place))
            aside -= (aside @ along) / max(float(along @ along), 1e-300) * along
            aside /= np.linalg.norm(aside)
            place = place + width * float(random.random()) * self._domain.room(place, aside) * aside
        return tuple(place.tolist())

    def _place(self, t: float) -> Floats:
        if t <= 0.0:
            return self._domain.start
        if t >= 1.0:
            return self._domain.end
        return self._curve(np.interp([t], self._lengths, GRID))[:, 0]


def shares_of_length(lengths: Floats) -> Floats:
    """Return the share of the whole length after each piece, from 0 to 1; even if the length is 0."""
    whole = float(lengths.sum())
    if not whole > 0.0:
        return np.linspace(0.0, 1.0, len(lengths) + 1)
    return np.concatenate([[0.0], np.cumsum(lengths) / whole])
