"""The figures that compare methods, each over all seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from asyncmanifold.report.curves import Band, Points, band, histogram, thinned
from asyncmanifold.report.drawing import (
    WIDTH,
    Figure,
    Plot,
    Scale,
    axes,
    dots,
    escape,
    legend,
    number,
    path,
    polyline,
    scale,
    shortened,
    text,
    x_axis,
)
from asyncmanifold.report.palette import colour_class, dash, marker
from asyncmanifold.report.runs import Evaluation, Findings, RunData, Step
from asyncmanifold.session.summary import mean_and_deviation

LEFT, RIGHT = 46.0, WIDTH - 14.0
NAMES = 124.0
"""The width of a column of method names."""
MOST_CLIENTS = 400
BANDS = "Lines are means over seeds; bands are ± one standard deviation (n − 1), none for a single seed."
ROWS = "Each row is scaled to its highest bin, whose share stands at its left."


def comparison_figures(findings: Findings) -> list[Figure]:
    """Return the figures over all runs."""
    return [
        score_by_updates(findings),
        score_by_time(findings),
        *fairness(findings),
        client_scores(findings),
        staleness(findings),
        cosine_spread(findings),
        projections(findings),
    ]


def score_by_updates(findings: Findings) -> Figure:
    """Return the score against accepted updates."""
    caption = f"The global model's test score after each number of accepted client updates. {BANDS}"
    return _score_figure(findings, "score-updates", "updates", lambda e: e.update, caption)


def score_by_time(findings: Findings) -> Figure:
    """Return the score against virtual time."""
    caption = (
        f"The same scores against virtual time. {BANDS} Seeds are read linearly between evaluations, on a"
        " common grid that ends with the seed that ended first."
    )
    return _score_figure(findings, "score-time", "virtual time", lambda e: e.time, caption)


def fairness(findings: Findings) -> list[Figure]:
    """Return the bars of Gini coefficient and Theil index."""
    caption = (
        "{} of the best model's scores over clients: 0 is equal for all, smaller is fairer. Bars are means"
        " over seeds, whiskers ± one standard deviation."
    )
    return [
        _bars(
            findings,
            "gini",
            "Gini coefficient",
            caption.format("Gini coefficient"),
            _summed("gini"),
        ),
        _bars(findings, "theil", "Theil index", caption.format("Theil index"), _summed("theil")),
    ]


def projections(findings: Findings) -> Figure:
    """Return how often each method removed what points along the drift."""
    caption = (
        "The share of received control points that lost their component along the drift (OrthoDC), mean"
        " over seeds, whiskers ± one standard deviation; 0 for methods that never project."
    )
    return _bars(findings, "projections", "Share projected by OrthoDC", caption, projected_share)


def projected_share(run: RunData) -> float | None:
    """Return the share of a run's control points that were projected."""
    flags = [flag for step in run.steps for flag in step.projected]
    return sum(flags) / len(flags) if flags else None


def client_scores(findings: Findings) -> Figure:
    """Return a dot for every client's score, a row for every method."""
    x = scale([s for run in findings.runs for _, s in run.client_scores], NAMES, RIGHT)
    row, top = 30.0, 12.0
    bottom = top + row * len(findings.methods)
    parts = [x_axis(x, bottom, top, f"score on a client's validation data ({_metric(findings)})")]
    for index, method in enumerate(findings.methods):
        y = top + row * (index + 0.5)
        scores = [pair for run in findings.of_method(method) for pair in run.client_scores]
        last = max((client for client, _ in scores), default=0) or 1
        places = [
            f"{number(x(score))} {number(y + (client / last - 0.5) * row * 0.6)}"
            for client, score in thinned(scores, MOST_CLIENTS)
        ]
        parts.append(text(NAMES - 10, y + 4, shortened(method, 15), anchor="end"))
        parts.append(path(dots(places), f"dots s {colour_class(index)}", ' stroke-width="5"'))
        if scores:
            middle = number(x(mean_and_deviation([score for _, score in scores])[0]))
            parts.append(path(f"M{middle} {number(y - row * 0.45)}v{number(row * 0.9)}", "whisker"))
    caption = (
        "Each dot is one client in one seed, scored with the run's best model; within a row, clients stand in"
        f" order from top to bottom. The upright line is the mean. A row shows at most {MOST_CLIENTS}."
    )
    return Figure("clients", "Scores of the clients", caption, "".join(parts), bottom + 42)


