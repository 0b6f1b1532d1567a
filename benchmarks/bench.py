"""The speed figures: each a ratio within one run, or a peak of memory. Into a table and build/bench.json.

Every script beside this one measures a few figures and prints them as JSON. Each runs in a process of its
own, one after another, and this one stays small: none inherits another's memory or threads. A missed
goal is shown and is no error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "build" / "bench.json"


@dataclass(frozen=True)
class Goal:
    bound: float
    is_lower: bool = False
    """Whether the figure must be at least the bound, not at most."""
    condition: str = ""

    def __str__(self) -> str:
        return f"{'≥' if self.is_lower else '≤'} {self.bound:g}{self.condition}"

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.is_lower else value <= self.bound


SCRIPTS: dict[str, dict[str, Goal]] = {
    "server_update": {"server_update_over_stream": Goal(1.5)},
    "stateful_update": {"stateful_update_over_stream": Goal(1.5)},
    "simulator_cnn": {
        "simulator_over_training_cnn": Goal(1.03),
        "two_workers_speedup": Goal(1.8, is_lower=True, condition=" on two free cores"),
    },
    "simulator_digits": {"simulator_over_training_digits": Goal(1.15)},
    "batched_jobs": {"batched_over_bare_loop_mlp": Goal(0.6)},
    "curve_epoch": {
        "curve_epoch_over_point_epoch": Goal(1.25),
        "tunnel_epoch_over_curve_epoch": Goal(1.5),
        "sharpness_aware_epoch_over_curve_epoch": Goal(2.25),
    },
    "scale": {
        "update_100000_over_100_clients": Goal(1.2),
        "memory_100000_over_100_clients": Goal(1.2),
        "startup_seconds_100000": Goal(10.0),
        "peak_gb_100000_clients": Goal(2.5),
    },
    "flower_loop": {
        "flower_update_10000_over_100_nodes": Goal(1.3),
        "flower_with_files_over_without": Goal(0.6, is_lower=True),
        "flower_update_over_rule_10m": Goal(2.0),
    },
    "portable_cost": {
        "portable_over_native_mlp": Goal(1.33),
        "portable_over_native_cnn": Goal(1.33),
    },
    "startup": {"help_over_bare_python": Goal(15.0)},
    "ray_executor": {"ray_over_process_cnn": Goal(1.2)},
}
"""The scripts and the figures that they print."""

NEEDED = {"ray_executor": "ray"}
"""What a script needs beyond the library itself."""

CAPTION = """\
Ratios within one run, repeats interleaved. Best of both sides: server update, batched jobs, clients (other \
work on the machine only ever adds time). Median of the ratios: simulator, two workers, curve epoch, Ray. \
Ratio of the medians: help. Peaks are of one process, GB = 10⁹ bytes. "Others" is how many cores other \
programs kept busy meanwhile: above 0 the figures are noisy, and two workers had no two free cores."""


@dataclass(frozen=True)
class Figure:
    key: str
    value: float
    goal: Goal
    detail: str
    others: float | None
    """Cores that other programs kept busy meanwhile."""


def main() -> None:
    options = _parse()
    console = Console() if Console().is_terminal else Console(width=160)
    scripts = [name for name, goals in SCRIPTS.items() if options.only in (None, *goals)]
    started = perf_counter()
    figures: list[Figure] = []
    for name in scripts:
        if (needed := NEEDED.get(name)) is not None and not is_installed(needed):
            how = f"pip install 'asyncmanifold[{needed}]'"
            console.print(f"{name}: left out, {needed} is not installed ({how})", markup=False)
            continue
        console.print(f"{name} …", style="dim")
        figures += measure(name)
    console.print(tabulate(figures))
    missed = missed_goals(figures)
    console.print(
        f"{len(figures) - len(missed)} of {len(figures)} goals met, {perf_counter() - started:.0f} s."
    )
    if missed:
        console.print(f"Missed: {', '.join(missed)}.", style="bold red")
    if options.only is None:
        write(figures)
        console.print(f"Written to {os.path.relpath(OUTPUT)}.")


def is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def measure(name: str) -> Iterator[Figure]:
    """Run one script and yield its figures."""
    before, started = busy_seconds(), perf_counter()
    printed = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py")], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    others = None
    if before is not None and (after := busy_seconds()) is not None:
        others = max(0.0, (after - before) / (perf_counter() - started))
    measured = json.loads(printed)
    for key, goal in SCRIPTS[name].items():
        yield Figure(key, measured[key]["value"], goal, measured[key]["detail"], others)


def tabulate(figures: list[Figure], title: str = "Speed and memory", caption: str = CAPTION) -> Table:
    table = Table(title=title, caption=caption, caption_justify="left")
    for heading in ("figure", "value", "goal", "met", "others", "measured"):
        table.add_column(heading, justify="right" if heading in ("value", "others") else "left")
    for figure in figures:
        met = "[green]yes[/green]" if figure.goal.is_met(figure.value) else "[bold red]no[/bold red]"
        others = "–" if figure.others is None else f"{figure.others:.1f}"
        table.add_row(figure.key, f"{figure.value:.3f}", str(figure.goal), met, others, figure.detail)
    return table


def write(figures: list[Figure]) -> None:
    from asyncmanifold.files import write_json

    OUTPUT.parent.mkdir(exist_ok=True)
    values = {figure.key: round(figure.value, 4) for figure in figures}
    write_json(
        OUTPUT,
        values
        | {
            "machine": machine(),
            "goals": {figure.key: str(figure.goal) for figure in figures},
            "missed": missed_goals(figures),
            "details": {figure.key: figure.detail for figure in figures},
            "others": {figure.key: figure.others and round(figure.others, 2) for figure in figures},
        },
    )


def missed_goals(figures: list[Figure]) -> list[str]:
    return [figure.key for figure in figures if not figure.goal.is_met(figure.value)]


def machine() -> dict[str, str | int]:
    """Return what the figures were measured on."""
    from asyncmanifold.arithmetic import cpu_name

    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def busy_seconds() -> float | None:
    """Return how long all cores together have been busy with anything but us and what we started."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _wait, *others = map(int, stat.read_text().split("\n")[0].split()[1:9])
    busy = (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy - sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the speed figures.")
    parser.add_argument(
        "--only",
        metavar="KEY",
        choices=[key for goals in SCRIPTS.values() for key in goals],
        help="one figure, and those measured together with it; build/bench.json stays as it is",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
