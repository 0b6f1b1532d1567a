"""What a client learns and sends: a point, a curve that leads to it, or a surface that contains it.

An embedding maps a domain into parameter space: [0, 1] for curves, more dimensions for surfaces
(``geometry/surfaces.py``). It is given by n free control points, sent as *offsets* from the model that the
client started from; the last one is the local model. It also defines its training: where interior control
points start, which ones a step moves, and whether the model leaves the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.geometry.bezier import Floats, bernstein, chord_parameter, de_casteljau
from asyncmanifold.geometry.crossing import first_crossing
from asyncmanifold.geometry.paths import CurvePath, MeasuredPath, Path, Spot
from asyncmanifold.geometry.spaces import Space

Geodesic = Callable[[Tensor, Tensor, float], Tensor]
"""Takes two points and a fraction of the way from the first to the second; returns that point."""
DIFFERENCE = 1e-6
"""The step of a numerical derivative."""


class Surroundings(Protocol):
    """The model at a position on the curve, during a training step."""

    size: int
    """The number P of parameters."""

    @property
    def random(self) -> np.random.Generator:
        """The job's random generator, used only for leaving the curve."""
        ...

    def gradient(self) -> Tensor:
        """Return the gradient of the batch's loss here, by an extra forward and backward pass."""
        ...

    def shift(self, direction: Tensor, length: float) -> None:
        """Move the model by ``length`` along the part of ``direction`` orthogonal to the curve or surface."""
        ...


@dataclass(frozen=True)
class Embedding:
    """A map from [0, 1] into parameter space that starts at the client's base model.

    A subclass defines how many free control points it has and the weight of each at ``t``; everything else
    follows from that, or may be overridden by an exact or faster way. A complete example:

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from asyncmanifold import Embedding
    >>> @dataclass(frozen=True)
    ... class Polyline(Embedding):  # by way of a knot
    ...     points = 2
    ...     def weights(self, t):
    ...         return [2 * t, 0.0] if t <= 0.5 else [2 - 2 * t, 2 * t - 1]
    >>> offsets = np.array([[3.0, 0.0], [0.0, 4.0]])  # the knot and the end
    >>> round(Polyline().parameter(offsets @ offsets.T, fraction=0.6), 6)  # 0.6 of the chord is 2.4 long
    0.4
    """

    @property
    def points(self) -> int:
        """The number n of free control points."""
        raise TypeError(f"{type(self).__name__} must say how many free control points it has")

    @property
    def is_curve(self) -> bool:
        """Whether there is a curve to learn after the end point."""
        return True

    @property
    def end(self) -> Spot:
        """The position of the local model, the paper's ω."""
        return 1.0

    @property
    def follows_shape(self) -> bool:
        """Whether the positions of batches depend on the control points that have been learned so far."""
        return False

    @property
    def follows_trajectory(self) -> bool:
        """Whether interior control points are fitted to the way of the end point in the point phase."""
        return False

    def weights(self, t: Spot) -> list[float]:
        """Return the weight of each free control point at ``t``; the base model has the rest.

        The last control point has weight 1 at ``end``, and all others 0.
        """
        raise TypeError(f"{type(self).__name__} must say what its control points weigh")

    def slopes(self, t: float) -> list[float]:
        """Return the derivatives of ``weights`` at ``t``."""
        low, high = max(0.0, t - DIFFERENCE), min(1.0, t + DIFFERENCE)
        pairs = zip(self.weights(low), self.weights(high), strict=True)
        return [(after - before) / (high - low) for before, after in pairs]

    def tangents(self, t: Spot) -> list[list[float]]:
        """Return the derivatives of ``weights`` along each axis of the domain."""
        return [self.slopes(t)]

    def path(self, gram: Floats, *, exactly: bool = True) -> Path:
        """Return the way to the local model, given the inner products of the offsets.

        Training needs it often and not ``exactly``.
        """
        return CurvePath(self.draw)

    def at(self, controls: Sequence[Tensor], t: float, geodesic: Geodesic) -> Tensor:
        """Return the point at ``t`` on a curved space; ``controls`` has the base model first."""
        raise TypeError(f"{type(self).__name__} does not say how it runs on a curved space")

    def parameter(self, gram: Floats, fraction: float) -> float:
        """Return the t where a step of ``fraction`` ends: its chord is that fraction of the whole chord.

        ``gram`` holds the inner products of the offsets.
        """

        def chord(t: float) -> float:
            weights = np.array(self.weights(t))
            return sqrt(max(0.0, float(weights @ gram @ weights)))

        return first_crossing(chord, sqrt(max(0.0, float(gram[-1, -1]))), fraction)

    def stop(self, gram: Floats, fraction: float) -> tuple[float, Spot]:
        """Return where a step of ``fraction`` ends on the way to the local model: t, and its position."""
        t = self.parameter(gram, fraction)
        return t, t

    def place(self, space: Space, controls: Sequence[Tensor], fraction: float) -> float:
        """Return the smallest t whose geodesic distance from the start is ``fraction`` of the end's."""

        def distance(t: float) -> float:
            return space.distance(controls[0], self.at(controls, t, space.geodesic))

        return first_crossing(distance, space.distance(controls[0], controls[-1]), fraction)

    def interior_shares(self) -> list[float]:
        """Return where interior control points start the curve phase, as fractions of the chord.

        Empty if they stay at the base model.
        """
        return []

    def draw(self, random: np.random.Generator) -> float:
        """Draw the position, in (0, 1], at which a batch of the curve phase is trained."""
        return 1.0 - float(random.random())

    def trained(self, active: list[int]) -> list[int]:
        """Return which control points a step of the curve phase moves, out of those with a nonzero weight."""
        return active

    def leave(self, surroundings: Surroundings) -> None:
        """Move the model off the curve before a batch of the curve phase; by default it stays on it."""


