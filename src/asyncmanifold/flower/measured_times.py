"""How long a node's jobs take, and what follows from it where the policy leaves it open.

Both rules are functions of the node's own last jobs. What a node says about its training time can only change
how many jobs that node has, 1 or 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

LAST = 8
"""How many of a node's last jobs count."""
LEAST = 2
"""How many must be known before anything follows from them."""
SHORTEST_DEADLINE, LONGEST_DEADLINE = 600.0, 43_200.0
"""Bounds of a deadline, in seconds; the second is Flower's own, which holds until a node's jobs are known."""
PATIENT = 10.0
"""A deadline is this many times the longest of the last jobs."""
WORTH_SECONDS, WORTH_SHARE = 1.0, 1.0 / 3.0
"""A second job is worth its staleness if a round trip costs at least so much besides training: in seconds,
and as a share of the time in training."""


class MeasuredTimes:
    """The times of one node's last accepted jobs.

    >>> times = MeasuredTimes()
    >>> times.deadline, times.queue_depth
    (None, 1)
    >>> for _ in range(2):
    ...     times.add(round_trip=100.0, training=70.0, was_free=True)
    >>> times.deadline, times.queue_depth
    (1000.0, 2)
    """

    def __init__(self, packed: Sequence[Sequence[float]] = ((), (), ())) -> None:
        """Begin with nothing known, or with what ``pack`` returned."""
        round_trips, trainings, overheads = packed
        self._round_trips = deque(round_trips, LAST)
        self._trainings = deque(trainings, LAST)
        self._overheads = deque(overheads, LAST)

    def add(self, round_trip: float, training: float, *, was_free: bool) -> None:
        """Count a job; only of one that was sent to a free node is the rest of the time Flower's cost."""
        training = min(max(0.0, training), round_trip)
        self._round_trips.append(round_trip)
        self._trainings.append(training)
        if was_free:
            self._overheads.append(round_trip - training)

    @property
    def deadline(self) -> float | None:
        """Seconds after which a job of this node has failed; None until its jobs are known."""
        if len(self._round_trips) < LEAST:
            return None
        return min(LONGEST_DEADLINE, max(SHORTEST_DEADLINE, PATIENT * max(self._round_trips)))

    @property
    def queue_depth(self) -> int:
        """How many jobs this node should have at a time."""
        if len(self._overheads) < LEAST:
            return 1
        overhead, training = median(self._overheads), median(self._trainings)
        return 2 if overhead >= max(WORTH_SECONDS, WORTH_SHARE * training) else 1

    def pack(self) -> list[list[float]]:
        """Return what a checkpoint holds."""
        return [list(self._round_trips), list(self._trainings), list(self._overheads)]
