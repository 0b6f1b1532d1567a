"""When clients arrive: latency models and the two schedules, on one virtual clock.

The unit of time is one epoch over the mean client's examples at normal speed. A job's *length* is its
epochs times its client's examples divided by the mean; a latency model turns it into a duration.
"""

from __future__ import annotations

import csv
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from math import exp, pi, sqrt
from pathlib import Path
from typing import Literal

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.simulation.attacks import Attack


@dataclass(frozen=True)
class Latency:
    """Every client works at normal speed: a job takes its length. Subclasses override both methods."""

    def expected(self, length: float, client: int, seed: int) -> float:
        """Return how long the client is expected to take."""
        return length

    def duration(self, length: float, client: int, number: int, seed: int) -> float:
        """Return how long the client takes for the job with this dispatch number."""
        return self.expected(length, client, seed)


@dataclass(frozen=True)
class ConstantLatency(Latency):
    """A job takes its length.

    >>> from asyncmanifold import ConstantLatency
    >>> ConstantLatency().duration(2.0, client=0, number=0, seed=0)
    2.0
    """


@dataclass(frozen=True)
class LogNormalLatency(Latency):
    """Clients' speeds differ by a log-normal factor, and so do the jobs of one client.

    Arguments:
        spread: the standard deviation of the logarithm of a client's factor.
        jitter: the same for a job's factor.

    >>> from asyncmanifold import LogNormalLatency
    >>> LogNormalLatency(spread=0.0, jitter=0.0).duration(2.0, client=0, number=0, seed=0)
    2.0
    """

    spread: float = 0.5
    jitter: float = 0.1

    def __post_init__(self) -> None:
        check(self, spread="between 0 and 10", jitter="between 0 and 10")

    def expected(self, length: float, client: int, seed: int) -> float:
        """Return the length times the client's factor."""
        return length * exp(self.spread * derive(seed, Purpose.SPEED, client).standard_normal())

    def duration(self, length: float, client: int, number: int, seed: int) -> float:
        """Return the expected time times the job's factor."""
        factor = exp(self.jitter * derive(seed, Purpose.LATENCY, client, number).standard_normal())
        return self.expected(length, client, seed) * factor


@dataclass(frozen=True)
class ClassesLatency(Latency):
    """A fraction of the clients is slower by a factor; the others have normal speed.

    Arguments:
        slow_fraction: the chance that a client is slow.
        slow_factor: how much slower, at least 1.

    >>> from asyncmanifold import ClassesLatency
    >>> ClassesLatency(slow_fraction=1.0, slow_factor=5.0).expected(2.0, client=0, seed=0)
    10.0
    """

    slow_fraction: float = 0.3
    slow_factor: float = 5.0

    def __post_init__(self) -> None:
        check(self, slow_fraction="between 0 and 1", slow_factor="at least 1 and finite")

    def expected(self, length: float, client: int, seed: int) -> float:
        """Return the length, times the factor for a slow client."""
        slow = derive(seed, Purpose.SPEED, client).random() < self.slow_fraction
        return length * (self.slow_factor if slow else 1.0)


@dataclass(frozen=True)
class RecordedLatency(Latency):
    """Durations measured elsewhere: a CSV file with the columns ``client`` and ``duration``.

    Each job takes a random one of its client's recorded durations, whatever the job's length. If there are
    more clients than recorded ones, they start over from the first.

    Arguments:
        path: the file.

    >>> import pathlib, tempfile
    >>> from asyncmanifold import RecordedLatency
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "durations.csv")
    ...     _ = path.write_text("client,duration\\n0,3.5\\n")
    ...     RecordedLatency(str(path)).expected(1.0, client=0, seed=0)
    3.5
    """

    path: str

    def __post_init__(self) -> None:
        _ = self._durations  # so that a bad file is an error now, not in the middle of a run

    @cached_property
    def _durations(self) -> list[list[float]]:
        recorded: dict[str, list[float]] = {}
        try:
            with Path(self.path).open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    duration = float(row["duration"])
                    if not 0.0 < duration < float("inf"):
                        raise InputError(f"duration {duration} must be above 0 and finite")
                    recorded.setdefault(row["client"], []).append(duration)
        except OSError as error:
            raise InputError(f"RecordedLatency(path={self.path!r}): {error.strerror}") from error
        except KeyError as error:
            raise InputError(f"RecordedLatency(path={self.path!r}) must have a column {error}") from error
        except (TypeError, ValueError) as error:
            raise InputError(f"RecordedLatency(path={self.path!r}): {error}") from error
        if not recorded:
            raise InputError(f"RecordedLatency(path={self.path!r}) must have at least one row")
        return list(recorded.values())

    def expected(self, length: float, client: int, seed: int) -> float:
        """Return the mean of the client's recorded durations."""
        durations = self._durations[client % len(self._durations)]
        return sum(durations) / len(durations)

    def duration(self, length: float, client: int, number: int, seed: int) -> float:
        """Return one of the client's recorded durations."""
        durations = self._durations[client % len(self._durations)]
        return durations[int(derive(seed, Purpose.LATENCY, client, number).integers(len(durations)))]


