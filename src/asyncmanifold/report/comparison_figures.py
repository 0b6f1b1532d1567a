"""The figures that compare methods, each over all seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from asyncmanifold.report import svg
from asyncmanifold.report.comparison import average
from asyncmanifold.report.curves import Band, Points, band, histogram, thin_out
from asyncmanifold.report.finished_runs import Evaluation, FoundRuns, RunData, StepNumbers
from asyncmanifold.report.palette import colour_class
from asyncmanifold.report.svg import LEFT, RIGHT, AxisScale, Figure, Plot, number
from asyncmanifold.session.summary import mean_and_deviation

NAMES = 124.0
"""The width of a column of method names."""
MOST_CLIENTS = 400
BANDS = "Lines are means over seeds; bands are ± one standard deviation (n − 1), none for a single seed."
ROWS = "Each row is scaled to its highest bin, whose share is given at the left."


def comparison_figures(found: FoundRuns) -> list[Figure]:
    """Return the figures over all runs."""
    return [
        updates_figure(found),
        time_figure(found),
        *fairness_figures(found),
        clients_figure(found),
        staleness_figure(found),
        cosine_spread_figure(found),
        projections_figure(found),
    ]


def updates_figure(found: FoundRuns) -> Figure:
    """Return the score against accepted updates."""
    caption = f"The global model's test score after each number of accepted client updates. {BANDS}"
    return _score_figure(found, "score-updates", "updates", lambda e: e.update, caption)


def time_figure(found: FoundRuns) -> Figure:
    """Return the score against virtual time."""
    caption = (
        f"The same scores against virtual time. {BANDS} Seeds are interpolated linearly between evaluations,"
        " on a common grid that ends with the shortest seed."
    )
    return _score_figure(found, "score-time", "virtual time", lambda e: e.time, caption)


def fairness_figures(found: FoundRuns) -> list[Figure]:
    """Return bar charts of the Gini coefficient and the Theil index."""
    caption = (
        "{} of the best model's scores over clients: 0 is equal for all, smaller is fairer. Bars are means"
        " over seeds, whiskers ± one standard deviation."
    )
    return [
        _bars(found, "gini", "Gini coefficient", caption, lambda run: run.summary["gini"]),
        _bars(found, "theil", "Theil index", caption, lambda run: run.summary["theil"]),
    ]


def projections_figure(found: FoundRuns) -> Figure:
    """Return how often each method projected out the component along the drift."""
    caption = (
        "The share of received control points that lost their component along the drift (OrthoDC), mean"
        " over seeds, whiskers ± one standard deviation; 0 for methods that never project."
    )
    return _bars(found, "projections", "Share projected by OrthoDC", caption, projected_share)


def projected_share(run: RunData) -> float | None:
    """Return the share of a run's control points that were projected."""
    flags = [flag for step in run.steps for flag in step.projected]
    return sum(flags) / len(flags) if flags else None


def clients_figure(found: FoundRuns) -> Figure:
    """Return a dot for each client's score, in one row per method."""
    x = svg.scale([s for run in found.runs for _, s in run.client_scores], NAMES, RIGHT)
    row, top = 30.0, 12.0
    bottom = top + row * len(found.methods)
    parts = [svg.x_axis(x, bottom, top, f"score on a client's validation data ({_metric(found)})")]
    for index, method in enumerate(found.methods):
        y = top + row * (index + 0.5)
        scores = [pair for run in found.of_method(method) for pair in run.client_scores]
        last = max((client for client, _ in scores), default=0) or 1
        places = [
            f"{number(x(score))} {number(y + (client / last - 0.5) * row * 0.6)}"
            for client, score in thin_out(scores, MOST_CLIENTS)
        ]
        parts.append(svg.text(NAMES - 10, y + 4, svg.shorten(method, 15), anchor="end"))
        parts.append(svg.path(svg.dots(places), f"dots s {colour_class(index)}", ' stroke-width="5"'))
        if scores:
            middle = number(x(mean_and_deviation([score for _, score in scores])[0]))
            parts.append(svg.path(f"M{middle} {number(y - row * 0.45)}v{number(row * 0.9)}", "whisker"))
    caption = (
        "Each dot is one client in one seed, scored with the run's best model; within a row, clients are in"
        f" order from top to bottom. The vertical line is the mean. A row shows at most {MOST_CLIENTS}."
    )
    return Figure("clients", "Scores of the clients", caption, "".join(parts), bottom + 42)