def staleness(findings: Findings) -> Figure:
    """Return a histogram of staleness for every method."""
    values = _steps(findings, lambda step: [float(step.staleness)])
    largest = max((value for row in values.values() for value in row), default=0.0)
    width = max(1, ceil((largest + 1) / 40))
    caption = (
        "How many versions the global model had moved on while a client trained, as shares of the accepted"
        f" updates of all seeds, in bins of {width}. {ROWS}"
    )
    body, height = _histograms(values, 0.0, float(width), ceil((largest + 1) / width), "staleness (versions)")
    return Figure("staleness", "Staleness of the updates", caption, body, height)


def cosine_spread(findings: Findings) -> Figure:
    """Return a histogram of the cosines to the drift for every method."""
    values = _steps(findings, lambda step: step.cosines)
    caption = (
        "The cosine between each received control point and the drift, the way that the global model had gone"
        f" meanwhile (0 where it had not moved), over all seeds, in bins of 0.05. {ROWS}"
    )
    body, height = _histograms(values, -1.0, 0.05, 40, "cosine to the drift")
    return Figure("cosine-spread", "Updates against the drift, by method", caption, body, height)


def _steps(findings: Findings, values: Callable[[Step], list[float]]) -> dict[str, list[float]]:
    """Return, by method, some values of all its accepted updates."""
    return {
        method: [v for run in findings.of_method(method) for step in run.steps for v in values(step)]
        for method in findings.methods
    }


def _histograms(
    values: dict[str, list[float]], low: float, width: float, count: int, x_name: str
) -> tuple[str, float]:
    """Return a row of bars for every method, and the height of all."""
    x = Scale(low, low + width * count, NAMES, RIGHT)
    row, top = 38.0, 12.0
    bottom = top + row * len(values)
    parts = [x_axis(x, bottom, top, x_name)]
    for index, (method, known) in enumerate(values.items()):
        base = top + row * (index + 1)
        shares = histogram(known, low, width, count)
        highest = max(shares) or 1.0
        bars = "".join(
            _column(x, low + width * place, width, base, share / highest * row * 0.85)
            for place, share in enumerate(shares)
            if share
        )
        parts.append(text(NAMES - 10, base - 18, shortened(method, 15), anchor="end"))
        parts.append(text(NAMES - 10, base - 4, f"highest {max(shares):.0%}", anchor="end", kind="small"))
        parts.append(path(bars, f"f {colour_class(index)}") if bars else "")
        parts.append(path(f"M{number(NAMES)} {number(base)}H{number(RIGHT)}", "axis"))
    return "".join(parts), bottom + 42


def _score_figure(
    findings: Findings, name: str, x_name: str, place: Callable[[Evaluation], float], caption: str
) -> Figure:
    bands = {method: band(_curves(findings.of_method(method), place)) for method in findings.methods}
    targets = {run.summary["target"] for run in findings.runs} - {None}
    ys = [*(v for b in bands.values() for v in _edges(b)), *targets]
    plot = Plot(
        scale((x for b in bands.values() for x in b.xs), LEFT, RIGHT, zero=True), scale(ys, 270.0, 26.0)
    )
    metric = _metric(findings)
    parts = [axes(plot, x_name, metric)]
    parts.extend(_series(plot, index, method, b) for index, (method, b) in enumerate(bands.items()))
    for target in sorted(targets):
        parts.append(path(f"M{plot.place(plot.x.low, target)}H{number(RIGHT)}", "target"))
        parts.append(text(LEFT + 4, plot.y(target) - 5, f"target {target:g}", kind="over"))
    key, height = legend(list(bands), 312.0)
    scales = ",".join(repr(v) for s in (plot.x, plot.y) for v in (s.low, s.high, s.start, s.end))
    body = f'<g class="lines" data-scales="{scales}">' + "".join(parts) + "</g>" + key
    return Figure(name, f"{metric.capitalize()} against {x_name}", caption, body, 312.0 + height)


