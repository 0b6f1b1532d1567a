"""Write the report: the page, the tables and the figures."""

from __future__ import annotations

from pathlib import Path

from asyncmanifold.errors import InputError
from asyncmanifold.files import write_atomically
from asyncmanifold.report.comparison import tabulate, write_table
from asyncmanifold.report.comparison_figures import comparison_figures
from asyncmanifold.report.figure_files import make_figures_folder, write_figures
from asyncmanifold.report.finished_runs import FoundRuns, RunData, find_runs
from asyncmanifold.report.report_page import report_page
from asyncmanifold.report.result_table import Table, latex_table


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write the report about every run in ``directory`` or below it; return the page's path.

    ``out`` is the folder to write to, ``directory`` itself if None: report.html, table.md, table.tex,
    compare.json, and the figures over all runs as figures/*.svg and .png. Runs without a summary are shown as
    far as they are; the table files hold them only if no run is finished. Broken runs are left out and named
    in the page; if no run can be shown, that is an ``InputError``. Drawing needs the ``report`` extra.
    """
    found = find_runs(directory)
    if not found.runs:
        raise InputError(_why_nothing(directory, found))
    out = out or directory
    folder = make_figures_folder(out)
    finished = [run for run in found.runs if run.is_finished]
    table = _table(finished or found.runs)
    scenarios = ", ".join(sorted({run.scenario for run in found.runs}))
    write_table(out, scenarios, found.runs[0].summary["metric"], table)
    write_atomically(out / "table.tex", latex_table(table).encode())
    figures = comparison_figures(found)
    write_figures(folder, figures)
    page = report_page(found, _table(found.runs), figures)
    write_atomically(out / "report.html", page.encode())
    return out / "report.html"


def _table(runs: list[RunData]) -> Table:
    return tabulate({**run.summary, "method": run.method} for run in runs)


def _why_nothing(directory: Path, found: FoundRuns) -> str:
    if not directory.is_dir():
        return f"{directory}: no such directory"
    if not found.problems:
        return f"{directory}: holds no run"
    place, why = found.problems[0]
    return f"{directory}: holds no run that can be shown ({place}: {why})"
