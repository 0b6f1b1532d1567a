"""The page about a convergence study, and the files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from asyncmanifold.files import write_atomically, write_json
from asyncmanifold.report.convergence_figure import convergence_figure, slope_title
from asyncmanifold.report.figure import Figure, escape
from asyncmanifold.report.figure_files import make_figures_folder, write_figures
from asyncmanifold.report.page import figure_block, html_page, legend_block
from asyncmanifold.theory.findings import Finding

HEADS = (
    "problem",
    "updates T",
    "η_l",
    "mean of ‖grad L‖²",
    "deviation",
    "staleness",
    "bound",
    "printed bound",
)


def write_theory(findings: Sequence[Finding], out: Path) -> Path:
    """Write theory.html, theory.json and the figure; return the page's path."""
    folder = make_figures_folder(out)
    write_json(out / "theory.json", [asdict(finding) for finding in findings])
    figure = convergence_figure(findings)
    write_figures(folder, [figure])
    write_atomically(out / "theory.html", theory_page(findings, figure).encode())
    return out / "theory.html"


def theory_page(findings: Sequence[Finding], figure: Figure) -> str:
    """Return the whole HTML file as a string."""
    first = findings[0]
    main = f"""{legend_block(map(slope_title, findings))}<div class="figures">
{figure_block(figure)}</div>
<section>
<h2>Numbers</h2>
<div class="scroll">{_table(findings)}</div>
<p class="caption">Means over {len(first.seeds)} seeds. The bound is the corrected theorem's with the smallest
Q and the largest S of all lengths; the printed one is that of the paper. –: not defined.</p>
</section>
"""
    overview = (
        f"{first.method} on {len(findings)} problems with known constants: {first.setting.clients} clients,"
        f" {first.setting.steps} local steps, η_g = {first.setting.global_lr:g}."
    )
    return html_page("Convergence · asyncmanifold", overview, main, [figure])


def _table(findings: Sequence[Finding]) -> str:
    rows = []
    for finding in findings:
        for entry in finding.lengths:
            numbers = (entry.local_lr, entry.mean, entry.deviation, entry.staleness)
            values = [float(entry.updates), *numbers, entry.bound, entry.printed_bound]
            cells = "".join(
                f'<td data-value="{"" if value is None else value}">'
                f"{'–' if value is None else format(value, '.4g')}</td>"
                for value in values
            )
            rows.append(f'<tr><th scope="row">{escape(finding.title)}</th>{cells}</tr>\n')
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in HEADS)
    body = "".join(rows)
    return f'<table class="sortable"><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table>'
