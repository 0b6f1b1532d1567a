"""When clients arrive: latency models and the two schedules, on one virtual clock.

The unit of time is one epoch over the mean client's examples at normal speed. A job's *length* is its
epochs times its client's examples divided by the mean; a latency model turns it into a duration. With devices
(``device_traces.py``) the unit is a second. Bytes take time where bandwidth is limited.
"""

from __future__ import annotations

import csv
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from math import exp, inf, pi, sqrt
from pathlib import Path
from typing import ClassVar, Literal

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.simulation.attacks import Attack
from asyncmanifold.simulation.availability import Availability


@dataclass(frozen=True)
class Latency:
    """Every client works at normal speed: a job takes its length. Subclasses override what differs."""

    is_in_seconds: ClassVar[bool] = False
    """Whether durations are seconds of devices with bandwidths and hours of their own."""

    def expected(self, length: float, client: int, seed: int) -> float:
        """Return how long the client is expected to take."""
        return length

    def duration(self, length: float, client: int, number: int, seed: int) -> float:
        """Return how long the client takes for the job with this dispatch number."""
        return self.expected(length, client, seed)

    def transfer(self, client: int, download: int, upload: int, seed: int) -> float:
        """Return how long the client takes to receive and to send so many bytes."""
        return 0.0

    def availability(self, client: int, seed: int) -> Availability | None:
        """Return when the client can be reached; None if always."""
        return None


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


LATENCIES: dict[str, type[Latency] | str] = {
    "constant": ConstantLatency,
    "lognormal": LogNormalLatency,
    "classes": ClassesLatency,
    "recorded": RecordedLatency,
    "devices": "asyncmanifold.simulation.device_traces:DeviceTraces",
    "synthetic-devices": "asyncmanifold.simulation.device_traces:SyntheticDevices",
}
"""Latency models by name; a place stands for a class that is imported when it is used."""


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
        bandwidth_up: bytes of an update that a client sends per unit of time; by default, that takes no time.
        bandwidth_down: the same for the model that it receives.
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
    bandwidth_up: float | None = None
    bandwidth_down: float | None = None
    claim_limit: float | None = None
    attack: Attack | None = None

    def __post_init__(self) -> None:
        check(self, kind="'queue' or 'clock'", concurrency="at least 1", drop_probability="in [0, 1)")
        check(self, claim_limit="at least 1 and finite")
        check(self, late_fraction="between 0 and 1", leave_fraction="between 0 and 1")
        check(self, bandwidth_up="above 0 and finite", bandwidth_down="above 0 and finite")
        if self.latency.is_in_seconds:
            self._check_devices()
        for name in ("late", "leave"):
            joins_or_leaves = getattr(self, f"{name}_fraction") > 0.0
            check(
                self, **{f"{name}_by": "above 0 and finite" if joins_or_leaves else "at least 0 and finite"}
            )

    def _check_devices(self) -> None:
        if self.kind != "clock":
            raise InputError(f"Schedule(kind={self.kind!r}) must be 'clock': devices take seconds")
        for name in ("late_fraction", "leave_fraction", "bandwidth_up", "bandwidth_down"):
            if getattr(self, name):
                raise InputError(f"Schedule({name}={getattr(self, name)}): devices have their own")

    @property
    def has_bandwidth(self) -> bool:
        """Whether bytes take time."""
        return self.latency.is_in_seconds or (self.bandwidth_up or self.bandwidth_down) is not None

    def transfer(self, client: int, download: int, upload: int, seed: int) -> float:
        """Return how long a client takes to receive a model and to send an update of so many bytes."""
        if self.latency.is_in_seconds:
            return self.latency.transfer(client, download, upload, seed)
        return download / (self.bandwidth_down or inf) + upload / (self.bandwidth_up or inf)

    def duration(
        self,
        length: float,
        mean_length: float,
        client: int,
        number: int,
        seed: int,
        transfer: float = 0.0,
    ) -> float:
        """Return the virtual time between a job's dispatch and its arrival; ``transfer`` is part of it."""
        if self.kind == "clock":
            return self.latency.duration(length, client, number, seed) + transfer
        expected = self.latency.expected(length, client, seed) + transfer
        draw = derive(seed, Purpose.LATENCY, client, number).standard_exponential()
        return sqrt(4.0 / pi * expected * mean_length * draw)

    def is_lost(self, client: int, number: int, seed: int) -> bool:
        """Return whether this job never arrives."""
        if self.drop_probability == 0.0:
            return False
        return bool(derive(seed, Purpose.DROP, client, number).random() < self.drop_probability)

    def membership(self, clients: int, seed: int) -> tuple[list[int], list[tuple[float, str, int]]]:
        """Return the clients present at first, and (time, 'joined' or 'left', client) for every change."""
        if self.latency.is_in_seconds:
            return self._device_membership(clients, seed)
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

    def _device_membership(self, clients: int, seed: int) -> tuple[list[int], list[tuple[float, str, int]]]:
        """Return who can be reached at first, and the first change of every client."""
        hours = {client: self.latency.availability(client, seed) for client in range(clients)}
        present = [client for client, known in hours.items() if known is None or known.includes(0.0)]
        changes = [self.next_change(0.0, client, seed) for client in range(clients)]
        return present, sorted(change for change in changes if change is not None)

    def next_change(self, time: float, client: int, seed: int) -> tuple[float, str, int] | None:
        """Return when a client's device comes or goes next after ``time``; None if never."""
        hours = self.latency.availability(client, seed)
        change = None if hours is None else hours.next_change(time)
        return None if change is None else (*change, client)
