"""The results of a study as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from asyncmanifold.theory.findings import Finding


def print_findings(findings: Sequence[Finding], out: Path) -> None:
    """Print each problem's table, constants and slope."""
    for finding in findings:
        Console().print(_table(finding))
        for line in _constants(finding):
            print(f"  {line}")
        print(
            f"  slope {finding.slope:.3f}, 95 % interval {finding.slope_low:.3f} to {finding.slope_high:.3f}"
            f" over {len(finding.seeds)} seeds\n"
        )
    print(f"theory.json and figures/convergence.svg in {out}")


def _table(finding: Finding) -> Table:
    title = f"{finding.problem}: {finding.title}, {finding.method}\naverage of ‖grad L‖² over T updates"
    shown = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    for heading in ("T", "η_l", "measured", "sd", "bound", "as printed", "Q", "S", "stale by"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for entry in finding.lengths:
        shown.add_row(
            str(entry.updates),
            f"{entry.local_lr:.4f}",
            f"{entry.mean:.5f}",
            _number(entry.deviation, ".5f"),
            _number(entry.bound, ".3g"),
            _number(entry.printed_bound, ".3g"),
            f"{entry.measured.quality:.2f}",
            f"{entry.measured.staleness:.2f}",
            f"{entry.staleness:.1f}",
        )
    return shown


def _constants(finding: Finding) -> list[str]:
    known, setting, c = finding.known, finding.setting, finding.lengths[-1].constants
    lines = [
        f"L_Θ {known.smoothness:.3g}, G {known.gradient_bound:.3g}, σ₁² {known.variance:.3g}, "
        f"λ_min {finding.lambda_min:g}, K {setting.point_steps}+{setting.curve_steps}, "
        f"η_g {setting.global_lr:g}, {setting.clients} clients",
        f"Q {finding.measured.quality:.3f}, S {finding.measured.staleness:.3f}, "
        f"R {finding.measured.stretch:.3f} (measured, the worst length)",
    ]
    if c is not None:
        lines.append(f"C₁ {c.c1:.3g}, C₂ {c.c2:.3g}, C₃ {c.c3:.3g}, C₄ {c.c4:.3g}, β {c.beta:g} (corrected)")
    if (p := finding.printed) is not None:
        lines.append(f"C₁ {p.c1:.3g}, C₂ {p.c2:.3g}, C₃ {p.c3:.3g}, β {p.beta:g} (as printed)")
    return lines


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
