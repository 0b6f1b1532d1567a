"""Write the report: the page, the tables and the figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from asyncmanifold.errors import InputError
from asyncmanifold.files import write_atomically
from asyncmanifold.report.comparison import tabulate, write_table
from asyncmanifold.report.comparison_figures import comparison_figures
from asyncmanifold.report.figure_files import make_figures_folder, write_pngs, write_svgs
from asyncmanifold.report.finished_runs import FoundRuns, RunData, find_runs
from asyncmanifold.report.report_page import report_page
from asyncmanifold.report.result_table import latex_table
from asyncmanifold.report.run_figures import run_figures
from asyncmanifold.report.svg import Figure


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write the report about every finished run in ``directory`` or below it; return the page's path.

    ``out`` is the folder to write to, ``directory`` itself if None: report.html, table.md, table.tex,
    compare.json and figures/*.svg, those over all runs also as .png if the ``report`` extra is installed.
    Unfinished or broken runs are left out and named in the page; if no run is finished, that is an
    ``InputError``.
    """
    found = find_runs(directory)
    if not found.runs:
        raise InputError(_why_nothing(directory, found))
    out = out or directory
    folder = make_figures_folder(out)
    table = tabulate({**run.summary, "method": run.method} for run in found.runs)
    scenarios = ", ".join(sorted({run.scenario for run in found.runs}))
    write_table(out, scenarios, found.runs[0].summary["metric"], table)
    write_atomically(out / "table.tex", latex_table(table).encode())
    figures = comparison_figures(found)
    write_svgs(folder, figures)
    write_svgs(folder, _renamed_run_figures(found.runs))
    write_atomically(out / "report.html", report_page(found, table, figures).encode())
    write_pngs(folder, figures)  # not those of each run, which would take many seconds
    return out / "report.html"


def _renamed_run_figures(runs: Iterable[RunData]) -> Iterator[Figure]:
    """Yield every run's figures, renamed to distinct, safe file names with the run's method and seed."""
    names: set[str] = set()
    for place, run in enumerate(runs):
        slug = re.sub(r"[^a-z0-9]+", "-", run.method.lower()).strip("-")[:60] or "method"
        for figure in run_figures(run):
            name = f"{figure.name}-{slug}-seed-{run.seed}"
            names.add(name := f"{name}-{place}" if name in names else name)
            yield replace(figure, name=name)


def _why_nothing(directory: Path, found: FoundRuns) -> str:
    if not directory.is_dir():
        return f"{directory}: no such directory"
    if not found.problems:
        return f"{directory}: holds no run"
    place, why = found.problems[0]
    return f"{directory}: holds no finished run ({place}: {why})"
