"""The figures that compare methods, each over all seeds."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from asyncmanifold.report.comparison import average
from asyncmanifold.report.contribution_figure import contribution_figure
from asyncmanifold.report.curves import histogram, thin_out
from asyncmanifold.report.figure import Figure, Row, Specification, category, layer, quantity, rounded
from asyncmanifold.report.finished_runs import FoundRuns, RunData, StepNumbers
from asyncmanifold.report.score_layers import (
    MOST_BANDS,
    SWITCHES,
    VISIBLE,
    Scores,
    faded,
    score_data,
    score_specification,
    series_encodings,
    small_multiples,
)
from asyncmanifold.session.summary import mean_and_deviation

MOST_CLIENTS = 400
MOST_SHARE = 0.3
"""The share of the last colour in the figures of bins; larger shares have it too."""
BANDS = "Lines are means over seeds; bands are ± one standard deviation (n − 1), none for a single seed."
LINES = "Lines are means over seeds."
RANGE = "The view starts at the score that three of four evaluations reach; a distant target is outside it."


def comparison_figures(found: FoundRuns) -> list[Figure]:
    """Return the figures over all runs; those without a number are left out."""
    figures = [
        *score_figures(found),
        *fairness_figures(found),
        clients_figure(found),
        contribution_figure(found),
        staleness_figure(found),
        cosine_spread_figure(found),
        projections_figure(found),
    ]
    return [figure for figure in figures if any(figure.data.values())]


def score_figures(found: FoundRuns) -> list[Figure]:
    """Return the scores against updates and time, and each method on its own if there are many."""
    scores = collect_scores(found)
    if not scores.rows:
        return []
    over = BANDS if len(found.methods) <= MOST_BANDS else LINES
    title = scores.metric.capitalize()
    figures = [
        Figure(
            "score-updates",
            f"{title} against updates",
            f"The global model's test score after each number of accepted client updates. {over} {RANGE}",
            score_specification(scores, "update"),
            score_data(scores, "update"),
        ),
        Figure(
            "score-time",
            f"{title} against virtual time",
            f"The same scores against virtual time. {over} Between evaluations, seeds are interpolated"
            " linearly, on a common grid that ends with the shortest seed.",
            score_specification(scores, "time"),
            score_data(scores, "time"),
        ),
    ]
    if _uploads_differ(found):
        caption = f"The same scores against the bytes of all accepted updates, as they were sent. {over}"
        plot, data = score_specification(scores, "upload"), score_data(scores, "upload")
        figures.append(Figure("score-upload", f"{title} against bytes uploaded", caption, plot, data))
    if len(found.methods) > MOST_BANDS:
        caption = f"Each method on its own, before all others in grey. {BANDS}"
        multiples = small_multiples(scores)
        data = score_data(scores, "update")
        figures.append(Figure("score-each", f"{title} of each method", caption, multiples, data))
    return figures


def _uploads_differ(found: FoundRuns) -> bool:
    """Whether all runs say what was sent, and not all sent the same: else updates say as much as bytes."""
    sizes = {step.upload for run in found.runs for step in run.steps[:1]}
    return len(sizes) > 1 and all(run.uploaded is not None for run in found.runs)


def collect_scores(found: FoundRuns) -> Scores:
    """Return every known score of all runs."""
    rows: list[Row] = []
    for run in found.runs:
        known, sent = {"method": run.method, "seed": run.seed}, run.uploaded
        for e in run.evaluations:
            if e.score is not None:
                place = {"update": e.update, "time": e.time}
                if sent is not None:
                    place["upload"] = sent[min(max(0, int(e.update)), len(sent) - 1)]
                rows.append({**known, **place, "score": e.score})
    metric = collect_metric(found)
    is_lower = all(run.summary["metric"] in run.summary.get("lower_is_better", ()) for run in found.runs)
    targets = sorted({run.summary["target"] for run in found.runs} - {None})
    return Scores(rows, found.methods, metric, targets, is_lower)


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
    rows: list[Row] = []
    means: list[Row] = []
    for method in found.methods:
        scores = [(run.seed, *pair) for run in found.of_method(method) for pair in run.client_scores]
        last = max((client for _, client, _ in scores), default=0) or 1
        rows += [
            {
                "method": method,
                "seed": seed,
                "client": client,
                "score": rounded(score),
                "aside": rounded(client / last - 0.5),
            }
            for seed, client, score in thin_out(scores, MOST_CLIENTS)
        ]
        if scores:
            middle = mean_and_deviation([score for _, _, score in scores])[0]
            means.append({"method": method, "score": rounded(middle)})
    caption = (
        "Each dot is one client in one seed, scored with the run's best model; within a row, clients are in"
        f" order from top to bottom. The vertical line is the mean. A row shows at most {MOST_CLIENTS}."
    )
    specification = _clients_specification(found, collect_metric(found))
    return Figure(
        "clients", "Scores of the clients", caption, specification, {"clients": rows, "client-means": means}
    )


def collect_metric(found: FoundRuns) -> str:
    """Return the name of the score, or of all if runs differ."""
    return ", ".join(sorted({run.summary["metric"] for run in found.runs}))


def staleness_figure(found: FoundRuns) -> Figure:
    """Return the staleness of each method's updates, as shares of all its updates."""
    values = _steps(found, lambda step: [step.staleness])
    largest = max((value for row in values.values() for value in row), default=0.0)
    width = max(1, ceil((largest + 1) / 40))
    caption = (
        "How many versions the global model had moved on while a client trained, as shares of each method's"
        f" accepted updates in all seeds{f', in bins of {width}' if width > 1 else ''}."
    )
    rows = _shares(values, 0.0, float(width), ceil((largest + 1) / width))
    specification = _heat_specification(found, "shares-staleness", "staleness (versions)")
    return Figure("staleness", "Staleness of the updates", caption, specification, {"shares-staleness": rows})


