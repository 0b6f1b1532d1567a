"""All runs below a directory, followed while they run: what the page and Prometheus show of them."""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from time import monotonic, time
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.session.live_jobs import NAME as LIVE
from asyncmanifold.watch.live_figures import ClientFigures, LiveFigures
from asyncmanifold.watch.trace_follower import TraceFollower

SEARCH_SECONDS = 5.0
"""How often to look for new runs."""
QUIET_SECONDS = 90.0
"""How long nothing may be written until a run that has not ended no longer counts as running."""
ALL_POINTS, MANY_POINTS = 600, 3_000
"""The most points of the scores of the chosen run, and of all runs together."""
MOST_CLIENTS = 500
LONGEST_FILE = 2**24


class FollowedRun:
    """One run's directory, read as far as it has been written."""

    def __init__(self, path: Path, place: str) -> None:
        self.path, self.place = path, place
        self._trace = TraceFollower(path / "trace.jsonl")
        self.figures = LiveFigures()
        self._config: dict[str, Any] = {"run": {}}
        self.summary: dict[str, Any] | None = None
        self.in_flight: dict[int, float] = {}
        """When each client that trains now was sent its job."""
        self.jobs_out = 0

    def follow(self) -> None:
        """Read what is new."""
        while self._trace.follow(self._start_over, lambda record: self.figures.add(record)):
            pass
        try:
            self.summary = json.loads(_read(self.path / "summary.json"))
        except (OSError, ValueError):
            self.summary = None
        self.in_flight, self.jobs_out = {}, 0
        if self.summary is None:
            with suppress(OSError, ValueError, TypeError, LookupError):
                live = json.loads(_read(self.path / LIVE))
                self.in_flight = {int(client): float(sent) for client, sent in live["jobs"]}
                self.jobs_out = int(live["count"])

    def _start_over(self) -> None:
        try:
            self._config = tomllib.loads(_read(self.path / "config.toml"))
        except (OSError, ValueError):
            self._config = {}
        if not isinstance(self._config.setdefault("run", {}), dict):
            self._config["run"] = {}
        total = self._config["run"].get("updates")
        self.figures = LiveFigures(total if isinstance(total, int) else None)

    @property
    def age(self) -> float:
        """Seconds since the run last wrote something."""
        written = 0.0
        for name in ("trace.jsonl", LIVE):
            try:
                written = max(written, (self.path / name).stat().st_mtime)
            except OSError:
                continue
        return max(0.0, time() - written)

    @property
    def state(self) -> str:
        """``finished``, ``stopped``, ``paused``, ``running``; or ``silent``: nothing is written any more."""
        if self.summary is not None:
            return "stopped" if self.summary.get("ended") == "stopped" else "finished"
        if self.figures.is_paused:
            return "paused"
        rate = self.figures.rate
        usual = 0.0 if rate is None else 20.0 / rate
        return "running" if self.age < max(QUIET_SECONDS, usual) else "silent"

    def brief(self, most_points: int = 0) -> dict[str, Any]:
        """Return the run in one row, with a coarse curve of its scores."""
        figures, state = self.figures, self.state
        run = self._config["run"]
        seed, target = run.get("seed"), run.get("target")
        return {
            "place": self.place,
            "scenario": str(self._config.get("scenario", "")),
            "method": str(self._config.get("method_name", "")),
            "seed": seed if isinstance(seed, int) else None,
            "target": target if isinstance(target, (int, float)) and isfinite(target) else None,
            "state": state,
            "age": round(self.age, 1),
            "time": figures.time,
            "done": figures.done,
            "total": figures.total,
            "metric": figures.metric,
            "score": figures.score,
            "scores": thin(figures.scores, most_points),
            "staleness": figures.staleness,
            "rate": figures.rate,
            "left": figures.seconds_left if state == "running" else None,
            "training": self.jobs_out,
            "clients": len(figures.clients),
            "failed": figures.counts["failed"],
            "rejected": figures.counts["rejected"],
            "dropped": figures.counts["dropped"],
            "rests": figures.counts["resting"],
            "upload": figures.upload_bytes if figures.has_bytes else None,
            "download": figures.download_bytes if figures.has_bytes else None,
            "epsilon": figures.epsilon,
            "controls": figures.controls,
            "ended": None if self.summary is None else self.summary.get("ended"),
        }

    def details(self) -> dict[str, Any]:
        """Return everything that is shown of one run."""
        figures = self.figures
        sent = self.in_flight
        known = figures.clients | {client: ClientFigures(client) for client in sent.keys() - figures.clients}
        is_real = any(client.node is not None for client in known.values())
        # On Flower time is wall time, and goes on after the last record.
        now = figures.time + (self.age if is_real and self.summary is None else 0.0)
        shown = sorted(known.values(), key=lambda c: (c.failures == 0, c.client))[:MOST_CLIENTS]
        rows = [
            {
                **asdict(client),
                "sent": sent.get(client.client),
                "rests_for": max(0.0, client.rests_until - now),
            }
            for client in sorted(shown, key=lambda client: client.client)
        ]
        return {
            "place": self.place,
            "is_real": is_real,
            "now": now,
            "scores": thin(figures.scores, ALL_POINTS),
            "staleness": figures.staleness_series.points,
            "loss": figures.loss_series.points,
            "clients": rows,
            "more_clients": len(known) - len(rows),
            "events": list(figures.events)[::-1],
        }


class FollowedRuns:
    """The runs in a directory or below it; new ones are found while it is watched."""

    def __init__(self, directory: Path) -> None:
        """Refuse a directory that does not exist; it may be empty still."""
        if not directory.is_dir():
            raise InputError(f"{directory}: no such directory")
        self.directory = directory.resolve()
        self._runs: dict[Path, FollowedRun] = {}
        self._searched = float("-inf")
        self._lock = threading.Lock()  # of this process's threads: files are never locked

    def follow(self) -> list[FollowedRun]:
        """Read what is new, and return all runs in the order of their places."""
        with self._lock:
            if monotonic() - self._searched > SEARCH_SECONDS:
                self._searched = monotonic()
                for path in sorted(self._find()):
                    if path not in self._runs:
                        inside = path.relative_to(self.directory)
                        self._runs[path] = FollowedRun(path, str(inside) if inside.parts else path.name)
            for run in self._runs.values():
                run.follow()
            return [self._runs[path] for path in sorted(self._runs)]

    def _find(self) -> Iterator[Path]:
        for trace in self.directory.rglob("trace.jsonl"):
            yield trace.parent

    def state(self, chosen: str | None) -> dict[str, Any]:
        """Return all runs in brief, and one in detail: the chosen one, or the first that is running."""
        runs = self.follow()
        going = next((run for run in runs if run.state in ("running", "paused")), runs[0] if runs else None)
        detailed = next((run for run in runs if run.place == chosen), going)
        return {
            "title": self.directory.name,
            "runs": [run.brief(max(20, MANY_POINTS // max(25, len(runs)))) for run in runs],
            "chosen": None if detailed is None else detailed.details(),
        }


def thin(points: list[tuple[float, float | None]], most: int) -> list[tuple[float, float | None]]:
    """Return at most ``most`` points, evenly chosen, the last one among them."""
    step = -(-len(points) // max(1, most)) or 1
    return points[::-1][::step][::-1]


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LONGEST_FILE).decode("utf-8", "replace")
