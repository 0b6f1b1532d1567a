"""Penalties scale a step by distance and by staleness; adaptive epochs change the size of the next job."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import floor
from typing import Literal

from asyncmanifold.checks import check
from asyncmanifold.server.stages import Arrival, Memory, Part
from asyncmanifold.server.workloads import EpochRule, FinishedJob


@dataclass(frozen=True)
class Penalty(Part):
    """Scales no step. Subclasses override ``scale``, or ``weigh`` if they need the update or a memory.

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import Method, Penalty
    >>> @dataclass(frozen=True)
    ... class Halved(Penalty):
    ...     def scale(self, end_norm, drift_norm, updates):
    ...         return 0.5
    >>> Method(penalty=Halved()).penalty.scale(1.0, 1.0, 0)
    0.5
    """

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

    S is 1 if there is no drift. In the first ``warmup`` updates ‖d‖/‖v'_n‖ counts as the γ̄ of the method's
    adaptive epochs, 1 without them: with a decay of 1, S is then 1/γ̄ (the paper's appendix, FEMNIST).

    Arguments:
        decay: the paper's α, between 0 (no penalty) and 1.
        warmup: updates before the penalty begins.
        lowest: the lower bound of S, at most 1.
        highest: the upper bound of S, at least 1; without one, a tiny drift would make S arbitrarily large.

    >>> from asyncmanifold import Distance
    >>> Distance(1.0).scale(end_norm=1.0, drift_norm=4.0, updates=0)
    0.25
    """

    decay: float = 1.0
    _: KW_ONLY
    warmup: int = 0
    lowest: float = 0.0
    highest: float = 10.0

    def __post_init__(self) -> None:
        check(
            self, decay="between 0 and 1", warmup="at least 0", lowest="between 0 and 1", highest="at least 1"
        )

    def weigh(
        self, end_norm: float, drift_norm: float, arrival: Arrival, memory: Memory
    ) -> tuple[float, Memory]:
        """Return S, in the warm-up for a drift of γ̄ times the end point."""
        if arrival.updates < self.warmup:
            end_norm, drift_norm = 1.0, arrival.target_ratio
        return self.scale(end_norm, drift_norm, arrival.updates), memory

    def scale(self, end_norm: float, drift_norm: float, updates: int) -> float:
        """Return S after the warm-up."""
        if drift_norm <= 0.0:
            return 1.0
        return min(self.highest, max(self.lowest, 1.0 + self.decay * (end_norm / drift_norm - 1.0)))


@dataclass(frozen=True)
class Staleness(Part):
    """A factor of the step that depends on staleness, constant 1 unless overridden.

    Subclasses override ``factor``, or ``weigh`` if they need the update or a memory.

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import Method, Staleness
    >>> @dataclass(frozen=True)
    ... class Cutoff(Staleness):
    ...     def factor(self, staleness):
    ...         return 1.0 if staleness < 10 else 0.1
    >>> Method(staleness=Cutoff()).staleness.factor(12)
    0.1
    """

    def weigh(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        """Return the factor and the new memory."""
        return self.factor(arrival.staleness), memory

    def factor(self, staleness: int) -> float:
        """Return the factor in (0, 1] for a staleness; a pure function."""
        return 1.0


@dataclass(frozen=True)
class Constant(Staleness):
    """s(τ) = 1.

    >>> from asyncmanifold import Constant
    >>> Constant().factor(7)
    1.0
    """


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s(τ) = (1 + τ)^(−exponent) (FedAsync, section 5.2); 0.5 is FedBuff's 1/√(1 + τ).

    Arguments:
        exponent: at least 0.

    >>> from asyncmanifold import Polynomial
    >>> Polynomial(0.5).factor(3)
    0.5
    """

    exponent: float = 0.5

    def __post_init__(self) -> None:
        check(self, exponent="at least 0 and finite")

    def factor(self, staleness: int) -> float:
        """Return (1 + staleness)^(−exponent)."""
        return float((1.0 + staleness) ** -self.exponent)


@dataclass(frozen=True)
class Hinge(Staleness):
    """s(τ) = 1 up to ``delay``, then 1/(slope · (τ − delay) + 1) (FedAsync, section 5.2).

    Arguments:
        slope: how fast the factor falls, above 0.
        delay: the staleness up to which it is 1.

    >>> from asyncmanifold import Hinge
    >>> Hinge(slope=1.0, delay=4).factor(5)
    0.5
    """

    slope: float = 10.0
    delay: int = 4

    def __post_init__(self) -> None:
        check(self, slope="above 0 and finite", delay="at least 0")

    def factor(self, staleness: int) -> float:
        """Return 1 or the hinge's falling branch."""
        return 1.0 / (self.slope * max(0, staleness - self.delay) + 1.0)


@dataclass(frozen=True)
class AdaptiveEpochs(EpochRule):
    """K ← max(1, K + ⌊(γ̄ − γ) · κ⌋) with γ = ‖d‖/‖v‖ (AsyncFedED, arXiv 2205.13797).

    A client whose base model has drifted far, relative to its own update, gets fewer epochs, others more.
    Rounded down, K can grow only with γ̄ · κ above 1: at the paper's γ̄ = κ = 1 it grows at γ = 0 alone. The
    timings that AsyncFedED's authors published (there is no code) show K growing; docs/design.md has what is
    known. ``epoch_rounding="nearest"`` lets K grow from γ ≤ γ̄ − ½/κ on.

    Arguments:
        target_ratio: γ̄.
        gain: κ.
        adapt_after: K does not change in the first ``adapt_after`` updates.
        max_epochs: K never exceeds this, a bound that the original does not have.
        epoch_rounding: how (γ̄ − γ) · κ becomes a whole number, ``"down"`` or to the ``"nearest"``.

    >>> from asyncmanifold import AdaptiveEpochs
    >>> AdaptiveEpochs(3.0, adapt_after=0).next(epochs=2, drift_norm=1.0, update_norm=1.0, updates=0)
    4
    """

    target_ratio: float = 1.0  # type: ignore[misc]  # a setting here
    _: KW_ONLY
    gain: float = 1.0
    adapt_after: int = 10
    max_epochs: int = 10
    epoch_rounding: Literal["down", "nearest"] = "down"

    def __post_init__(self) -> None:
        check(self, target_ratio="above 0 and finite", gain="at least 0 and finite")
        check(self, adapt_after="at least 0", max_epochs="at least 1", epoch_rounding="'down' or 'nearest'")

    def plan(self, job: FinishedJob, memory: Memory) -> tuple[int, Memory]:
        return self.next(job.point_epochs, job.drift_norm, job.update_norm, job.updates), memory

    def next(self, epochs: int, drift_norm: float, update_norm: float, updates: int) -> int:
        """Return the epochs of a client's next job."""
        change = 0.0
        if updates >= self.adapt_after and update_norm > 0.0:
            change = (self.target_ratio - drift_norm / update_norm) * self.gain
            change += 0.5 if self.epoch_rounding == "nearest" else 0.0
        return min(self.max_epochs, max(1, epochs + floor(max(change, -float(epochs)))))


PENALTIES: dict[str, type[Penalty]] = {"distance": Distance}