def staleness_figure(found: FoundRuns) -> Figure:
    """Return a histogram of staleness for each method."""
    values = _steps(found, lambda step: [step.staleness])
    largest = max((value for row in values.values() for value in row), default=0.0)
    width = max(1, ceil((largest + 1) / 40))
    caption = (
        "How many versions the global model had moved on while a client trained, as shares of the accepted"
        f" updates of all seeds, in bins of {width}. {ROWS}"
    )
    body, height = _histograms(values, 0.0, float(width), ceil((largest + 1) / width), "staleness (versions)")
    return Figure("staleness", "Staleness of the updates", caption, body, height)


def cosine_spread_figure(found: FoundRuns) -> Figure:
    """Return a histogram of the cosines to the drift for each method."""
    values = _steps(found, lambda step: step.cosines)
    caption = (
        "The cosine between each received control point and the drift, the movement of the global model"
        f" meanwhile (0 if it had not moved), over all seeds, in bins of 0.05. {ROWS}"
    )
    body, height = _histograms(values, -1.0, 0.05, 40, "cosine to the drift")
    return Figure("cosine-spread", "Updates against the drift, by method", caption, body, height)


def _steps(found: FoundRuns, values: Callable[[StepNumbers], list[float]]) -> dict[str, list[float]]:
    """Return, by method, some values of all its accepted updates."""
    return {
        method: [v for run in found.of_method(method) for step in run.steps for v in values(step)]
        for method in found.methods
    }


def _histograms(
    values: dict[str, list[float]], low: float, width: float, count: int, x_name: str
) -> tuple[str, float]:
    """Return one row of bars per method, and the total height."""
    x = AxisScale(low, low + width * count, NAMES, RIGHT)
    row, top = 38.0, 12.0
    bottom = top + row * len(values)
    parts = [svg.x_axis(x, bottom, top, x_name)]
    for index, (method, known) in enumerate(values.items()):
        base = top + row * (index + 1)
        shares = histogram(known, low, width, count)
        highest = max(shares) or 1.0
        bars = "".join(
            _column(x, low + width * place, width, base, share / highest * row * 0.85)
            for place, share in enumerate(shares)
            if share
        )
        parts.append(svg.text(NAMES - 10, base - 18, svg.shorten(method, 15), anchor="end"))
        parts.append(svg.text(NAMES - 10, base - 4, f"highest {max(shares):.0%}", anchor="end", kind="small"))
        parts.append(svg.path(bars, f"f {colour_class(index)}") if bars else "")
        parts.append(svg.path(f"M{number(NAMES)} {number(base)}H{number(RIGHT)}", "axis"))
    return "".join(parts), bottom + 42


def _score_figure(
    found: FoundRuns, name: str, x_name: str, place: Callable[[Evaluation], float], caption: str
) -> Figure:
    bands = {method: band(_curves(found.of_method(method), place)) for method in found.methods}
    targets = {run.summary["target"] for run in found.runs} - {None}
    ys = [*(v for b in bands.values() for v in _edges(b)), *targets]
    plot = Plot(
        svg.scale((x for b in bands.values() for x in b.xs), LEFT, RIGHT, zero=True),
        svg.scale(ys, 270.0, 26.0),
    )
    metric = _metric(found)
    parts = [svg.axes(plot, x_name, metric)]
    parts.extend(_series(plot, index, method, b) for index, (method, b) in enumerate(bands.items()))
    for target in sorted(targets):
        parts.append(svg.path(f"M{plot.place(plot.x.low, target)}H{number(RIGHT)}", "target"))
        parts.append(svg.text(LEFT + 4, plot.y(target) - 5, f"target {target:g}", kind="over"))
    key, height = svg.legend(list(bands), 312.0)
    title = f"{metric.capitalize()} against {x_name}"
    return Figure(name, title, caption, svg.lines_group(plot, parts) + key, 312.0 + height)


