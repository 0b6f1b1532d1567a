"""When a client can be reached: intervals on the virtual clock, which may repeat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, inf

from asyncmanifold.errors import InputError


@dataclass(frozen=True)
class Availability:
    """Intervals [start, end) in which a client can be reached.

    Arguments:
        intervals: in ascending order, none touching another.
        period: the time after which they repeat; without one, they do not.

    >>> nights = Availability.of([(0, 6), (22, 24)], period=24)
    >>> nights.includes(23), nights.includes(49), nights.includes(12)
    (True, True, False)
    >>> nights.next_change(23)  # midnight is no change
    (30.0, 'left')
    """

    intervals: tuple[tuple[float, float], ...]
    period: float | None = None

    @classmethod
    def of(cls, intervals: Iterable[tuple[float, float]], period: float | None = None) -> Availability:
        """Check intervals, sort them, and join those that touch or overlap."""
        if period is not None and not 0.0 < period < inf:
            raise InputError(f"period is {period}, must be above 0 and finite")
        joined: list[tuple[float, float]] = []
        for start, end in sorted((float(start), float(end)) for start, end in intervals):
            if not 0.0 <= start < end < inf:
                raise InputError(
                    f"an interval is {[start, end]}, must start at 0 or later and end after that"
                )
            if period is not None and end > period:
                raise InputError(f"an interval ends at {end:g}, after the period of {period:g}")
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        return cls(tuple(joined), period)

    def includes(self, time: float) -> bool:
        """Return whether the client can be reached at this time."""
        place = time if self.period is None else time % self.period
        return any(start <= place < end for start, end in self.intervals)

    def next_change(self, time: float) -> tuple[float, str] | None:
        """Return when the client comes or goes next after ``time``, as 'joined' or 'left'; None if never."""
        period = self.period or 0.0
        first = max(0, floor(time / period) - 1) if period else 0
        for turn in range(first, first + 4 if period else 1):
            for start, end in self.intervals:
                for moment, kind in ((start, "joined"), (end, "left")):
                    is_seam = self._wraps and moment in (0.0, period)
                    if turn * period + moment > time and not is_seam:
                        return turn * period + moment, kind
        return None

    @property
    def _wraps(self) -> bool:
        """Whether the last interval goes on in the first one of the next period."""
        return bool(self.intervals) and self.intervals[0][0] == 0.0 and self.intervals[-1][1] == self.period
