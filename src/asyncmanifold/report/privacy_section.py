"""The page's section about privacy: what each private run released of its clients, and at which ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncmanifold.report.figure import escape
from asyncmanifold.report.finished_runs import RunData
from asyncmanifold.report.result_table import html_rows

HEADS = ("run", "protection", "C", "σ", "neighbours", "δ", "ε", "releases", "ε by client")
CAPTION = (
    "ε is that of the client with the most releases; no amplification by sampling is claimed. Local: each "
    "upload is clipped to C and noised by its client. Central: a trusted server adds the noise to sums of "
    "clipped steps, and its trace is not protected. Example: clients train by DP-SGD, a release per step. "
    "The noise is the operating system's: these runs cannot be repeated."
)


def privacy_section(runs: Sequence[RunData]) -> str:
    """Return the section as HTML; nothing if no run is private."""
    rows = [
        _row(run.name, privacy)
        for run in runs
        if isinstance(privacy := run.summary.get("privacy"), Mapping) and _is_whole(privacy)
    ]
    if not rows:
        return ""
    table = html_rows(HEADS, rows)
    return f'<section>\n<h2>Privacy</h2>\n<p>{CAPTION}</p>\n<div class="scroll">{table}</div>\n</section>\n'


def _row(name: str, privacy: Mapping[str, Any]) -> str:
    made, clients = privacy["releases"], privacy["epsilon_per_client"]
    cells = [
        *(privacy["kind"], f"{privacy['clip_norm']:g}", f"{privacy['noise_multiplier']:g}"),
        *(privacy["relation"], f"{privacy['delta']:g}", f"{privacy['epsilon']:.3g}"),
        f"{min(made, default=0)} to {max(made, default=0)} per client",
        ", ".join(f"{epsilon:.3g}" for epsilon in clients[:50]) + (" …" if len(clients) > 50 else ""),
    ]
    numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(name)}</th>{numbers}</tr>\n'


def _is_whole(privacy: Mapping[str, Any]) -> bool:
    """Return whether a summary has everything that is shown, in its form: it is read from a file."""
    numbers = [privacy.get(key) for key in ("clip_norm", "noise_multiplier", "delta", "epsilon")]
    lists = [privacy.get(key) for key in ("releases", "epsilon_per_client")]
    if not all(isinstance(each, list) for each in lists):
        return False
    numbers += [number for each in lists for number in each or []]
    words = (privacy.get("kind"), privacy.get("relation"))
    return all(isinstance(number, int | float) for number in numbers) and all(
        isinstance(word, str) for word in words
    )
