"""Scores against updates, time or bytes in Vega-Lite: means, bands, targets, evaluations to point at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from asyncmanifold.report.curves import band
from asyncmanifold.report.figure import Row, Specification, category, layer, quantity, rounded
from asyncmanifold.report.figure_theme import dashes, shapes

AXES = {"update": "accepted updates", "time": "virtual time", "upload": "megabytes uploaded"}
MARKERS = 6
"""About how many markers are drawn on a line."""
MOST_BANDS = 5
"""The most methods whose bands are drawn in one plot; more of them hide each other."""
VISIBLE = {"filter": "indexof(hidden, datum.method) < 0"}
"""Only series that are switched on."""
SWITCHES: list[Row] = [
    {"name": "hidden", "value": []},
    {"name": "focus", "value": ""},
]
"""What a page changes in every figure: the series that are hidden, and the one in focus."""
WHOLE: Row = {"name": "whole", "value": False}
"""Whether every score is shown, or the useful range."""
POINTED: Row = {
    "name": "pointed",
    "views": ["evaluations"],
    "select": {"type": "point", "on": "pointerover", "clear": "pointerout"},
}
"""The evaluation under the pointer."""
VIEW: Row = {
    "name": "view",
    "views": ["lines"],
    "bind": "scales",
    "select": {
        "type": "interval",
        "zoom": "wheel![event.ctrlKey || event.shiftKey || event.metaKey]",
        "translate": ("[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!"),
    },
}
"""Zoom and pan: a plain wheel and a finger still scroll the page; a double click shows the first view."""


@dataclass(frozen=True)
class Scores:
    """Every evaluation to be drawn, and what its score is called."""

    rows: list[Row]
    """``method``, ``seed``, ``update``, ``time``, ``score`` and, if known, ``upload`` of each."""
    methods: list[str]
    metric: str
    targets: list[float] = field(default_factory=list)
    is_lower_better: bool = False

    @property
    def are_fractions(self) -> bool:
        """Whether scores can be shown in percent."""
        return not self.is_lower_better and all(0.0 <= row["score"] <= 1.0 for row in self.rows)


def score_specification(scores: Scores, against: str) -> Specification:
    """Return the plot; its data are those of ``score_data``."""
    x, y = _axes(scores, against)
    means, styles = f"means-{against}", series_encodings(scores.methods)
    lines = {"x": x, "y": y, "opacity": faded(), **pick(styles, "color", "strokeDash")}
    markers = {"x": x, "y": y, "opacity": faded(), **pick(styles, "color", "shape")}
    marked = [VISIBLE, {"filter": "datum.marked"}]
    target = {"y": quantity("target")}
    label = {**target, "x": {"value": 0}, "text": category("label")}
    layers = [
        layer("rule", target, "targets", strokeDash=[4, 3], clip=True),
        layer("text", label, "targets", align="left", dx=4, dy=-6, clip=True),
        layer("line", lines, means, [VISIBLE], "lines", clip=True, strokeJoin="round"),
        layer("point", markers, means, marked, clip=True, filled=True, size=42),
        _evaluations(scores, against, styles["color"]),
    ]
    if len(scores.methods) <= MOST_BANDS:
        layers.insert(0, _bands(x, y, styles["color"], means))
    return {"layer": layers, "params": [*SWITCHES, WHOLE, VIEW, POINTED], "height": 280}


def small_multiples(scores: Scores) -> Specification:
    """Return one small plot per method, with the other methods in grey behind it."""
    x, y = _axes(scores, "update")
    x, y = {**x, "title": None}, {**y, "title": None}
    x["axis"] = {"grid": False, "tickCount": 3, "labelFlush": True}
    colour = {**series_encodings(scores.methods)["color"], "legend": None}
    grey = {"x": x, "y": y, "detail": category("other")}
    other = [{"calculate": "datum.method", "as": "other"}]
    layers = [
        layer("line", grey, "means-update", other, clip=True, strokeWidth=0.8, opacity=0.3, color="gray"),
        _bands(x, y, colour, opacity={"value": 0.22}),
        layer("line", {"x": x, "y": y, "color": colour}, clip=True, strokeJoin="round"),
    ]
    header = {"title": None, "labelLimit": 170}
    return {
        "data": {"name": "means-update"},
        "transform": [VISIBLE],
        "params": [*SWITCHES, WHOLE],
        "usermeta": {"layout": "wide"},
        "columns": 4,
        "spacing": 14,
        "facet": category("method", sort=list(scores.methods), title=None, header=header),
        "spec": {"width": 150, "height": 110, "layer": layers},
    }


def pick(entries: Row, *names: str) -> Row:
    """Return some entries of a dictionary."""
    return {name: entries[name] for name in names}


def series_encodings(methods: Sequence[str]) -> Row:
    """Return the encodings that tell methods apart; colours come from the configuration."""
    names, count = list(methods), len(methods)
    shown = category("method", title=None, **({} if count > 1 else {"legend": None}))
    return {
        "color": {**shown, "scale": {"domain": names}},
        "shape": {**shown, "scale": {"domain": names, "range": shapes(count)}},
        "strokeDash": {**shown, "scale": {"domain": names, "range": dashes(count)}},
    }


def faded(full: float = 1.0, rest: float = 0.12) -> Row:
    """Return an opacity that is less for series that are not in focus."""
    return {"condition": {"test": "focus === '' || datum.method === focus", "value": full}, "value": rest}


def score_data(scores: Scores, against: str) -> dict[str, list[Row]]:
    """Return the rows that the plot needs, by the name of their dataset."""
    return {
        "scores": [{**row, **_rounded(row, "score", "time", "upload")} for row in scores.rows],
        f"means-{against}": mean_rows(scores, against),
        "targets": _target_rows(scores),
    }


def _rounded(row: Row, *names: str) -> Row:
    return {name: rounded(row[name]) for name in names if name in row}


def mean_rows(scores: Scores, against: str) -> list[Row]:
    """Return each method's mean over its seeds, with the edges of its band, and where markers are."""
    rows: list[Row] = []
    for index, method in enumerate(scores.methods):
        curves: dict[int, list[tuple[float, float]]] = {}
        for row in scores.rows:
            if row["method"] == method:
                curves.setdefault(row["seed"], []).append((row[against], row["score"]))
        found = band(list(curves.values()))
        every = max(1, len(found.xs) // MARKERS)
        for place, (x, middle) in enumerate(zip(found.xs, found.means, strict=True)):
            row = {"method": method, "x": rounded(x), "y": rounded(middle)}
            if found.deviations:
                row["low"] = rounded(middle - found.deviations[place])
                row["high"] = rounded(middle + found.deviations[place])
            if place % every == index % every:
                row["marked"] = True
            rows.append(row)
    return rows


def useful_range(scores: Scores) -> tuple[float, float]:
    """Return the range that shows the differences: from the score that three of four evaluations reach.

    A target further away than half of what the scores span is left to the whole range.

    >>> rows = [{"score": score} for score in (0.1, 0.7, 0.8, 0.85, 0.9)]
    >>> useful_range(Scores(rows, [], "accuracy"))
    (0.69, 0.91)
    """
    sign = -1.0 if scores.is_lower_better else 1.0
    values = sorted(sign * row["score"] for row in scores.rows)
    least, most = values[0], values[-1]
    near = 0.5 * (most - least)
    targets = [sign * t for t in scores.targets if least - near <= sign * t <= most + near]
    low, high = min([values[len(values) // 4], *targets]), max([most, *targets])
    if low - least <= 0.2 * (high - least):
        return whole_range(replace(scores, targets=[sign * t for t in targets]))
    margin = 0.05 * (high - low)
    ends = sorted((rounded(sign * (low - margin)), rounded(sign * (high + margin))))
    return ends[0], ends[1]


def whole_range(scores: Scores) -> tuple[float, float]:
    """Return a range that holds every score and target, with a margin."""
    values = [*(row["score"] for row in scores.rows), *scores.targets]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.05 * abs(low) or 0.05
    return rounded(low - margin), rounded(high + margin)


def _axes(scores: Scores, against: str) -> tuple[Row, Row]:
    """Return the encodings of place and score; the page's switch ``whole`` shows every score."""
    end = max((row["x"] for row in mean_rows(scores, against)), default=0.0) or 1.0
    (low, high), (least, most) = useful_range(scores), whole_range(scores)
    domain = [{"expr": f"whole ? {least} : {low}"}, {"expr": f"whole ? {most} : {high}"}]
    across, up = {"domain": [0, end], "nice": False}, {"domain": domain, "nice": False, "zero": False}
    axis = {"format": "~%"} if scores.are_fractions else {}
    return (
        quantity("x", title=AXES[against], axis={"grid": False, "tickCount": 7}, scale=across),
        quantity("y", title=scores.metric, axis=axis, scale=up),
    )


def _bands(x: Row, y: Row, colour: Row, data: str = "", opacity: Row | None = None) -> Specification:
    low = quantity("low", title=y["title"])
    opacity = opacity or faded(0.14, 0.03)
    encoding = {"x": x, "y": low, "y2": {"field": "high"}, "opacity": opacity, "color": colour}
    return layer("area", encoding, data, [VISIBLE, {"filter": "isValid(datum.low)"}], clip=True)


def _target_rows(scores: Scores) -> list[Row]:
    def shown(target: float) -> str:
        return f"{100 * target:.4g} %" if scores.are_fractions else f"{target:.4g}"

    return [{"target": t, "label": f"target {shown(t)}"} for t in sorted(set(scores.targets))]


def _evaluations(scores: Scores, against: str, colour: Row) -> Specification:
    """Return invisible dots at the real evaluations of every seed, which show up and say their numbers."""
    tooltip = [
        category("method"),
        category("seed"),
        quantity("score", title=scores.metric, format=".1%" if scores.are_fractions else ".4~g"),
        quantity("update", title="accepted updates"),
        quantity("time", title="virtual time", format=".4~g"),
    ]
    shown = {"condition": {"param": "pointed", "empty": False, "value": 1}, "value": 0}
    encoding: Row = {"x": quantity(against), "y": quantity("score"), "color": colour, "opacity": shown}
    encoding["tooltip"] = tooltip
    return layer("point", encoding, "scores", [VISIBLE], "evaluations", filled=True, size=70, clip=True)
