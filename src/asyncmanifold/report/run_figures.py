"""The figures about one run: when each client trained, cosines to the drift, and the server's steps."""

from __future__ import annotations

from collections.abc import Sequence

from asyncmanifold.report import svg
from asyncmanifold.report.comparison_figures import projected_share
from asyncmanifold.report.curves import thin_out
from asyncmanifold.report.finished_runs import JobSpan, RunData
from asyncmanifold.report.palette import BAD, GOOD, SMALL_TRIANGLE, colour_class
from asyncmanifold.report.svg import LEFT, RIGHT, AxisScale, Figure, Plot, number

MOST_JOBS = 3000
MOST_STEPS = 1500


def run_figures(run: RunData) -> list[Figure]:
    """Return the figures about one run."""
    return [timeline_figure(run), cosine_figure(run), step_figure(run)]


def timeline_figure(run: RunData) -> Figure:
    """Return a bar for each job, in one row per client."""
    jobs = run.jobs[:MOST_JOBS]
    clients = sorted({job.client for job in jobs})
    row = max(1.0, min(16.0, 420.0 / max(1, len(clients))))
    top = 20.0
    bottom = top + row * max(1, len(clients))
    x = svg.scale((job.end for job in jobs), LEFT, RIGHT, zero=True)
    middles = {client: top + row * (place + 0.5) for place, client in enumerate(clients)}
    parts = [svg.x_axis(x, bottom, top, "virtual time")]
    for client in thin_out(clients, 30):
        parts.append(svg.text(LEFT - 6, middles[client] + 4, str(client), anchor="end", kind="small"))
    for kind, index, share in (("update", GOOD, 0.7), ("refused", BAD, 0.35)):
        chosen = [job for job in jobs if (job.kind == "update") == (kind == "update")]
        if chosen:
            d = "".join(_job_bar(x, job, middles[job.client]) for job in chosen)
            width = f' stroke-width="{number(row * share)}"'
            parts.append(svg.path(d, f"jobs s {colour_class(index)}", width))
    parts.append(svg.text(6, 10, "client", kind="small"))
    refused = sum(job.kind != "update" for job in run.jobs)
    cut = f" Only the first {MOST_JOBS} jobs are shown." if len(run.jobs) > MOST_JOBS else ""
    caption = (
        f"{run.name}: each bar is one job, from its dispatch to its arrival. Broad blue bars were accepted,"
        f" thin orange ones lost, failed or rejected ({refused} of {len(run.jobs)}).{cut}"
    )
    return Figure("timeline", "Who trained when", caption, "".join(parts), bottom + 42)


def cosine_figure(run: RunData) -> Figure:
    """Return the cosine between each received control point and the drift."""
    shown = thin_out(run.steps, MOST_STEPS)
    points = [
        (step.update, value, projects)
        for step in shown
        for value, projects in zip(step.cosines, step.projected, strict=False)
    ]
    plot = Plot(
        svg.scale((x for x, _, _ in points), LEFT, RIGHT, zero=True), AxisScale(-1.0, 1.0, 230.0, 26.0)
    )
    kept = [plot.place(x, y) for x, y, projects in points if not projects]
    gone = [plot.place(x, y) for x, y, projects in points if projects]
    parts = [svg.axes(plot, "updates", "cosine to the drift")]
    parts.append(svg.path(f"M{number(LEFT)} {number(plot.y(0.0))}H{number(RIGHT)}", "axis"))
    parts.append(_dots_and_triangles(kept, gone))
    parts.append(_two_keys("kept (dot)", "projected (triangle)", 282.0))
    share = projected_share(run)
    often = "No update came." if share is None else f"{share:.1%} of the control points were projected."
    caption = (
        f"{run.name}: the cosine between what a client sent (every control point) and how the model had"
        f" moved meanwhile; 0 where it had not. {often}{_note_thinning(run)}"
    )
    return Figure("cosines", "Updates against the drift", caption, "".join(parts), 296.0)


def step_figure(run: RunData) -> Figure:
    """Return the step fraction and the position on the curve over time."""
    shown = thin_out(run.steps, MOST_STEPS)
    values = [value for step in shown for value in (step.fraction, step.t)]
    plot = Plot(
        svg.scale((step.time for step in shown), LEFT, RIGHT, zero=True),
        svg.scale(values, 230.0, 26.0, zero=True),
    )
    fractions = [plot.place(step.time, step.fraction) for step in shown]
    places = [plot.place(step.time, step.t) for step in shown]
    parts = [svg.axes(plot, "virtual time", "fraction s, parameter t*")]
    parts.append(_dots_and_triangles(fractions, places))
    parts.append(_two_keys("step fraction s (dot)", "t* on the curve (triangle)", 282.0))
    caption = (
        f"{run.name}: the fraction s of the way to the update's end point that the server went, and the"
        f" curve parameter t* where it stopped. The two agree on a straight line.{_note_thinning(run)}"
    )
    return Figure("steps", "How far the server went", caption, "".join(parts), 296.0)


def _job_bar(x: AxisScale, job: JobSpan, y: float) -> str:
    """Return a job's bar, slightly shortened so that the start of the next one is visible."""
    length = max(0.4, x(job.end) - x(job.start) - 0.8)
    return f"M{number(x(job.start))} {number(y)}h{number(length)}"


def _note_thinning(run: RunData) -> str:
    """Return a note if not every update is drawn."""
    if len(run.steps) <= MOST_STEPS:
        return ""
    return f" {MOST_STEPS} of {len(run.steps)} updates are drawn, evenly spread."


def _dots_and_triangles(usual: Sequence[str], other: Sequence[str]) -> str:
    """Return two kinds of points, each in its own colour and shape."""
    dotted = svg.path(svg.dots(usual), f"dots s {colour_class(GOOD)}", ' stroke-width="4"')
    triangles = "".join(SMALL_TRIANGLE.format(place=place) for place in other)
    hollow = svg.path(triangles, f"hollow s {colour_class(BAD)}")
    return (dotted if usual else "") + (hollow if other else "")


def _two_keys(first: str, second: str, y: float) -> str:
    return (
        svg.path(svg.dots([f"54 {number(y - 4)}"]), f"dots s {colour_class(GOOD)}", ' stroke-width="6"')
        + svg.text(64, y, first)
        + svg.path(SMALL_TRIANGLE.format(place=f"244 {number(y - 4)}"), f"hollow s {colour_class(BAD)}")
        + svg.text(254, y, second)
    )
