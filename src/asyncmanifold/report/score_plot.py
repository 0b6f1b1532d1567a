"""A figure of scores that a notebook shows: interactive where it can be, drawn already where it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncmanifold.report.charts import score_chart
from asyncmanifold.report.drawing_library import vl_convert


class ScorePlot:
    """An Altair chart, ``chart``, that carries its own drawing: a notebook needs no network to show it."""

    def __init__(self, chart: Any) -> None:
        self.chart = chart

    def __repr__(self) -> str:
        return "ScorePlot: a notebook shows it, save(path) writes it"

    def _repr_svg_(self) -> str:
        return str(vl_convert().vegalite_to_svg(self.chart.to_dict()))

    def save(self, path: str | Path) -> None:
        """Write the figure as .svg, .png, .html or .json."""
        self.chart.save(str(path))


def plot_scores(
    traces: Mapping[str, Sequence[Iterable[Mapping[str, Any]]]],
    *,
    metric: str,
    against: str = "update",
    target: float | None = None,
) -> ScorePlot:
    """Return a figure of the scores of runs, by the name to show; arguments are those of ``score_chart``."""
    return ScorePlot(score_chart(traces, metric=metric, against=against, target=target))