def _series(plot: Plot, index: int, method: str, curve: Band) -> str:
    """Return one method's band, line and markers."""
    places = [plot.place(x, y) for x, y in zip(curve.xs, curve.means, strict=True)]
    parts = []
    if curve.deviations:
        edge = list(zip(curve.xs, curve.means, curve.deviations, strict=True))
        upper = [plot.place(x, m + d) for x, m, d in edge]
        lower = [plot.place(x, m - d) for x, m, d in reversed(edge)]
        parts.append(svg.path(svg.polyline(upper + lower) + "z", f"band f {colour_class(index)}"))
    if places:
        every = max(1, len(places) // 6)
        parts.append(svg.series_line(svg.polyline(places), index))
        parts.append(svg.series_markers(places[index % every :: every], index))
    return f'<g data-series="{index}" data-name="{svg.escape(method)}">' + "".join(parts) + "</g>"


def _bars(
    found: FoundRuns, name: str, x_name: str, caption: str, value: Callable[[RunData], float | None]
) -> Figure:
    """Return a horizontal bar for each method: the mean of a value over its runs."""
    rows = {method: average(map(value, found.of_method(method))) for method in found.methods}
    ends = [entry["mean"] + (entry["sd"] or 0.0) for entry in rows.values() if entry["count"]]
    x = svg.scale(ends, NAMES, RIGHT - 62, zero=True)
    row, top = 24.0, 12.0
    bottom = top + row * len(rows)
    parts = [svg.x_axis(x, bottom, top, x_name)]
    for index, (method, entry) in enumerate(rows.items()):
        y = top + row * (index + 0.5)
        parts.append(svg.text(NAMES - 10, y + 4, svg.shorten(method, 15), anchor="end"))
        parts.append(_bar(x, y, index, entry["mean"], entry["sd"]))
    parts.append(svg.path(f"M{number(NAMES)} {number(top)}V{number(bottom)}", "axis"))
    return Figure(name, x_name, caption.format(x_name), "".join(parts), bottom + 42)


def _bar(x: AxisScale, y: float, index: int, middle: float | None, deviation: float | None) -> str:
    if middle is None:
        return svg.text(NAMES + 6, y + 4, "–", kind="small")
    length = number(max(0.0, x(middle) - x.start))
    bar = svg.path(f"M{number(x.start)} {number(y - 7)}h{length}v14h-{length}z", f"f {colour_class(index)}")
    shown = svg.text(RIGHT, y + 4, f"{middle:#.3g}", anchor="end", kind="small")
    if deviation is None:
        return bar + shown
    low, high = number(x(max(0.0, middle - deviation))), number(x(middle + deviation))
    ends = f"M{low} {number(y - 4)}v8M{high} {number(y - 4)}v8M{low} {number(y)}H{high}"
    return bar + svg.path(ends, "halo") + svg.path(ends, "whisker") + shown


def _column(x: AxisScale, low: float, width: float, base: float, height: float) -> str:
    left, right = x(low) + 0.5, x(low + width) - 0.5
    return f"M{number(left)} {number(base)}V{number(base - height)}H{number(right)}V{number(base)}z"


def _curves(runs: Sequence[RunData], place: Callable[[Evaluation], float]) -> list[Points]:
    return [[(place(e), e.score) for e in run.evaluations if e.score is not None] for run in runs]


def _edges(curve: Band) -> list[float]:
    deviations = curve.deviations or [0.0] * len(curve.means)
    return [m + s * d for m, d in zip(curve.means, deviations, strict=True) for s in (-1.0, 1.0)]


def _metric(found: FoundRuns) -> str:
    return ", ".join(sorted({run.summary["metric"] for run in found.runs}))
