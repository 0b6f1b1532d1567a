"""The page about runs: the table, the figures over all runs, the figures of each run, and what was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncmanifold.report.comparison_figures import projected_share
from asyncmanifold.report.figure import Figure, as_table, escape
from asyncmanifold.report.finished_runs import FoundRuns, RunData
from asyncmanifold.report.page import figure_block, html_page, legend_block
from asyncmanifold.report.privacy_section import privacy_section
from asyncmanifold.report.result_table import Table, html_scores, html_table
from asyncmanifold.report.run_figures import run_figures
from asyncmanifold.report.what_was_run import run_section

MOST_RUNS = 60
"""The most runs whose own figures are in the page."""


def report_page(found: FoundRuns, table: Table, figures: Sequence[Figure]) -> str:
    """Return the whole HTML file as a string."""
    scenarios = sorted({run.scenario for run in found.runs} - {""})
    runs = found.runs[:MOST_RUNS]
    shown = max(range(len(runs)), key=lambda place: _interest(runs[place]))
    singles = run_figures(runs[shown])
    main = f"""{_problems(found)}<section>
<h2>Results</h2>
<div class="scroll">{html_table(table)}</div>
<p class="caption">{escape(_table_caption(found)).replace("T_e", "T<sub>e</sub>")}</p>
{_scores(table)}</section>
<section>
<h2>Over all runs</h2>
<p class="hint" hidden>Point at a method to bring it out, click it to switch it off or on, in every figure.
Point at a line to read an evaluation. Ctrl or Shift with the wheel zooms, dragging moves, a double click
goes back.</p>
{legend_block(found.methods) if len(found.methods) > 1 else ""}<div class="figures">
{"".join(figure_block(figure) for figure in figures)}</div>
</section>
<section id="runs">
<h2>Single runs</h2>
{_note_on_limit(found)}<div class="figures">
{"".join(figure_block(figure) for figure in singles)}</div></section>
{privacy_section(found.runs)}{run_section(found)}"""
    title = " · ".join(dict.fromkeys([*scenarios, "asyncmanifold"]))
    more = {"runs": [_run_content(run) for run in runs], "shownRun": shown}
    return html_page(title, _overview(found), main, [*figures, *_without_data(singles)], more)


def _run_content(run: RunData) -> dict[str, Any]:
    """Return what the figures of single runs need to show a run."""
    figures = run_figures(run)
    data = {name: as_table(rows) for figure in figures for name, rows in figure.data.items()}
    return {"name": run.name, "data": data, "captions": {figure.name: figure.caption for figure in figures}}


def _without_data(figures: Sequence[Figure]) -> list[Figure]:
    return [Figure(figure.name, figure.title, figure.caption, figure.specification) for figure in figures]


def _interest(run: RunData) -> tuple[int, bool]:
    """Return a run's rank as the one to show first: curves before points, then runs that projected."""
    return len(run.steps[0].cosines) if run.steps else 0, bool(projected_share(run))


def _scores(table: Table) -> str:
    scores = html_scores(table)
    if not scores:
        return ""
    return (
        f'<h3>All scores</h3>\n<div class="scroll">{scores}</div>\n'
        '<p class="caption">On the test data, over the last evaluations: mean ± standard deviation over'
        " seeds.</p>\n"
    )


def _overview(found: FoundRuns) -> str:
    finished = sum(run.is_finished for run in found.runs)
    methods = len({run.method.removesuffix(" (unfinished)") for run in found.runs})
    others = len(found.runs) - finished
    going = f" and {others} unfinished" if others else ""
    seeds = sorted({run.seed for run in found.runs})
    shown = ", ".join(map(str, seeds[:10])) + (" …" if len(seeds) > 10 else "")
    return (
        f"{finished} finished run{'s' * (finished != 1)}{going} of {methods} method{'s' * (methods != 1)},"
        f" seed{'s' * (len(seeds) != 1)} {shown}."
    )


def _table_caption(found: FoundRuns) -> str:
    targets = sorted({run.summary["target"] for run in found.runs} - {None})
    reached = (
        f"Target updates is T_e: the accepted updates until the test score first reached "
        f"{', '.join(f'{target:g} (e = {1 - target:.3g})' for target in targets)}; target time is the virtual"
        " time of the same moment."
        if targets
        else "No target was set."
    )
    return (
        f"Mean ± standard deviation over seeds; a mean is bold if it is better than every other by more"
        f" than both deviations together. Final: {_final(found)}. {reached} (k/n): only k of n seeds"
        " have the number, and it is never called best. Gini and Theil are computed over the clients' scores"
        " with the best model."
    )


def _final(found: FoundRuns) -> str:
    """Return what the final score is, as the runs say."""
    counts = {run.summary.get("final_evaluations", 1) for run in found.runs}
    if counts == {1}:
        return "the last evaluation"
    return f"the mean of the last {' or '.join(map(str, sorted(counts)))} evaluations"


def _problems(found: FoundRuns) -> str:
    if not found.problems:
        return ""
    lines = "".join(f"<li><b>{escape(place)}</b>: {escape(why)}</li>" for place, why in found.problems)
    return f'<section class="problems"><h2>Left out</h2>\n<ul>{lines}</ul></section>\n'


def _note_on_limit(found: FoundRuns) -> str:
    if len(found.runs) <= MOST_RUNS:
        return ""
    return f"<p>The first {MOST_RUNS} of {len(found.runs)} runs.</p>\n"
