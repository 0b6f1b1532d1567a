"""The results of a study: plain data, which the report draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KnownConstants:
    """The constants of a loss that the theorem needs; docs/theory.md derives the values."""

    smoothness: float
    """L_Θ: the largest curvature of the loss along geodesics."""
    gradient_bound: float
    """G: the largest norm of a gradient, of the loss or of one example."""
    variance: float
    """σ₁²: the variance of one example's gradient is at most this everywhere (σ₂ is 0)."""
    curvature: float
    """The curvature of the space: 0 if it is flat, 1 on the unit sphere."""


@dataclass(frozen=True)
class Setting:
    """The settings of clients and server, the same for every run."""

    clients: int
    point_steps: int
    """Local steps at the end point (K₁), the most of them if they adapt."""
    curve_steps: int
    """Local steps along the curve (K − K₁)."""
    degree: int
    """The degree of the Bézier curve; 1 for a straight line."""
    global_lr: float
    """η_g, the fraction of the way to the local model."""
    decay: float = 0.0
    """α, the strength of the penalty."""

    @property
    def steps(self) -> int:
        """K, the number of local steps."""
        return self.point_steps + self.curve_steps


@dataclass(frozen=True)
class MeasuredConstants:
    """The constants that can only be measured in runs."""

    quality: float
    """Q: the share of the descent offered by transported updates that the server's steps keep."""
    staleness: float
    """S: the distance that a model has moved meanwhile, in units of an update's length; 0 if none."""
    stretch: float = 1.0
    """R: the length of the server's steps in units of η_g times an update's, by their squares. At least 1, or
    1/√B where a step is the mean of B updates: what methods that lengthen nothing guarantee."""

    @property
    def is_sound(self) -> bool:
        """Whether the theorem's assumptions hold with these; they may not in runs of a few updates."""
        return self.quality > 0.0


@dataclass(frozen=True)
class Constants:
    """C₁ … C₄ and β."""

    c1: float
    c2: float
    c3: float
    c4: float
    beta: float


@dataclass(frozen=True)
class LengthResult:
    """The runs of one length."""

    updates: int
    """T, the number of updates."""
    local_lr: float
    """η_l, the local learning rate."""
    squares: list[float]
    """The average squared gradient norm, seed by seed."""
    mean: float
    deviation: float | None
    measured: MeasuredConstants
    staleness: float
    """In versions, on average."""
    decrease: float
    """L(Θ^0) − L(Θ^T), on average."""
    constants: Constants | None
    """With this length's η_l; None, like the bounds, if Q is not above 0."""
    bound: float | None
    printed_bound: float | None


@dataclass(frozen=True)
class Finding:
    """The results of the study on one problem."""

    problem: str
    title: str
    method: str
    seeds: list[int]
    known: KnownConstants
    setting: Setting
    measured: MeasuredConstants
    """The smallest Q and the largest S and R of all lengths, which the bounds use."""
    lambda_min: float
    printed: Constants | None
    slope: float
    slope_low: float
    slope_high: float
    lengths: list[LengthResult]

    def brief(self) -> dict[str, Any]:
        """Return the slope for scripts."""
        names = ("problem", "slope", "slope_low", "slope_high")
        return {name: getattr(self, name) for name in names}
