"""Results as tables and text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from asyncmanifold.experiments.terminal_tables import WIDE
from asyncmanifold.session.summary import Summary


def print_summary(summary: Summary, out: Path) -> None:
    """Print the result of a run."""
    metric = summary["metric"]

    def number(key: str, form: str) -> str:
        return "–" if summary[key] is None else format(summary[key], form)

    print(f"{summary['method']} on {summary['scenario']}, seed {summary['seed']}")
    print(f"  {metric:<14}{number('final', '.4f')} at the end, {number('best', '.4f')} at best")
    of_last = f"the mean of the last {summary['final_evaluations']} evaluations"
    print(f"  {'':<14}{of_last}; the very last {number('last', '.4f')}")
    if summary["target"] is not None:
        print(
            f"  {'target':<14}{summary['target']:g} reached after {number('rounds_to_target', '.0f')} "
            f"updates, virtual time {number('time_to_target', '.1f')}"
        )
    print(f"  {'fairness':<14}Gini {number('gini', '.4f')}, Theil {number('theil', '.5f')}")
    print(f"  {'staleness':<14}{summary['staleness_mean']:.1f} versions on average")
    kinds = ("rejected", "failed", "dropped", "lost", "discarded", "cancelled")
    lost = ", ".join(f"{summary[kind]} {kind}" for kind in kinds if summary.get(kind))
    print(f"  {'updates':<14}{summary['updates']} accepted{', ' + lost if lost else ''}")
    if summary.get("upload_bytes") is not None:
        up, down = summary["upload_bytes"] / 1e6, summary["download_bytes"] / 1e6
        print(f"  {'traffic':<14}{up:.4g} MB up and {down:.4g} MB down, of accepted updates")
    print(
        f"  {'wall time':<14}{summary['wall_seconds']:.1f} s, "
        f"{summary['train_seconds']:.1f} s of it summed over trained jobs"
    )
    if (privacy := summary.get("privacy")) is not None:
        print(
            f"  {'privacy':<14}ε at most {privacy['epsilon']:.3g} per client at δ {privacy['delta']:g} "
            f"({privacy['kind']}, {privacy['relation']}); this run cannot be repeated"
        )
    if summary["ended"] != "updates":
        print(f"  {'ended by':<14}{summary['ended']}")
    if summary.get("controls"):
        print(
            f"  {'control':<14}{summary['controls']} requests while it ran: not repeatable from its settings"
        )
    if summary["advice"] is not None:
        print(f"  {'advice':<14}{summary['advice']}")
    print(f"  {'kept in':<14}{out}")


def print_study(table: Table, notes: Sequence[str]) -> None:
    """Print the table of a comparison or a search, and the lines below it: no number is ever cut short.

    A narrow terminal shows fewer columns, and says so. What is no terminal has no width.
    """
    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    left_out: list[str] = []
    while len(table.columns) > 2 and _width(table, console) > console.width:
        left_out.insert(0, str(table.columns.pop().header).replace("\n", " "))
    console.print(table)
    if left_out:
        print(f"this terminal is too narrow for: {', '.join(left_out)}")
    for note in notes:
        print(note)


def _width(table: Table, console: Console) -> int:
    """Return how wide a table would like to be."""
    return console.measure(table, options=console.options.update(width=WIDE)).maximum
