"""The figure of fairness to fast and slow clients: how much each contributed, against its speed."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import mean

from asyncmanifold.report.curves import thin_out
from asyncmanifold.report.figure import Figure, Row, Specification, category, layer, quantity, rounded
from asyncmanifold.report.finished_runs import FoundRuns, RunData
from asyncmanifold.report.score_layers import SWITCHES, VISIBLE, series_encodings

MOST_DOTS = 400
"""The most clients that are drawn of one method."""


def contribution_figure(found: FoundRuns) -> Figure:
    """Return a dot for each client, in one small plot per method."""
    rows = [
        row
        for method in found.methods
        for row in thin_out([row for run in found.of_method(method) for row in contributions(run)], MOST_DOTS)
    ]
    caption = (
        "Each dot is one client in one seed: the sum of its accepted steps' lengths, as a multiple of what"
        " every client would have at equal contributions (the line), against the mean duration of its jobs,"
        " as a multiple of the mean over clients. Where contributions do not depend on speed, dots lie around"
        f" the line at every duration. At most {MOST_DOTS} dots per method."
    )
    title = "Contribution of fast and slow clients"
    return Figure("contribution", title, caption, _specification(found), {"contributions": rows})


def contributions(run: RunData) -> list[Row]:
    """Return each client's relative duration and relative contribution; none if nothing was accepted."""
    durations: dict[int, list[float]] = defaultdict(list)
    for job in run.jobs:
        durations[job.client].append(job.end - job.start)
    lengths: dict[int, float] = defaultdict(float)
    updates: Counter[int] = Counter()
    for step in run.steps:
        lengths[step.client] += step.step_norm
        updates[step.client] += 1
    usual = {client: mean(taken) for client, taken in durations.items()}
    overall, total = mean(usual.values()) if usual else 0.0, sum(lengths.values())
    if overall <= 0.0 or total <= 0.0:
        return []
    return [
        {
            "method": run.method,
            "seed": run.seed,
            "client": client,
            "duration": rounded(usual[client] / overall),
            "share": rounded(lengths[client] * len(usual) / total),
            "updates": updates[client],
        }
        for client in sorted(usual)
        if usual[client] > 0.0
    ]


def _specification(found: FoundRuns) -> Specification:
    scale = {"type": "log", "nice": False, "padding": 6}
    axis = {"grid": False, "tickCount": 3, "format": "~g", "values": [0.1, 0.2, 0.5, 1, 2, 5, 10]}
    encoding = {
        "x": quantity("duration", title="relative duration", scale=scale, axis=axis),
        "y": quantity("share", title="relative contribution", axis={"tickCount": 4}),
        "color": {**series_encodings(found.methods)["color"], "legend": None},
        "tooltip": [
            *map(category, ("method", "seed", "client")),
            quantity("updates", title="accepted updates"),
            quantity("duration", title="relative duration", format=".3~g"),
            quantity("share", title="relative contribution", format=".3~g"),
        ],
    }
    layers = [
        layer("rule", {"y": {"datum": 1}}, strokeDash=[4, 3]),
        layer("point", encoding, filled=True, size=22, opacity=0.6, clip=True),
    ]
    header = {"title": None, "labelLimit": 170}
    single = len(found.methods) == 1
    return {
        "data": {"name": "contributions"},
        "transform": [VISIBLE],
        "params": SWITCHES,
        "usermeta": {"layout": "wide"},
        "columns": 4,
        "spacing": 14,
        "facet": category("method", sort=found.methods, title=None, header=header),
        "spec": {"width": 440 if single else 150, "height": 220 if single else 130, "layer": layers},
    }
