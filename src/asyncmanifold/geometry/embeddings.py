"""What a client learns and sends: a point, or a curve that leads to it.

An embedding maps [0, 1] into parameter space. It is given by n free control points, sent as *offsets*
from the model that the client started from; the last one is the local model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from torch import Tensor

from asyncmanifold.errors import InputError
from asyncmanifold.geometry.bezier import Floats, bernstein, chord_parameter
from asyncmanifold.geometry.spaces import Space, distance_parameter


@dataclass(frozen=True)
class Embedding:
    """A map from [0, 1] into parameter space that starts at the client's base model."""

    @property
    def points(self) -> int:
        """The number n of free control points."""
        raise TypeError(f"{type(self).__name__} must say how many free control points it has")

    @property
    def is_curve(self) -> bool:
        """Whether there is a curve to learn after the end point."""
        return False

    def weights(self, t: float) -> list[float]:
        """Return the weight of each free control point at ``t``; the base model has the rest."""
        return bernstein(self.points, t)[1:]

    def slopes(self, t: float) -> list[float]:
        """Return the derivatives of ``weights`` at ``t``."""
        lower = [0.0, *bernstein(self.points - 1, t), 0.0]
        return [self.points * (lower[k] - lower[k + 1]) for k in range(1, self.points + 1)]

    def parameter(self, gram: Floats, fraction: float) -> float:
        """Return where a step of ``fraction`` ends: its chord is that share of the whole chord."""
        return chord_parameter(gram, fraction)

    def place(self, space: Space, controls: Sequence[Tensor], fraction: float) -> float:
        """Return where a step of ``fraction`` ends on a curve of a curved space."""
        return fraction


@dataclass(frozen=True)
class Point(Embedding):
    """The straight line to the local model: every method but AsyncBezier."""

    @property
    def points(self) -> int:
        """One: the local model."""
        return 1


@dataclass(frozen=True)
class Bezier(Embedding):
    """A Bézier curve of any degree ≥ 1 to the local model (the paper's ι_φ, section 3).

    ``interior_start`` says where interior control points begin the curve phase: at the base model, as in
    the paper, or spread evenly on the chord. ``freeze_end`` keeps the end point as the point phase left it.
    ``step`` says where a step of fraction s ends: where the chord has s times its whole length, or at the
    curve's own parameter t = s.
    """

    degree: int = 2
    _: KW_ONLY
    interior_start: Literal["base", "chord"] = "base"
    freeze_end: bool = False
    step: Literal["chord", "parameter"] = "chord"

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise InputError(f"Bezier(degree={self.degree}) must be at least 1")
        if self.interior_start not in ("base", "chord"):
            raise InputError(f"Bezier(interior_start={self.interior_start!r}) must be 'base' or 'chord'")
        if self.step not in ("chord", "parameter"):
            raise InputError(f"Bezier(step={self.step!r}) must be 'chord' or 'parameter'")

    @property
    def points(self) -> int:
        """The degree: the first of the n + 1 control points is fixed."""
        return self.degree

    @property
    def is_curve(self) -> bool:
        """A curve has a phase of its own in local training."""
        return True

    def parameter(self, gram: Floats, fraction: float) -> float:
        """Return t* by the chord, or the fraction itself."""
        return super().parameter(gram, fraction) if self.step == "chord" else fraction

    def place(self, space: Space, controls: Sequence[Tensor], fraction: float) -> float:
        """Return the smallest t whose geodesic distance from the start is ``fraction`` of the end's."""
        if self.step == "parameter" or self.degree == 1:
            return fraction
        return distance_parameter(space, controls, fraction)


@dataclass(frozen=True)
class Tunnel(Bezier):
    """A Bézier curve with room around it: in the curve phase the model is evaluated off the curve.

    At γ(s) + ε u with ε = ``radius``, where u is orthogonal to the curve: random in the unit ball, or,
    ``sharpness_aware``, the direction in which the loss rises most (SAM), which takes a second pass.
    """

    radius: float = 0.1
    sharpness_aware: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.radius < float("inf"):
            raise InputError(f"Tunnel(radius={self.radius}) must be at least 0 and finite")


EMBEDDINGS: dict[str, type[Embedding]] = {"point": Point, "bezier": Bezier, "tunnel": Tunnel}
