"""How long a step may be: penalties by distance and by staleness, and epochs that adapt."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import floor, inf

from asyncmanifold.errors import InputError
from asyncmanifold.server.stages import Arrival, Memory, Part


@dataclass(frozen=True)
class Penalty(Part):
    """Scales no step. Subclasses override ``scale``, or ``weigh`` where they need to know or remember more."""

    def weigh(
        self, end_norm: float, drift_norm: float, arrival: Arrival, memory: Memory
    ) -> tuple[float, Memory]:
        """Return S and the new memory."""
        return self.scale(end_norm, drift_norm, arrival.updates), memory

    def scale(self, end_norm: float, drift_norm: float, updates: int) -> float:
        """Return S ≥ 0 for a corrected end point, a drift, and the number of updates accepted so far."""
        return 1.0


@dataclass(frozen=True)
class Distance(Penalty):
    """S = 1 + decay · (‖v'_n‖/‖d‖ − 1), bounded (the paper's S with α = decay, after AsyncFedED).

    1 where there is no drift and for the first ``warmup`` updates. A decay of 0 is no penalty.
    """

    decay: float = 1.0
    _: KW_ONLY
    warmup: int = 0
    lowest: float = 0.0
    highest: float = 10.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay <= 1.0:
            raise InputError(f"Distance(decay={self.decay}) must be between 0 and 1")
        if self.warmup < 0:
            raise InputError(f"Distance(warmup={self.warmup}) must be at least 0")
        if not 0.0 <= self.lowest <= 1.0 <= self.highest:
            raise InputError(
                f"Distance(lowest={self.lowest}, highest={self.highest}) must have 0 ≤ lowest ≤ 1 ≤ highest"
            )

    def scale(self, end_norm: float, drift_norm: float, updates: int) -> float:
        """Return S."""
        if drift_norm <= 0.0 or updates < self.warmup:
            return 1.0
        return min(self.highest, max(self.lowest, 1.0 + self.decay * (end_norm / drift_norm - 1.0)))


@dataclass(frozen=True)
class Staleness(Part):
    """A factor of the step that depends on staleness, constant 1 unless overridden.

    Subclasses override ``factor``, or ``weigh`` where they need to know or remember more.
    """

    def weigh(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        """Return the factor and the new memory."""
        return self.factor(arrival.staleness), memory

    def factor(self, staleness: int) -> float:
        """Return the factor in (0, 1]; a pure function, so equal staleness always mixes equally."""
        return 1.0


@dataclass(frozen=True)
class Constant(Staleness):
    """s(τ) = 1."""


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s(τ) = (1 + τ)^(−exponent) (FedAsync, section 5.2); 0.5 is FedBuff's 1/√(1 + τ)."""

    exponent: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.exponent < inf:
            raise InputError(f"Polynomial(exponent={self.exponent}) must be at least 0 and finite")

    def factor(self, staleness: int) -> float:
        """Return (1 + staleness)^(−exponent)."""
        return float((1.0 + staleness) ** -self.exponent)


@dataclass(frozen=True)
class Hinge(Staleness):
    """s(τ) = 1 up to ``delay``, then 1/(slope · (τ − delay) + 1) (FedAsync, section 5.2)."""

    slope: float = 10.0
    delay: int = 4

    def __post_init__(self) -> None:
        if not 0.0 < self.slope < inf:
            raise InputError(f"Hinge(slope={self.slope}) must be above 0 and finite")
        if self.delay < 0:
            raise InputError(f"Hinge(delay={self.delay}) must be at least 0")

    def factor(self, staleness: int) -> float:
        """Return 1 or the hinge's falling branch."""
        return 1.0 / (self.slope * max(0, staleness - self.delay) + 1.0)


@dataclass(frozen=True)
class AdaptiveEpochs:
    """K ← max(1, K + ⌊(γ̄ − γ) · gain⌋) with γ = ‖d‖/‖v‖ (AsyncFedED; γ̄ = target_ratio, κ = gain).

    A client whose base has drifted far in units of its own update gets less to do, a fresh one more.
    For the first ``adapt_after`` updates γ counts as γ̄; K never exceeds ``max_epochs``.
    """

    target_ratio: float = 1.0
    _: KW_ONLY
    gain: float = 1.0
    adapt_after: int = 10
    max_epochs: int = 10

    def __post_init__(self) -> None:
        if not (0.0 <= self.target_ratio < inf and 0.0 <= self.gain < inf):
            raise InputError(
                f"AdaptiveEpochs(target_ratio={self.target_ratio}, gain={self.gain}) must be at least 0 and finite"
            )
        if self.adapt_after < 0 or self.max_epochs < 1:
            raise InputError(
                f"AdaptiveEpochs(adapt_after={self.adapt_after}, max_epochs={self.max_epochs}) "
                "must have adapt_after ≥ 0 and max_epochs ≥ 1"
            )

    def next(self, epochs: int, drift_norm: float, update_norm: float, updates: int) -> int:
        """Return the epochs of a client's next job."""
        change = 0.0
        if updates >= self.adapt_after and update_norm > 0.0:
            change = (self.target_ratio - drift_norm / update_norm) * self.gain
        return min(self.max_epochs, max(1, epochs + floor(max(change, -float(epochs)))))


PENALTIES: dict[str, type[Penalty]] = {"distance": Distance}
STALENESS: dict[str, type[Staleness]] = {
    "constant": Constant,
    "polynomial": Polynomial,
    "hinge": Hinge,
}
