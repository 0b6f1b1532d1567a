"""What the records of a trace add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from asyncmanifold.session.trace import Record


class Tally:
    """Counts and sums over the records of a trace, and its evaluations."""

    def __init__(self, trace: Iterable[Record]) -> None:
        self.evaluations: list[Record] = []
        self._counts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()  # over accepted updates
        self._admitted = {True: Counter[bool](), False: Counter[bool]()}  # hostile or not: accepted or not
        self._lost = 0
        self._wall_seconds = 0.0
        for record in trace:
            self._include(record)

    @property
    def updates(self) -> int:
        """The number of accepted updates."""
        return self._counts["update"]

    def mean(self, field: str) -> float:
        """Return the mean of a field over all accepted updates."""
        return float(self._sums[field] / max(1, self.updates))

    def facts(self) -> dict[str, Any]:
        """Return what became of the jobs, and what they took."""
        admitted, counts = self._admitted, self._counts
        return {
            **{kind: counts[kind] for kind in ("rejected", "failed", "dropped", "discarded", "cancelled")},
            "lost": self._lost,
            "controls": counts["control"],
            "hostile_admitted": _share(admitted[True]),
            "honest_admitted": _share(admitted[False]) if admitted[True] else None,
            "upload_bytes": self._sums["upload_bytes"] or None,
            "download_bytes": self._sums["download_bytes"] or None,
            "train_seconds": float(self._sums["train_seconds"]),
            "wall_seconds": self._wall_seconds,
        }

    def _include(self, record: Record) -> None:
        kind = record["kind"]
        self._counts[kind] += 1
        self._wall_seconds = record.get("wall_seconds", self._wall_seconds)
        if kind in ("update", "rejected"):
            self._admitted[record.get("hostile", False)][kind == "update"] += 1
        if kind == "update":
            for field in ("staleness", "fraction", "train_seconds"):
                self._sums[field] += record[field]
            for field in ("upload_bytes", "download_bytes"):  # which earlier versions did not record
                self._sums[field] += record.get(field, 0)
        elif kind == "evaluation":
            self.evaluations.append(record)
        elif kind == "left":
            self._lost += "job" in record


def _share(accepted: Counter[bool]) -> float | None:
    """Return the share of arrivals that were accepted, None if there were none."""
    return accepted[True] / accepted.total() if accepted else None
