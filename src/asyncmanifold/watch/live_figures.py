"""The figures of a run so far, one record at a time: the same for the page, for Prometheus and for sinks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from asyncmanifold.session.trace import PLACES, Record

EVENTS = frozenset(
    (
        *("failed", "rejected", "dropped", "resting", "joined", "left", "capped", "met"),
        *("changed", "control", "exploded", "back", "warning", "retired"),
    )
)
RECENT = 64
"""How many of the last updates count for the throughput."""
MEMORY = 30
"""About how many of the last updates count for the mean staleness."""
MOST_POINTS = 120
MOST_EVENTS = 40


@dataclass
class ClientFigures:
    """What a trace says about one client."""

    client: int
    node: int | None = None
    name: str = ""
    updates: int = 0
    failed: int = 0
    rejected: int = 0
    dropped: int = 0
    rests: int = 0
    rests_until: float = 0.0
    is_present: bool = True
    is_excluded: bool = False
    is_retired: bool = False
    """Whether it takes no further part: its privacy budget is spent."""
    last_time: float | None = None
    staleness: float = 0.0
    """The mean over its accepted updates."""
    train_seconds: float = 0.0
    """Of its last accepted update; 0 if it is withheld."""
    upload_bytes: float = 0.0
    download_bytes: float = 0.0
    epsilon: float | None = None
    reason: str = ""
    """Why its last job without an update was refused."""

    @property
    def failures(self) -> int:
        """All jobs without an update."""
        return self.failed + self.rejected + self.dropped


@dataclass
class Thinned:
    """A series of any length in at most ``MOST_POINTS`` points, each the mean of equally many values."""

    points: list[tuple[float, float]] = field(default_factory=list)
    width: int = 1
    _sum: float = 0.0
    _count: int = 0

    def add(self, place: float, value: float) -> None:
        """Add a value at its place on the horizontal axis."""
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self.width:
            return
        self.points.append((place, self._sum / self._count))
        self._sum, self._count = 0.0, 0
        if len(self.points) >= MOST_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(b[0], (a[1] + b[1]) / 2.0) for a, b in pairs]
            self.width *= 2


class LiveFigures:
    """Everything that is shown of one run, from its records in their order."""

    def __init__(self, total: int | None = None) -> None:
        """Begin with no records; ``total`` is how many updates are to be accepted, if it is known."""
        self.total = total
        self.done = 0
        self.version = 0
        self.time = 0.0
        """Of the last record: virtual in a simulation, in seconds on Flower."""
        self.metric: str | None = None
        self.score: float | None = None
        self.scores: list[tuple[float, float | None]] = []
        self.staleness = 0.0
        self.staleness_series, self.loss_series = Thinned(), Thinned()
        self.upload_bytes = self.download_bytes = 0.0
        self.has_bytes = False
        self.is_paused = False
        self.controls = 0
        self.clients: dict[int, ClientFigures] = {}
        self.counts = dict.fromkeys(("failed", "rejected", "dropped", "resting"), 0)
        self.events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._seen = 0

    @property
    def rate(self) -> float | None:
        """Accepted updates per second of wall time, over the last ``RECENT``."""
        if len(self._recent) < 2 or self._recent[-1] <= self._recent[0]:
            return None
        return (len(self._recent) - 1) / (self._recent[-1] - self._recent[0])

    @property
    def seconds_left(self) -> float | None:
        """Wall time until all updates are accepted, at the present rate."""
        rate = self.rate
        return None if rate is None or self.total is None else max(0, self.total - self.done) / rate

    @property
    def epsilon(self) -> float | None:
        """The largest ε that any client has spent, if clients count theirs."""
        return max((c.epsilon for c in list(self.clients.values()) if c.epsilon is not None), default=None)

    def add(self, record: Record) -> None:
        """Take one record into account."""
        kind = record["kind"]
        self.time = _number(record.get("time"), self.time)
        if kind in EVENTS:
            self.events.append({"kind": kind, "time": self.time, "text": event_text(record)})
        if kind == "evaluation":
            self._add_scores(record)
        elif kind == "control":
            self._add_control(record)
        elif kind == "changed" and record.get("key") == "run.updates":
            self.total = int(_number(record.get("to"), float(self.total or 0))) or self.total
        elif isinstance(record.get("client"), int) and len(self.clients) < 10**6:
            self._add_of_client(kind, record)

    def _add_scores(self, record: Record) -> None:
        if self.metric is None:
            self.metric = next((name for name in record if name not in PLACES), None)
        score = record.get(self.metric) if self.metric else None
        self.score = _number(score, 0.0) if isinstance(score, (int, float)) else None
        self.scores.append((_number(record.get("update"), 0.0), self.score))

    def _add_control(self, record: Record) -> None:
        self.controls += 1
        command, client = record.get("command"), record.get("client")
        if command in ("pause", "resume", "stop"):
            self.is_paused = command == "pause"
        elif command == "updates":
            self.total = int(_number(record.get("to"), float(self.total or 0)))
        elif command in ("exclude", "readmit") and isinstance(client, int):
            self._client(client).is_excluded = command == "exclude"

    def _add_of_client(self, kind: str, record: Record) -> None:
        client = self._client(record["client"])
        if isinstance(record.get("node"), int):
            client.node = record["node"]
        if isinstance(record.get("name"), str):
            client.name = record["name"]
        if kind == "update":
            self._add_update(client, record)
        elif kind in ("failed", "rejected", "dropped"):
            setattr(client, kind, getattr(client, kind) + 1)
            self.counts[kind] += 1
            client.reason = str(record.get("reason", "lost"))
        elif kind == "resting":
            client.rests += 1
            self.counts[kind] += 1
            client.rests_until = self.time + _number(record.get("seconds"), 0.0)
        elif kind in ("joined", "left"):
            client.is_present = kind == "joined"
            client.rests_until = 0.0
        client.is_retired = client.is_retired or kind == "retired"
        if isinstance(record.get("epsilon"), (int, float)):
            client.epsilon = max(client.epsilon or 0.0, float(record["epsilon"]))

    def _add_update(self, client: ClientFigures, record: Record) -> None:
        self.done = int(_number(record.get("update"), self.done + 1.0))
        self.version = int(_number(record.get("version"), float(self.version)))
        staleness = _number(record.get("staleness"), 0.0)
        # An exponential mean, so that only about the last updates count.
        self._seen = min(MEMORY, self._seen + 1)
        self.staleness += (staleness - self.staleness) / self._seen
        self.staleness_series.add(self.done, staleness)
        if (loss := _number(record.get("loss"), inf)) < inf:  # under local privacy it is withheld
            self.loss_series.add(self.done, loss)
        if isinstance(record.get("wall_seconds"), (int, float)):
            if self._recent and record["wall_seconds"] < self._recent[-1]:
                self._recent.clear()
            self._recent.append(float(record["wall_seconds"]))
        client.updates += 1
        client.staleness += (staleness - client.staleness) / client.updates
        client.train_seconds = _number(record.get("train_seconds"), 0.0)
        client.last_time, client.rests_until = self.time, 0.0
        for name in ("upload_bytes", "download_bytes"):
            if (count := _number(record.get(name), -1.0)) >= 0.0:
                self.has_bytes = True
                setattr(self, name, getattr(self, name) + count)
                setattr(client, name, getattr(client, name) + count)

    def _client(self, number: int) -> ClientFigures:
        return self.clients.setdefault(number, ClientFigures(number))


def event_text(record: Record) -> str:
    """Return an event as one line."""
    kind, said = record["kind"], record.get
    who = f"client {said('client')}{' (' + str(said('name')) + ')' if said('name') else ''}: "
    words = {
        "resting": f"rests for {_number(said('seconds'), 0.0):g} s",
        "capped": f"claims {said('examples')} examples, which count as {said('limit')}",
        "met": f"runs asyncmanifold {said('version')}",
        "changed": f"{said('key')} changed from {said('from')} to {said('to')}",
        "control": f"control: {said('text', said('command'))}",
        "retired": f"takes no further part: {said('reason')}",
        "back": f"went back to the model of update {said('to')}",
    }.get(kind) or f"{kind}{': ' + str(said('reason')) if said('reason') else ''}"
    return ((who if "client" in record and kind != "control" else "") + words)[:500]


def _number(value: Any, otherwise: float) -> float:
    """Return a value that can be drawn; another if it is none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e100
    return float(value) if is_number and isfinite(value) else otherwise
