"""The page about the loss around one update, and the files beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from asyncmanifold.files import write_atomically, write_json
from asyncmanifold.landscape.numbers import Landscape
from asyncmanifold.report.figure import Figure, escape
from asyncmanifold.report.figure_files import make_figures_folder, write_figures
from asyncmanifold.report.landscape_figures import landscape_figures
from asyncmanifold.report.page import figure_block, html_page, legend_block

DIFFERS = (
    "the repeated run differs from its trace (another version of torch, or another data file?): "
    "the pictures show the repeated one"
)


def write_landscape(landscape: Landscape, out: Path) -> Path:
    """Write landscape.html, landscape.json and the figures; return the page's path."""
    folder = make_figures_folder(out)
    write_json(out / "landscape.json", asdict(landscape))
    figures = landscape_figures(landscape)
    write_figures(folder, figures)
    write_atomically(out / "landscape.html", landscape_page(landscape, figures).encode())
    return out / "landscape.html"


def landscape_page(landscape: Landscape, figures: Sequence[Figure]) -> str:
    """Return the whole HTML file as a string."""
    is_curve = any(scene.curve_losses for scene in landscape.scenes)
    legend = legend_block(["curve", "chord"]) if is_curve else ""
    main = f"""{_warning(landscape)}{legend}<div class="figures">
{_superscript_versions("".join(figure_block(figure) for figure in figures))}</div>
<section>
<h2>Losses</h2>
<div class="scroll">{_loss_table(landscape)}</div>
<p class="caption">{_superscript_versions(escape(_table_caption(landscape)))}</p>
</section>
"""
    title = f"Loss landscape · {landscape.scenario} · {landscape.method}"
    return html_page(title, _overview(landscape), main, figures)


def _overview(landscape: Landscape) -> str:
    staleness = landscape.version - landscape.base_version
    moved = (
        f"{staleness} version{'s' * (staleness != 1)} later" if staleness else "before the model had moved"
    )
    return (
        f"Seed {landscape.seed}, update {landscape.update}: client {landscape.client} trained from version "
        f"{landscape.base_version} and came back {moved}. Its step is a fraction "
        f"{landscape.fraction:.3g} of the way, to t* = {landscape.t:.3g}. The model has "
        f"{landscape.parameters:,} parameters."
    )


def _warning(landscape: Landscape) -> str:
    if not landscape.differs:
        return ""
    return f'<section class="problems"><p>{DIFFERS.capitalize()}.</p></section>\n'


def _loss_table(landscape: Landscape) -> str:
    """Return the loss of every marked model, one column per scene."""
    kinds = {"train": "training data", "test": "test data"}
    heads = "".join(f"<th>{scene.view}, {kinds[scene.data]}</th>" for scene in landscape.scenes)
    names = dict.fromkeys(mark.name for scene in landscape.scenes for mark in scene.marks)
    rows = []
    for name in names:
        cells = []
        for scene in landscape.scenes:
            found = [mark.loss for mark in scene.marks if mark.name == name]
            cells.append(f"<td>{'–' if not found or found[0] is None else format(found[0], '.4f')}</td>")
        rows.append(f"<tr><th>{_superscript_versions(escape(name))}</th>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th>model</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _superscript_versions(html: str) -> str:
    """Return HTML with the versions of models as superscripts."""
    return re.sub(r"Θ\^(τ\+1|τ|t)", r"Θ<sup>\1</sup>", html)


def _table_caption(landscape: Landscape) -> str:
    (train, all_train), (test, all_test) = landscape.train_examples, landscape.test_examples
    return (
        f"Mean loss over {train} of the client's {all_train} training examples and {test} of {all_test} "
        "test examples, in evaluation mode. Each plane has its own colours, finest near the lowest loss. "
        "Θ^t is the model that the client started from, C its local model, B the curve's inner control "
        "point, Θ^τ the server's model when the update arrived, B′ and C′ the corrected control points."
    )