LATENCIES: dict[str, type[Latency]] = {
    "constant": ConstantLatency,
    "lognormal": LogNormalLatency,
    "classes": ClassesLatency,
    "recorded": RecordedLatency,
}


@dataclass(frozen=True)
class Schedule:
    """When each client's updates arrive.

    ``clock``: a job arrives when its latency model says. ``queue``, the paper's: whenever an update is
    due, the next client is drawn with probability proportional to its waiting time over its expected
    training length. That is the same event heap with another waiting time. If client i's chance of
    arriving in the next moment is c · waiting_i / length_i, then, given that a client arrives, it is
    client i with exactly that probability; and such a waiting time is Rayleigh distributed, so it can be
    drawn when the job is dispatched: waiting = √(4/π · length_i · mean length · E), E ~ Exp(1).

    Arguments:
        kind: ``"queue"`` or ``"clock"``.
        latency: how long clients take.
        concurrency: the most jobs in flight; by default one per client.
        drop_probability: the chance that a job is lost on its way; its client then waits for a new one.
        late_fraction: the share of clients that join late, at a time drawn from [0, ``late_by``].
        late_by: when the last of them has joined.
        leave_fraction: the share of clients that leave for good, at a time drawn from [0, ``leave_by``].
        leave_by: when the last of them has left.
        claim_limit: a client's examples count up to this multiple of the median number that clients claim; by
            default without a limit.
        attack: what hostile clients do, if there are any.

    >>> from asyncmanifold import ClassesLatency, Schedule
    >>> Schedule("clock", latency=ClassesLatency(0.3, 5.0), concurrency=8).kind
    'clock'
    """

    kind: Literal["queue", "clock"] = "queue"
    _: KW_ONLY
    latency: Latency = field(default_factory=ConstantLatency)
    concurrency: int | None = None
    drop_probability: float = 0.0
    late_fraction: float = 0.0
    late_by: float = 0.0
    leave_fraction: float = 0.0
    leave_by: float = 0.0
    claim_limit: float | None = None
    attack: Attack | None = None

    def __post_init__(self) -> None:
        check(self, kind="'queue' or 'clock'", concurrency="at least 1", drop_probability="in [0, 1)")
        check(self, claim_limit="at least 1 and finite")
        check(self, late_fraction="between 0 and 1", leave_fraction="between 0 and 1")
        for name in ("late", "leave"):
            joins_or_leaves = getattr(self, f"{name}_fraction") > 0.0
            check(
                self, **{f"{name}_by": "above 0 and finite" if joins_or_leaves else "at least 0 and finite"}
            )

    def duration(self, length: float, mean_length: float, client: int, number: int, seed: int) -> float:
        """Return the virtual time between a job's dispatch and its arrival."""
        if self.kind == "clock":
            return self.latency.duration(length, client, number, seed)
        expected = self.latency.expected(length, client, seed)
        draw = derive(seed, Purpose.LATENCY, client, number).standard_exponential()
        return sqrt(4.0 / pi * expected * mean_length * draw)

    def is_lost(self, client: int, number: int, seed: int) -> bool:
        """Return whether this job never arrives."""
        if self.drop_probability == 0.0:
            return False
        return bool(derive(seed, Purpose.DROP, client, number).random() < self.drop_probability)

    def membership(self, clients: int, seed: int) -> tuple[list[int], list[tuple[float, str, int]]]:
        """Return the clients present at first, and (time, 'joined' or 'left', client) for every change."""
        if self.late_fraction == 0.0 and self.leave_fraction == 0.0:
            return list(range(clients)), []
        present, changes = [], []
        for client in range(clients):
            is_late, leaves, late, leave = derive(seed, Purpose.MEMBERSHIP, client).random(4)
            joined = self.late_by * late if is_late < self.late_fraction else 0.0
            if joined > 0.0:
                changes.append((joined, "joined", client))
            else:
                present.append(client)
            if leaves < self.leave_fraction:
                changes.append((max(joined, self.leave_by * leave), "left", client))
        return present, sorted(changes)
