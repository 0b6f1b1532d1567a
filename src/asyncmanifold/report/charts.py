"""Altair charts of runs, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncmanifold.errors import InputError
from asyncmanifold.report.drawing_library import altair
from asyncmanifold.report.figure_theme import LIGHT, vega_config
from asyncmanifold.report.score_layers import AXES, Scores, score_data, score_specification

if TYPE_CHECKING:
    import altair as alt

NOT_SCORES = frozenset(("kind", "update", "version", "time", "wall_seconds"))
"""What the record of an evaluation holds beside the scores."""


def score_chart(
    traces: Mapping[str, Sequence[Iterable[Mapping[str, Any]]]],
    *,
    metric: str | None = None,
    against: str = "update",
    target: float | None = None,
) -> alt.LayerChart:
    """Return an Altair chart of the test scores of runs: means over seeds, with bands of one deviation.

    Arguments:
        traces: by the name to show, the traces of its runs, one for each seed.
        metric: which score; by default the first that the evaluations have.
        against: ``update``, ``time`` or ``upload`` (megabytes), the horizontal axis.
        target: a score to mark by a line.

    >>> record = {"kind": "evaluation", "update": 0, "version": 0, "time": 0.0, "accuracy": 0.1}
    >>> later = record | {"update": 10, "time": 2.5, "accuracy": 0.8}
    >>> score_chart({"fedasync": [[record, later]]}).to_dict()["width"]
    480
    """
    if against not in AXES:
        raise InputError(f"against={against!r}: must be one of {', '.join(AXES)}")
    rows = []
    for method, seeds in traces.items():
        for seed, trace in enumerate(seeds):
            sent = 0
            for record in trace:
                sent += record.get("upload_bytes", 0)
                if record["kind"] != "evaluation":
                    continue
                metric = metric or next((name for name in record if name not in NOT_SCORES), "score")
                place = {"method": method, "seed": seed, "update": record["update"], "time": record["time"]}
                rows.append({**place, "upload": sent / 1e6, "score": record.get(metric)})
    known = [row for row in rows if row["score"] is not None]
    if not known:
        raise InputError("score_chart: the traces have no evaluation" + (f" of {metric}" if metric else ""))
    scores = Scores(known, list(traces), metric or "score", [] if target is None else [target])
    specification = score_specification(scores, against) | {"config": vega_config(LIGHT), "width": 480}
    specification["datasets"] = score_data(scores, against)
    chart: alt.LayerChart = altair().LayerChart.from_dict(specification, validate=False)
    return chart
