"""How the global learning rate η_g changes over a run (the paper's η_g^τ, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

from asyncmanifold.checks import check
from asyncmanifold.server.stages import Part


@dataclass(frozen=True)
class RateSchedule(Part):
    """Leaves η_g as it is. Subclasses override ``factor``.

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import Method, RateSchedule
    >>> @dataclass(frozen=True)
    ... class HalfFrom100(RateSchedule):
    ...     def factor(self, version):
    ...         return 0.5 if version >= 100 else 1.0
    >>> Method(rate_schedule=HalfFrom100()).rate_schedule.factor(120)
    0.5
    """

    def factor(self, version: int) -> float:
        """Return the factor of η_g for a step from this version of the model."""
        return 1.0


@dataclass(frozen=True)
class FixedRate(RateSchedule):
    """η_g^τ = η_g.

    >>> from asyncmanifold import FixedRate
    >>> FixedRate().factor(50)
    1.0
    """


@dataclass(frozen=True)
class DecayingRate(RateSchedule):
    """η_g^τ = η_g (1 + τ/decay_period)^(−decay_power).

    Arguments:
        decay_period: versions until the base of the power has doubled.
        decay_power: 0.5 falls like 1/√τ, as the convergence theorem's local rate does; 1 like 1/τ.

    >>> from asyncmanifold import DecayingRate
    >>> DecayingRate(decay_period=100, decay_power=0.5).factor(300)
    0.5
    """

    decay_period: int = 100
    decay_power: float = 0.5

    def __post_init__(self) -> None:
        check(self, decay_period="at least 1", decay_power="at least 0 and finite")

    def factor(self, version: int) -> float:
        return float((1.0 + version / self.decay_period) ** -self.decay_power)


@dataclass(frozen=True)
class CyclicRate(RateSchedule):
    """η_g^τ falls from η_g to cycle_low · η_g over every cycle, then starts anew (Izmailov et al. 2018).

    For stochastic weight averaging: with ``average_every`` equal to the cycle, and ``average_from`` a
    multiple of it, the models averaged are those at the end of each cycle, where the rate is lowest.

    Arguments:
        cycle_length: versions per cycle.
        cycle_low: the last factor of a cycle, between 0 and 1.

    >>> from asyncmanifold import CyclicRate
    >>> [CyclicRate(cycle_length=3, cycle_low=0.2).factor(version) for version in range(4)]
    [1.0, 0.6, 0.2, 1.0]
    """

    cycle_length: int = 10
    cycle_low: float = 0.1

    def __post_init__(self) -> None:
        check(self, cycle_length="at least 2", cycle_low="between 0 and 1")

    def factor(self, version: int) -> float:
        share = version % self.cycle_length / (self.cycle_length - 1)
        return (1.0 - share) + share * self.cycle_low


RATE_SCHEDULES: dict[str, type[RateSchedule]] = {
    "fixed": FixedRate,
    "decaying": DecayingRate,
    "cyclic": CyclicRate,
}
