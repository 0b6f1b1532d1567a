"""The summary of a run, computed from its trace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from statistics import mean, stdev
from typing import Any

from asyncmanifold.metrics import first_reaching, gini, theil
from asyncmanifold.session.advice import advise
from asyncmanifold.session.tally import Tally
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
    final_evaluations: int,
    per_client: Sequence[float | None] | None,
    validation: float | None,
    lower_is_better: Collection[str] = (),
    is_buffered: bool = False,
) -> Summary:
    """Return the numbers of a finished run; the first of ``metrics`` is the reported one.

    ``final`` and ``scores`` are means over the last ``final_evaluations`` evaluations, ``last`` is the very
    last score; each is None if one of its evaluations is not finite.
    ``per_client`` holds the best model's score on each client's validation data; Gini and Theil are
    computed from it. ``validation`` is the final model's score on all of that data. ``lower_is_better`` names
    the metrics of which less is better. ``upload_bytes`` and ``download_bytes`` are those of all accepted
    updates and of the models that they started from; ``lost`` are jobs whose clients went away. A buffer's
    steps add up, so that short ones are nothing to advise on. ``hostile_admitted`` and ``honest_admitted``
    are the shares of both that were accepted, if clients are hostile.
    """
    tally = Tally(trace)
    evaluations = tally.evaluations
    metric = metrics[0] if metrics else "none"
    last = evaluations[-1] if evaluations else {}
    scored = [record for record in evaluations if record.get(metric) is not None]
    known = [score for score in per_client or [] if score is not None]
    is_lower = metric in lower_is_better

    def reached(place: str) -> float | None:
        if target is None:
            return None
        scores = ((record[place], record[metric]) for record in scored)
        return first_reaching(target, scores, lower_is_better=is_lower)

    fraction = tally.mean("fraction")
    scores = [record[metric] for record in scored]
    advice = None if is_buffered else advise(scores, fraction, metric, lower_is_better=is_lower)
    return {
        "updates": tally.updates,
        "versions": last.get("version"),
        "metric": metric,
        "final": _mean_of_last(evaluations, metric, final_evaluations),
        "last": last.get(metric),
        "final_evaluations": final_evaluations,
        "scores": {name: _mean_of_last(evaluations, name, final_evaluations) for name in metrics},
        "validation": validation,
        "best": (min if is_lower else max)((record[metric] for record in scored), default=None),
        "lower_is_better": [name for name in metrics if name in lower_is_better],
        "target": target,
        "rounds_to_target": reached("update"),
        "time_to_target": reached("time"),
        "virtual_time": last.get("time"),
        "gini": gini(known),
        "theil": theil(known),
        "per_client": per_client,
        "fraction_mean": fraction,
        "advice": advice,
        "staleness_mean": tally.mean("staleness"),
        **tally.facts(),
    }


def _mean_of_last(evaluations: Sequence[Record], metric: str, count: int) -> float | None:
    """Return a metric's mean over the last ``count`` evaluations, leaving out the untrained model's."""
    after_start = [record for record in evaluations if record["update"] > 0] or evaluations
    scores = [record.get(metric) for record in after_start[-count:]]
    known = [score for score in scores if score is not None]
    return mean(known) if known and len(known) == len(scores) else None
