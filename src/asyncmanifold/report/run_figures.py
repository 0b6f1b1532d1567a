"""The figures about one run: when each client trained, cosines to the drift, and the server's steps.

Their specifications are the same for every run, so that a page can show one run after the other.
"""

from __future__ import annotations

from asyncmanifold.report.comparison_figures import projected_share
from asyncmanifold.report.curves import thin_out
from asyncmanifold.report.figure import Figure, Row, Specification, category, layer, quantity, rounded
from asyncmanifold.report.finished_runs import RunData
from asyncmanifold.report.score_layers import VIEW

MOST_JOBS = 3000
MOST_STEPS = 1500
DOT: Row = {"clip": True, "filled": True, "size": 22, "opacity": 0.7}
OUTCOMES = {
    "update": "accepted",
    "rejected": "rejected",
    "failed": "failed",
    "dropped": "lost",
    "discarded": "discarded",
    "cancelled": "cancelled",
}


def run_figures(run: RunData) -> list[Figure]:
    """Return the figures about one run."""
    return [timeline_figure(run), cosine_figure(run), step_figure(run)]


def timeline_figure(run: RunData) -> Figure:
    """Return a bar for each job, in one row per client."""
    rows = [
        {
            "client": job.client,
            "start": rounded(job.start),
            "end": rounded(job.end),
            "outcome": OUTCOMES[job.kind],
        }
        for job in run.jobs[:MOST_JOBS]
    ]
    refused = sum(job.kind != "update" for job in run.jobs)
    cut = f" Only the first {MOST_JOBS} jobs are shown." if len(run.jobs) > MOST_JOBS else ""
    caption = (
        f"{run.name}: each bar is one job, from its dispatch to its arrival. Thin bars were lost, failed or"
        f" rejected ({refused} of {len(run.jobs)}).{cut}"
    )
    return Figure("timeline", "Who trained when", caption, _timeline_specification(), {"jobs": rows})


def cosine_figure(run: RunData) -> Figure:
    """Return the cosine between each received control point and the drift."""
    rows = [
        {
            "update": step.update,
            "point": place,
            "cosine": rounded(value),
            "outcome": "projected" if projects else "kept",
        }
        for step in thin_out(run.steps, MOST_STEPS)
        for place, (value, projects) in enumerate(zip(step.cosines, step.projected, strict=False), 1)
    ]
    share = projected_share(run)
    often = "No update came." if share is None else f"{share:.1%} of the control points were projected."
    caption = (
        f"{run.name}: the cosine between what a client sent (every control point) and how the model had"
        f" moved meanwhile; 0 where it had not. {often}{_note_thinning(run)}"
    )
    return Figure("cosines", "Updates against the drift", caption, _cosine_specification(), {"cosines": rows})


def step_figure(run: RunData) -> Figure:
    """Return the step fraction and the position on the curve over time."""
    rows = [
        {
            "update": step.update,
            "time": rounded(step.time),
            "staleness": step.staleness,
            "step fraction s": rounded(step.fraction),
            "t* on the curve": rounded(step.t),
        }
        for step in thin_out(run.steps, MOST_STEPS)
    ]
    caption = (
        f"{run.name}: the fraction s of the way to the update's end point that the server went, and the"
        f" curve parameter t* where it stopped. The two agree on a straight line.{_note_thinning(run)}"
    )
    return Figure("steps", "How far the server went", caption, _step_specification(), {"steps": rows})


def _note_thinning(run: RunData) -> str:
    """Return a note if not every update is drawn."""
    if len(run.steps) <= MOST_STEPS:
        return ""
    return f" {MOST_STEPS} of {len(run.steps)} updates are drawn, evenly spread."


def _timeline_specification() -> Specification:
    client = {"field": "client", "type": "ordinal"}
    encoding = {
        "x": quantity("start", title="virtual time"),
        "x2": {"field": "end"},
        "y": {**client, "axis": {"grid": False}},
        "color": category("outcome", scale={"domain": list(OUTCOMES.values())}, title=None),
        "tooltip": [
            client,
            category("outcome"),
            quantity("start", title="dispatched", format=".4~g"),
            quantity("end", title="arrived", format=".4~g"),
        ],
    }
    accepted, others = ([{"filter": f"datum.outcome {sign} 'accepted'"}] for sign in ("===", "!=="))
    bar: Row = {"clip": True, "style": "apart"}
    zoom = {**VIEW, "select": {**VIEW["select"], "encodings": ["x"]}, "views": ["accepted"]}
    layers = [
        layer("bar", encoding, "", accepted, "accepted", height={"band": 0.7}, opacity=0.75, **bar),
        layer("bar", encoding, "", others, height={"band": 0.35}, **bar),
    ]
    return {"data": {"name": "jobs"}, "height": 280, "params": [zoom], "layer": layers}


def _two_kinds(names: list[str]) -> Row:
    """Return the encodings of the usual case, a dot, and of the exception, a triangle."""
    shapes = {"domain": names, "range": ["circle", "triangle-up"]}
    return {
        "color": category("kind", title=None, scale={"domain": names}),
        "shape": category("kind", title=None, scale=shapes),
    }


def _cosine_specification() -> Specification:
    encoding = {
        "x": quantity("update", title="updates"),
        "y": quantity("cosine", title="cosine to the drift", scale={"domain": [-1, 1]}),
        "tooltip": [
            quantity("update"),
            quantity("point", title="control point"),
            quantity("cosine", format=".4f"),
            category("outcome"),
        ],
        **_two_kinds(["kept", "projected"]),
    }
    return {
        "data": {"name": "cosines"},
        "transform": [{"calculate": "datum.outcome", "as": "kind"}],
        "height": 240,
        "params": [{**VIEW, "views": ["points"]}],
        "layer": [
            layer("point", encoding, name="points", **DOT),
            {"mark": "rule", "encoding": {"y": {"datum": 0}}},
        ],
    }


def _step_specification() -> Specification:
    names = ["step fraction s", "t* on the curve"]
    encoding = {
        "x": quantity("time", title="virtual time"),
        "y": quantity("value", title="fraction s, parameter t*"),
        "tooltip": [
            quantity("update"),
            quantity("time", format=".4~g"),
            quantity("staleness"),
            *(quantity(name, format=".4~g") for name in names),
        ],
        **_two_kinds(names),
    }
    points = layer("point", encoding, "steps", [{"fold": names, "as": ["kind", "value"]}], **DOT)
    zoom = {key: value for key, value in VIEW.items() if key != "views"}
    return {**points, "height": 240, "params": [zoom]}