def cosine_spread_figure(found: FoundRuns) -> Figure:
    """Return the cosines to the drift of each method's control points, as shares of all."""
    values = _steps(found, lambda step: step.cosines)
    caption = (
        "The cosine between each received control point and the drift, the movement of the global model"
        " meanwhile (0 if it had not moved), as shares over all seeds in bins of 0.05."
    )
    rows = _shares(values, -1.0, 0.05, 40)
    title = "Updates against the drift, by method"
    specification = _heat_specification(found, "shares-cosine", "cosine to the drift")
    return Figure("cosine-spread", title, caption, specification, {"shares-cosine": rows})


def _steps(found: FoundRuns, values: Callable[[StepNumbers], list[float]]) -> dict[str, list[float]]:
    """Return, by method, some values of all its accepted updates."""
    return {
        method: [v for run in found.of_method(method) for step in run.steps for v in values(step)]
        for method in found.methods
    }


def _shares(values: dict[str, list[float]], low: float, width: float, count: int) -> list[Row]:
    """Return the share of each bin that is not empty."""
    return [
        {
            "method": method,
            "from": rounded(low + width * place),
            "to": rounded(low + width * (place + 1)),
            "share": rounded(share),
        }
        for method, known in values.items()
        for place, share in enumerate(histogram(known, low, width, count))
        if share
    ]


def _method_axis(found: FoundRuns) -> Row:
    return category("method", title=None, sort=found.methods, axis={"labelLimit": 140})


