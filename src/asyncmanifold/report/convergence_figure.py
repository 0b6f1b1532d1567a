"""The figure of a convergence study: gradient norms and bounds against the number of updates, log–log."""

from __future__ import annotations

from collections.abc import Sequence

from asyncmanifold.report.figure import Figure, Row, Specification, category, layer, quantity, rounded
from asyncmanifold.report.score_layers import SWITCHES, VISIBLE, faded, series_encodings
from asyncmanifold.theory.findings import Finding

HALF = -0.5
"""The slope that the theorem promises."""
NORM = "average of ‖grad L‖²"
MARGIN = 1.3
"""The factor of the margin beside the first and the last length; its square above and below."""


def convergence_figure(findings: Sequence[Finding]) -> Figure:
    """Return the figure of all problems."""
    titles = [slope_title(finding) for finding in findings]
    means: list[Row] = []
    seeds: list[Row] = []
    bounds: list[Row] = []
    for title, finding in zip(titles, findings, strict=True):
        for entry in finding.lengths:
            place = {"method": title, "updates": entry.updates}
            means.append({**place, "value": entry.mean})
            seeds += [
                {**place, "value": value, "seed": seed}
                for seed, value in zip(finding.seeds, entry.squares, strict=False)
            ]
            if entry.bound is not None:
                bounds.append({**place, "value": entry.bound})
    data = {"means": means, "seeds": seeds, "bounds": bounds, "reference": _reference_rows(findings)}
    caption = (
        "The average squared gradient norm of the server's models in asynchronous runs of T updates with"
        " η_l = 1/max(2C₁, √T): marks are means over seeds, the dots beside them single seeds. Dashed lines"
        " are the corrected bound, the grey line falls like 1/√T. Slopes are given with their 95 % interval."
    )
    title = "Gradient norm against the number of updates"
    return Figure("convergence", title, caption, _specification(titles, data), data)


def slope_title(finding: Finding) -> str:
    """Return a problem's line in the legend, with its slope."""
    slopes = (finding.slope, finding.slope_low, finding.slope_high)
    slope, low, high = (f"{value:.3f}".replace("-", "−") for value in slopes)
    return f"{finding.title}: slope {slope} ({low} to {high})"


def _reference_rows(findings: Sequence[Finding]) -> list[Row]:
    """Return a line of slope −½ above the measured values, with its label in the middle."""
    first, last = (float(findings[0].lengths[place].updates) for place in (0, -1))
    start = 3.0 * max(finding.lengths[0].mean for finding in findings)
    places = [first, (first * last) ** 0.5, last]
    rows: list[Row] = [{"updates": x, "value": start * (x / first) ** HALF} for x in places]
    rows[1]["label"] = "slope −½"
    return rows


def _specification(titles: Sequence[str], data: dict[str, list[Row]]) -> Specification:
    lengths = sorted({row["updates"] for row in data["means"]})
    values = [row["value"] for rows in data.values() for row in rows]
    legend = {"columns": 1, "labelLimit": 460}
    styles = {key: {**entry, "legend": legend} for key, entry in series_encodings(titles).items()}
    across = _log_scale(lengths[0] / MARGIN, lengths[-1] * MARGIN)
    up = _log_scale(min(values) / MARGIN**2, max(values) * MARGIN**2)
    x = quantity("updates", title="updates T", scale=across)
    x["axis"] = {"values": lengths, "format": "d", "grid": False}
    y = quantity("value", title=NORM, scale=up, axis={"tickCount": 5, "format": "~g"})
    plain = {"x": x, "y": y}
    places = {**plain, "color": styles["color"], "opacity": faded()}
    about = [category("method", title="problem"), quantity("updates", title="updates T")]
    number = quantity("value", title=NORM, format=".4~g")
    bounds = {**places, "tooltip": [*about, {**number, "title": "bound"}]}
    lines = {**places, "strokeDash": styles["strokeDash"]}
    means = {**places, "shape": styles["shape"], "tooltip": [*about, number]}
    seeds = {**places, "tooltip": [*about, number, category("seed")]}
    label = {**plain, "text": category("label")}
    labelled = [{"filter": "isValid(datum.label)"}]
    layers = [
        layer("line", plain, "reference", color="gray", strokeWidth=1),
        layer("text", label, "reference", labelled, align="left", dx=6, dy=-8),
        layer("line", bounds, "bounds", [VISIBLE], strokeDash=[6, 4], point=True),
        layer("line", lines, "means", [VISIBLE]),
        layer("point", means, "means", [VISIBLE], filled=True, size=60),
        layer("point", seeds, "seeds", [VISIBLE], filled=True, size=14, xOffset=9),
    ]
    return {"height": 300, "params": SWITCHES, "layer": layers}


def _log_scale(low: float, high: float) -> Row:
    return {"type": "log", "nice": False, "domain": [rounded(low), rounded(high)]}
