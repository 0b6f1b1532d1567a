"""The summary of a run, computed from its trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import Any

from asyncmanifold.metrics import first_reaching, gini, theil
from asyncmanifold.session.trace import Record

Summary = dict[str, Any]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean, and the standard deviation if there are at least two values."""
    return mean(values), stdev(values) if len(values) > 1 else None


def summarise(
    trace: Iterable[Record],
    *,
    metrics: Sequence[str],
    target: float | None,
    per_client: Sequence[float | None] | None,
    validation: float | None,
) -> Summary:
    """Return the numbers of a finished run; the first of ``metrics`` is the reported one.

    ``per_client`` holds the best model's score on each client's validation data; Gini and Theil are
    computed from it. ``validation`` is the final model's score on all of that data.
    """
    counts: Counter[str] = Counter()
    evaluations: list[Record] = []
    staleness = 0
    train_seconds = wall_seconds = 0.0
    for record in trace:
        counts[record["kind"]] += 1
        wall_seconds = record.get("wall_seconds", wall_seconds)
        if record["kind"] == "update":
            staleness += record["staleness"]
            train_seconds += record["train_seconds"]
        elif record["kind"] == "evaluation":
            evaluations.append(record)
    metric = metrics[0] if metrics else "none"
    last = evaluations[-1] if evaluations else {}
    scored = [record for record in evaluations if record.get(metric) is not None]
    known = [score for score in per_client or [] if score is not None]

    def reached(place: str) -> float | None:
        if target is None:
            return None
        return first_reaching(target, ((record[place], record[metric]) for record in scored))

    return {
        "updates": counts["update"],
        "versions": last.get("version"),
        "metric": metric,
        "final": last.get(metric),
        "scores": {name: last.get(name) for name in metrics},
        "validation": validation,
        "best": max((record[metric] for record in scored), default=None),
        "target": target,
        "rounds_to_target": reached("update"),
        "time_to_target": reached("time"),
        "virtual_time": last.get("time"),
        "gini": gini(known),
        "theil": theil(known),
        "per_client": per_client,
        "staleness_mean": staleness / max(1, counts["update"]),
        "rejected": counts["rejected"],
        "failed": counts["failed"],
        "dropped": counts["dropped"],
        "train_seconds": train_seconds,
        "wall_seconds": wall_seconds,
    }