def _series(plot: Plot, index: int, method: str, curve: Band) -> str:
    """Return one method's band, line and markers."""
    colour = colour_class(index)
    places = [plot.place(x, y) for x, y in zip(curve.xs, curve.means, strict=True)]
    parts = []
    if curve.deviations:
        edge = list(zip(curve.xs, curve.means, curve.deviations, strict=True))
        outline = [plot.place(x, m + d) for x, m, d in edge] + [
            plot.place(x, m - d) for x, m, d in edge[::-1]
        ]
        parts.append(path(polyline(outline) + "z", f"band f {colour}"))
    if places:
        pattern = f' stroke-dasharray="{dash(index)}"' if dash(index) else ""
        parts.append(path(polyline(places), f"line s {colour}", pattern))
        every = max(1, len(places) // 6)
        marked = places[index % every :: every]
        parts.append(path("".join(marker(index, *place.split()) for place in marked), f"f {colour}"))
    return f'<g data-series="{index}" data-name="{escape(method)}">' + "".join(parts) + "</g>"


def _bars(
    findings: Findings, name: str, x_name: str, caption: str, value: Callable[[RunData], float | None]
) -> Figure:
    """Return a horizontal bar for every method: the mean of a value over its runs."""
    rows: list[tuple[str, tuple[float, float | None] | None]] = []
    for method in findings.methods:
        values = [v for v in map(value, findings.of_method(method)) if v is not None]
        rows.append((method, mean_and_deviation(values) if values else None))
    x = scale(
        (m + (d or 0.0) for _, entry in rows if entry for m, d in [entry]), NAMES, RIGHT - 62, zero=True
    )
    row, top = 24.0, 12.0
    bottom = top + row * len(rows)
    parts = [x_axis(x, bottom, top, x_name)]
    for index, (method, entry) in enumerate(rows):
        y = top + row * (index + 0.5)
        parts.append(text(NAMES - 10, y + 4, shortened(method, 15), anchor="end"))
        parts.append(_bar(x, y, index, entry) if entry else text(NAMES + 6, y + 4, "–", kind="small"))
    parts.append(path(f"M{number(NAMES)} {number(top)}V{number(bottom)}", "axis"))
    return Figure(name, x_name, caption, "".join(parts), bottom + 42)


def _bar(x: Scale, y: float, index: int, entry: tuple[float, float | None]) -> str:
    middle, deviation = entry
    length = number(max(0.0, x(middle) - x.start))
    bar = path(f"M{number(x.start)} {number(y - 7)}h{length}v14h-{length}z", f"f {colour_class(index)}")
    shown = text(RIGHT, y + 4, f"{middle:#.3g}", anchor="end", kind="small")
    if deviation is None:
        return bar + shown
    low, high = number(x(max(0.0, middle - deviation))), number(x(middle + deviation))
    ends = f"M{low} {number(y - 4)}v8M{high} {number(y - 4)}v8M{low} {number(y)}H{high}"
    return bar + path(ends, "halo") + path(ends, "whisker") + shown


def _column(x: Scale, low: float, width: float, base: float, height: float) -> str:
    left, right = x(low) + 0.5, x(low + width) - 0.5
    return f"M{number(left)} {number(base)}V{number(base - height)}H{number(right)}V{number(base)}z"


def _curves(runs: Sequence[RunData], place: Callable[[Evaluation], float]) -> list[Points]:
    return [[(place(e), e.score) for e in run.evaluations if e.score is not None] for run in runs]


def _edges(curve: Band) -> list[float]:
    deviations = curve.deviations or [0.0] * len(curve.means)
    return [m + s * d for m, d in zip(curve.means, deviations, strict=True) for s in (-1.0, 1.0)]


def _summed(key: str) -> Callable[[RunData], float | None]:
    def value(run: RunData) -> float | None:
        found: float | None = run.summary[key]
        return found

    return value


def _metric(findings: Findings) -> str:
    return ", ".join(sorted({run.summary["metric"] for run in findings.runs}))
