"""Answers to delay and to differences in speed: shorter steps, rescaled steps, discarding and cancelling."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from asyncmanifold.checks import check
from asyncmanifold.server.gates import Gate
from asyncmanifold.server.penalties import Constant, Hinge, Polynomial, Staleness
from asyncmanifold.server.protocol import Discarded
from asyncmanifold.server.stages import Arrival, Memory


@dataclass(frozen=True)
class DelayAdaptive(Staleness):
    """s(τ) = 1 up to τ_c, then τ_c/τ (Koloskova et al. 2022; Mishchenko et al. 2022).

    Arguments:
        usual_delay: τ_c; by default the number of clients, which is the mean delay if all are always at work.

    >>> from asyncmanifold import DelayAdaptive
    >>> [DelayAdaptive(4).factor(staleness) for staleness in (3, 4, 8)]
    [1.0, 1.0, 0.5]
    """

    usual_delay: int | None = None

    def __post_init__(self) -> None:
        check(self, usual_delay="at least 1")

    def weigh(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        usual = arrival.clients if self.usual_delay is None else self.usual_delay
        return min(1.0, usual / max(1, arrival.staleness)), memory

    def factor(self, staleness: int) -> float:
        """Return the factor; without ``usual_delay`` that of a single client."""
        return min(1.0, (self.usual_delay or 1) / max(1, staleness))


@dataclass(frozen=True)
class SpeedRescaled(Staleness):
    """A client's factor is T_i/T̄: in a cycle all contribute alike, however fast (Mahran et al. 2026).

    T_i is the moving average of its times from dispatch to arrival, T̄ their mean over the clients that have
    sent an update.

    Arguments:
        duration_momentum: the weight of the latest job in T_i.

    >>> from asyncmanifold import METHODS
    >>> METHODS["rescaled"].staleness
    SpeedRescaled(duration_momentum=0.5)
    """

    duration_momentum: float = 0.5

    def __post_init__(self) -> None:
        check(self, duration_momentum="between 0 and 1")

    def init(self, theta: object) -> Memory:
        return {"durations": {}, "total": 0.0}

    def weigh(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        known, took = memory["durations"], arrival.situation.duration
        before = known.get(arrival.client)
        mine = took if before is None else before + self.duration_momentum * (took - before)
        total = memory["total"] + mine - (before or 0.0)
        durations = {**known, arrival.client: mine}
        factor = mine * len(durations) / total if total > 0.0 else 1.0
        return factor, {"durations": durations, "total": total}


@dataclass(frozen=True)
class DelayLimit(Gate):
    """Discards updates from a model that is ``discard_from`` or more versions old (Ringmaster ASGD, 2025).

    A discarded update is no failure of its client.

    Arguments:
        discard_from: R, at least 1.
        cancels: in a simulation, stop a job when its model is R versions old, and start its client again
            from the current one at once. On Flower a running job cannot be stopped: it is discarded later.

    >>> from asyncmanifold import METHODS
    >>> METHODS["ringmaster"].gates
    (DelayLimit(discard_from=30, cancels=True),)
    """

    discard_from: int = 30
    _: KW_ONLY
    cancels: bool = True

    def __post_init__(self) -> None:
        check(self, discard_from="at least 1")

    @property
    def cancel_from(self) -> int | None:
        return self.discard_from if self.cancels else None

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        if arrival.staleness >= self.discard_from:
            raise Discarded(f"staleness {arrival.staleness} has reached the limit {self.discard_from}")
        return 1.0, memory


STALENESS: dict[str, type[Staleness]] = {
    "constant": Constant,
    "polynomial": Polynomial,
    "hinge": Hinge,
    "delay-adaptive": DelayAdaptive,
    "speed-rescaled": SpeedRescaled,
}