def _heat_specification(found: FoundRuns, data: str, name: str) -> Specification:
    """Return a row of coloured bins per method."""
    legend = {"format": "~%", "orient": "right", "gradientLength": 120, "title": None, "tickCount": 3}
    colours = {"scheme": "viridis", "type": "sqrt", "domain": [0, MOST_SHARE], "clamp": True}
    share = quantity("share", title="share of all", format=".2%")
    encoding = {
        "x": quantity("from", title=name, scale={"nice": False, "zero": False}),
        "x2": {"field": "to"},
        "y": _method_axis(found),
        "color": quantity("share", scale=colours, legend=legend),
        "opacity": faded(),
        "tooltip": [category("method"), quantity("from"), quantity("to", title="below"), share],
    }
    bins = layer("rect", encoding, data, [VISIBLE])
    return {**bins, "params": SWITCHES, "height": 20 * len(found.methods)}


def _clients_specification(found: FoundRuns, metric: str) -> Specification:
    title = f"{metric} on a client's validation data"
    scale, axis = {"zero": False, "nice": False, "padding": 6}, {"format": "~%", "tickCount": 6}
    places = {"x": quantity("score", title=title, scale=scale, axis=axis), "y": _method_axis(found)}
    dots = {
        **places,
        "yOffset": quantity("aside", scale={"domain": [-0.75, 0.75]}),
        "color": {**series_encodings(found.methods)["color"], "legend": None},
        "opacity": faded(0.6, 0.08),
        "tooltip": [
            *map(category, ("method", "seed", "client")),
            quantity("score", title=metric, format=".1%"),
        ],
    }
    layers = [
        layer("point", dots, "clients", [VISIBLE], filled=True, size=22),
        layer("tick", places, "client-means", [VISIBLE], thickness=2, size=24, style="whisker"),
    ]
    return {"params": SWITCHES, "height": 28 * len(found.methods), "layer": layers}


def _bars(
    found: FoundRuns, name: str, title: str, caption: str, value: Callable[[RunData], float | None]
) -> Figure:
    """Return a horizontal bar for each method: the mean of a value over its runs."""
    rows: list[Row] = []
    for method in found.methods:
        entry = average(map(value, found.of_method(method)))
        if entry["mean"] is not None:
            deviation = "–" if entry["sd"] is None else f"{entry['sd']:.3g}"
            row = {"method": method, "mean": rounded(entry["mean"]), "deviation": deviation}
            row["seeds"] = entry["count"]
            if entry["sd"] is not None:
                row["low"] = rounded(max(0.0, entry["mean"] - entry["sd"]))
                row["high"] = rounded(entry["mean"] + entry["sd"])
            rows.append(row)
    most = max((float(row.get("high") or row["mean"]) for row in rows), default=0.0)
    specification = _bar_specification(found, f"bars-{name}", title, most)
    return Figure(name, title, caption.format(title), specification, {f"bars-{name}": rows})


def _bar_specification(found: FoundRuns, data: str, title: str, most: float) -> Specification:
    scale = {"domain": [0, rounded(1.18 * most or 1.0)], "nice": False}  # room for the number beside a bar
    bars = {
        "x": quantity("mean", title=title, axis={"tickCount": 5}, scale=scale),
        "y": _method_axis(found),
        "color": {**series_encodings(found.methods)["color"], "legend": None},
        "opacity": faded(),
        "tooltip": [
            category("method"),
            quantity("mean", format=".3r"),
            category("deviation", title="standard deviation"),
            quantity("seeds"),
        ],
    }
    whiskers = {"y": bars["y"], "x": quantity("low"), "x2": {"field": "high"}}
    numbers = {"x": quantity("end"), "y": bars["y"], "text": quantity("mean", format=".3r")}
    is_known = [{"filter": "isValid(datum.high)"}]
    return {
        "data": {"name": data},
        "transform": [VISIBLE, {"calculate": "isValid(datum.high) ? datum.high : datum.mean", "as": "end"}],
        "params": SWITCHES,
        "height": 24 * len(found.methods),
        "layer": [
            layer("bar", bars, height={"band": 0.62}, fillOpacity=0.7),
            layer("rule", whiskers, transform=is_known, strokeWidth=1.5, style="whisker"),
            layer("text", numbers, align="left", dx=5),
        ],
    }
