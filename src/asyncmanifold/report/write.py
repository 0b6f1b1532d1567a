"""Writing the report: the page, the tables and the figures, side by side."""

from __future__ import annotations

import re
from pathlib import Path

from asyncmanifold.errors import InputError
from asyncmanifold.files import write_atomically
from asyncmanifold.report.comparison import tabulate, write_table
from asyncmanifold.report.drawing import Figure, standalone_svg
from asyncmanifold.report.figures import comparison_figures
from asyncmanifold.report.page import page
from asyncmanifold.report.png import write_pngs
from asyncmanifold.report.run_figures import run_figures
from asyncmanifold.report.runs import Findings, find_runs
from asyncmanifold.report.tables import latex_table


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write the report about every finished run in ``directory`` or below it; return the page's path.

    ``out`` is the folder to write to, ``directory`` itself if None: report.html, table.md, table.tex,
    compare.json and figures/*.svg, those over all runs also as .png where the ``report`` extra is installed.
    Runs that are unfinished or broken are named in the page and left out; a ValueError says that none is
    finished.
    """
    findings = find_runs(directory)
    if not findings.runs:
        raise InputError(_nothing(directory, findings))
    out = out or directory
    (out / "figures").mkdir(parents=True, exist_ok=True)
    table = tabulate({**run.summary, "method": run.method} for run in findings.runs)
    first = findings.runs[0]
    scenarios = ", ".join(sorted({run.scenario for run in findings.runs}))
    write_table(out, scenarios, first.summary["metric"], table)
    _write(out / "table.tex", latex_table(table))
    figures = comparison_figures(findings)
    for name, figure in (named_figures(findings, figures)).items():
        _write(out / "figures" / f"{name}.svg", standalone_svg(figure))
    _write(out / "report.html", page(findings, table, figures))
    write_pngs(out / "figures", figures)  # not each run's own: that would take many seconds
    return out / "report.html"


def named_figures(findings: Findings, figures: list[Figure]) -> dict[str, Figure]:
    """Return all figures by file name; a run's carry its method and seed, spelt safely."""
    named = {figure.name: figure for figure in figures}
    for place, run in enumerate(findings.runs):
        slug = re.sub(r"[^a-z0-9]+", "-", run.method.lower()).strip("-")[:60] or "method"
        for figure in run_figures(run):
            name = f"{figure.name}-{slug}-seed-{run.seed}"
            named[f"{name}-{place}" if name in named else name] = figure
    return named


def _nothing(directory: Path, findings: Findings) -> str:
    if not directory.is_dir():
        return f"{directory}: no such directory"
    if not findings.problems:
        return f"{directory}: holds no run"
    place, why = findings.problems[0]
    return f"{directory}: holds no finished run ({place}: {why})"


def _write(path: Path, content: str) -> None:
    write_atomically(path, content.encode())