@dataclass(frozen=True)
class Point(Embedding):
    """The straight line to the local model, used by every method except AsyncBezier.

    >>> from asyncmanifold import Point
    >>> Point().weights(0.3)
    [0.3]
    """

    @property
    def points(self) -> int:
        return 1

    @property
    def is_curve(self) -> bool:
        return False

    def weights(self, t: float) -> list[float]:
        return [t]

    def slopes(self, t: float) -> list[float]:
        return [1.0]

    def at(self, controls: Sequence[Tensor], t: float, geodesic: Geodesic) -> Tensor:
        return geodesic(controls[0], controls[1], t)

    def parameter(self, gram: Floats, fraction: float) -> float:
        return fraction

    def place(self, space: Space, controls: Sequence[Tensor], fraction: float) -> float:
        return fraction


@dataclass(frozen=True)
class Bezier(Embedding):
    """A Bézier curve of any degree ≥ 1 to the local model (the paper's ι_φ, section 3).

    Arguments:
        degree: the number of free control points; the first of the n + 1 is fixed.
        interior_start: where interior control points begin the curve phase: at the ``"base"`` model, as in
            the paper; spread evenly on the ``"chord"``; or so that the curve follows the ``"trajectory"`` of
            the end point in the point phase, which with ``curve_epochs = 0`` is a curve at no extra cost.
        freeze_end: keep the end point as the point phase left it.
        step: where a step of fraction s ends: where the ``"chord"`` has s times the whole chord's length, or
            at the curve ``"parameter"`` t = s.
        measure: how batches of the curve phase are distributed: uniformly in the curve's ``"parameter"``, as
            in the paper, or by arc ``"length"``, the paper's corrected measure.

    >>> from asyncmanifold import Bezier
    >>> Bezier(2).weights(0.5)
    [0.5, 0.25]
    """

    degree: int = 2
    _: KW_ONLY
    interior_start: Literal["base", "chord", "trajectory"] = "base"
    freeze_end: bool = False
    step: Literal["chord", "parameter"] = "chord"
    measure: Literal["parameter", "length"] = "parameter"

    def __post_init__(self) -> None:
        check(self, degree="at least 1", interior_start="'base', 'chord' or 'trajectory'")
        check(self, step="'chord' or 'parameter'", measure="'parameter' or 'length'")

    @property
    def follows_shape(self) -> bool:
        return self.measure == "length"

    @property
    def follows_trajectory(self) -> bool:
        return self.interior_start == "trajectory" and self.degree > 1

    @property
    def points(self) -> int:
        return self.degree

    def weights(self, t: float) -> list[float]:
        return bernstein(self.degree, t)[1:]

    def slopes(self, t: float) -> list[float]:
        lower = [0.0, *bernstein(self.degree - 1, t), 0.0]
        return [self.degree * (lower[k] - lower[k + 1]) for k in range(1, self.degree + 1)]

    def path(self, gram: Floats, *, exactly: bool = True) -> Path:
        return MeasuredPath(self.weights, gram) if self.follows_shape else super().path(gram)

    def at(self, controls: Sequence[Tensor], t: float, geodesic: Geodesic) -> Tensor:
        return de_casteljau(controls, t, geodesic)

    def parameter(self, gram: Floats, fraction: float) -> float:
        return chord_parameter(gram, fraction) if self.step == "chord" else fraction

    def place(self, space: Space, controls: Sequence[Tensor], fraction: float) -> float:
        if self.step == "parameter" or self.degree == 1:
            return fraction
        return super().place(space, controls, fraction)

    def interior_shares(self) -> list[float]:
        if self.interior_start != "chord":
            return []
        return [k / self.degree for k in range(1, self.degree)]

    def trained(self, active: list[int]) -> list[int]:
        return active[:-1] if self.freeze_end else active


@dataclass(frozen=True)
class Tunnel(Bezier):
    """A Bézier curve with room around it: in the curve phase the model is evaluated off the curve.

    At γ(s) + ε u with ε = ``radius``, where u is orthogonal to the curve.

    Arguments:
        radius: ε, at least 0. Other arguments are those of ``Bezier``.
        sharpness_aware: u is the direction in which the loss rises fastest (SAM), which takes a second pass;
            otherwise u is random in the unit ball.

    >>> from asyncmanifold import Tunnel
    >>> Tunnel(2, radius=0.05).points
    2
    """

    radius: float = 0.1
    sharpness_aware: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, radius="at least 0 and finite")

    def leave(self, surroundings: Surroundings) -> None:
        leave_across(surroundings, self.radius, self.sharpness_aware)


def leave_across(surroundings: Surroundings, radius: float, sharpness_aware: bool) -> None:
    """Move the model at most ``radius`` off its curve or surface, at random or to where the loss rises
    fastest."""
    if not radius:
        return
    if sharpness_aware:
        surroundings.shift(surroundings.gradient(), radius)
        return
    random, size = surroundings.random, surroundings.size
    direction = torch.from_numpy(random.standard_normal(size, dtype=np.float32))
    surroundings.shift(direction, radius * float(random.random()) ** (1.0 / size))
