"""This library against its peers: time of an update and peak memory. Into tables and build/peers.json.

Every system is run in its own environment by a script in ``peers/``: the same model, initial weights, shards,
batch size and number of SGD steps, one torch thread in each process, evaluation off. Systems take turns,
several times over. A peer that cannot be installed or does not run is shown with the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import Figure, Goal, busy_seconds, machine, missed_goals, tabulate
from peers.environments import PEERS, NotInstalled, prepare
from peers.measuring import HERE, Failed, Measurement, measure
from peers.problem import BATCH_SIZE, BUFFER_SIZE, CLIENTS, CONCURRENCY, SIZES, Size, write_problem
from rich.console import Console
from rich.table import Table

from asyncmanifold.files import write_json

BUILD = HERE.parents[1] / "build"
OUTPUT = BUILD / "peers.json"
OURS = "ours"
"""The environment of this library and of the bare loop: the project's own."""


@dataclass(frozen=True)
class System:
    name: str
    environment: str
    script: str
    options: tuple[str, ...] = ()
    cores: int = 1
    """How many it may keep busy; a peer that trains one client at a time may use two torch threads."""
    most_repeats: int | None = None
    """Where an update takes seconds, so that a few repeats say enough."""
    sizes: tuple[str, ...] = tuple(SIZES)
    """What it is measured on."""

    @property
    def is_peer(self) -> bool:
        return self.environment != OURS

    @property
    def is_asynchronous(self) -> bool:
        """Whether updates are absorbed as they arrive; rounds keep two cores busy with less bookkeeping."""
        return self.environment != "flower"


OUR_FEDASYNC, BARE, OUR_WORKERS = "asyncmanifold FedAsync", "bare loop", "asyncmanifold FedAsync, 2 workers"
OUR_LAYOUT, BARE_LAYOUT = f"{OUR_FEDASYNC}, channels_last", f"{BARE}, channels_last"
OUR_WORKERS_LAYOUT = f"{OUR_WORKERS}, channels_last"
METHODS = {"FedAsync": ("--method", "fedasync"), "FedBuff": ("--method", "fedbuff")}
PLAIN = ("--optimize-memory", "false")
AT_ONCE = ("--at-once", "2")
THREADS = ("--threads", "2")
LAYOUT = ("--channels-last",)
IMAGES = ("cnn",)
SYSTEMS = (
    System(BARE, OURS, "run_bare.py"),
    System(BARE_LAYOUT, OURS, "run_bare.py", LAYOUT, sizes=IMAGES),
    *(System(f"asyncmanifold {name}", OURS, "run_ours.py", options) for name, options in METHODS.items()),
    System(OUR_LAYOUT, OURS, "run_ours.py", LAYOUT, sizes=IMAGES),
    *(System(f"FLGo {name}", "flgo", "run_flgo.py", options) for name, options in METHODS.items()),
    *(
        System(f"APPFL {name}, as shipped", "appfl", "run_appfl.py", options, most_repeats=2)
        for name, options in METHODS.items()
    ),
    *(
        System(f"APPFL {name}, optimize_memory: False", "appfl", "run_appfl.py", options + PLAIN)
        for name, options in METHODS.items()
    ),
    System("Flower FedAvg", "flower", "run_flower.py"),
    System(OUR_WORKERS, OURS, "run_ours.py", AT_ONCE, cores=2),
    System(OUR_WORKERS_LAYOUT, OURS, "run_ours.py", AT_ONCE + LAYOUT, cores=2, sizes=IMAGES),
    *(
        System(f"FLGo {name}, num_parallels: 2", "flgo", "run_flgo.py", options + AT_ONCE, cores=2)
        for name, options in METHODS.items()
    ),
    System("FLGo FedBuff, 2 torch threads", "flgo", "run_flgo.py", METHODS["FedBuff"] + THREADS, cores=2),
    System(
        "APPFL FedBuff, 2 torch threads",
        "appfl",
        "run_appfl.py",
        METHODS["FedBuff"] + PLAIN + THREADS,
        cores=2,
    ),
    System("Flower FedAvg, 2 actors", "flower", "run_flower.py", AT_ONCE, cores=2),
)

Measurements = dict[tuple[str, str], list[Measurement]]
"""By system and size, in the order of the repeats."""
Failures = dict[str, str]
"""The reason by system."""


def main() -> None:
    options = _parse()
    console = Console() if Console().is_terminal else Console(width=160)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # the same two cores for all
    started, before = perf_counter(), busy_seconds()
    systems = [system for system in SYSTEMS if options.only is None or options.only in system.name]
    pythons, failures = _prepare(systems, console)
    measurements = _measure(systems, pythons, failures, options.repeats, console)
    seconds = perf_counter() - started
    others = None
    if before is not None and (after := busy_seconds()) is not None:
        others = max(0.0, (after - before) / seconds)
    for size in SIZES.values():
        console.print(tabulate_systems(systems, size, measurements, failures))
    figures = list(compare(systems, measurements, others))
    console.print(tabulate(figures, "Against peers", CAPTION))
    missed = missed_goals(figures)
    console.print(f"{len(figures) - len(missed)} of {len(figures)} goals met, {seconds / 60:.0f} minutes.")
    if missed:
        console.print(f"Missed: {', '.join(missed)}.", style="bold red")
    if options.only is None:
        write_json(OUTPUT, describe(systems, measurements, failures, figures, options.repeats))
        console.print(f"Written to {os.path.relpath(OUTPUT)}.")


def _prepare(systems: list[System], console: Console) -> tuple[dict[str, Path], Failures]:
    """Create what the systems need; return each environment's Python, and what cannot be run."""
    for size in SIZES.values():
        _problem(size).parent.mkdir(parents=True, exist_ok=True)
        write_problem(_problem(size), size)
    pythons, failures = {OURS: Path(sys.executable)}, Failures()
    for environment in PEERS:
        needing = [system for system in systems if system.environment == environment.name]
        if not needing:
            continue
        console.print(f"environment of {environment.peer} …", style="dim", markup=False)
        try:
            pythons[environment.name] = prepare(environment, BUILD / "peers" / f"env-{environment.name}")
        except NotInstalled as problem:
            failures |= {system.name: f"not installed: {problem}" for system in needing}
    return pythons, failures


def _measure(
    systems: list[System],
    pythons: dict[str, Path],
    failures: Failures,
    repeats: int,
    console: Console,
) -> Measurements:
    """Let the systems take turns; one that fails is not tried again, and stands in ``failures``."""
    measurements: Measurements = {}
    for repeat in range(repeats):
        for size in SIZES.values():
            for system in systems:
                if system.name in failures or size.name not in system.sizes:
                    continue
                if repeat >= (system.most_repeats or repeats):
                    continue
                command = [str(pythons[system.environment]), str(HERE / system.script), str(_problem(size))]
                folder = BUILD / "peers" / "work" / system.environment
                try:
                    measured = measure([*command, size.name, *system.options], size, folder, system.cores > 1)
                except Failed as problem:
                    failures[system.name] = str(problem)
                    console.print(f"{system.name}, {size.name}: {problem}", style="red", markup=False)
                    continue
                measurements.setdefault((system.name, size.name), []).append(measured)
                console.print(
                    f"{repeat + 1} of {repeats}, {size.name}, {system.name}: "
                    f"{measured.cpu_ms_per_update:.2f} ms CPU, {measured.wall_ms_per_update:.2f} ms wall",
                    style="dim",
                    markup=False,
                    highlight=False,
                )
    return measurements


def _problem(size: Size) -> Path:
    return BUILD / "peers" / f"{size.name}.pt"


CAPTION = """\
The least of the repeats over the least of the fastest peer's, and the range of the ratios within one \
repeat. "Others" is how many cores other programs kept busy meanwhile: above 0 the figures are noisy, and \
two workers had no two free cores."""


def compare(systems: list[System], measurements: Measurements, others: float | None) -> Iterator[Figure]:
    """Yield the ratios that have a goal, as far as both sides were measured."""
    peers = [system.name for system in systems if system.is_peer]
    of_one_core = [system.name for system in systems if system.is_peer and system.cores == 1]
    asynchronous = [system.name for system in systems if system.is_peer and system.is_asynchronous]
    cpu, wall = "cpu_ms_per_update", "wall_ms_per_update"
    wanted = [
        ("cpu_over_fastest_peer_mlp", Goal(0.5), "mlp", OUR_FEDASYNC, of_one_core, cpu),
        ("cpu_over_fastest_peer_cnn", Goal(0.8), "cnn", OUR_LAYOUT, of_one_core, cpu),
        ("cpu_over_fastest_peer_cnn_same_layout", Goal(0.8), "cnn", OUR_FEDASYNC, of_one_core, cpu),
        ("cpu_over_bare_loop_mlp", Goal(1.15), "mlp", OUR_FEDASYNC, [BARE], cpu),
        ("cpu_over_bare_loop_cnn", Goal(1.03), "cnn", OUR_FEDASYNC, [BARE], cpu),
        ("cpu_over_bare_loop_cnn_channels_last", Goal(1.03), "cnn", OUR_LAYOUT, [BARE_LAYOUT], cpu),
        ("wall_on_two_cores_cnn", Goal(0.55), "cnn", OUR_WORKERS_LAYOUT, asynchronous, wall),
        ("wall_on_two_cores_cnn_same_layout", Goal(0.55), "cnn", OUR_WORKERS, asynchronous, wall),
        ("wall_on_two_cores_cnn_or_in_rounds", Goal(0.55), "cnn", OUR_WORKERS_LAYOUT, peers, wall),
    ]
    for key, goal, size, ours, rivals, field in wanted:
        by_rival = {name: _values(measurements.get((name, size), []), field) for name in rivals}
        known = {name: values for name, values in by_rival.items() if values}
        mine = _values(measurements.get((ours, size), []), field)
        if not known or not mine:
            continue
        fastest = min(known, key=lambda name: min(known[name]))
        ratios = [a / b for a, b in zip(mine, known[fastest], strict=False)]
        detail = (
            f"{min(mine):.2f} over {min(known[fastest]):.2f} ms ({fastest}), "
            f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} repeats"
        )
        yield Figure(key, min(mine) / min(known[fastest]), goal, detail, others)


def tabulate_systems(
    systems: list[System], size: Size, measurements: Measurements, failures: Failures
) -> Table:
    title = f"{size.name.upper()}, {size.parameters:,} parameters, {size.steps} steps an update"
    table = Table(title=title)
    for heading in ("system", "cores", "CPU ms", "over bare", "wall ms", "over bare", "peak MB"):
        table.add_column(heading, justify="left" if heading == "system" else "right")
    bare = summarise(measurements.get((BARE, size.name), []))
    for system in systems:
        if size.name not in system.sizes:
            continue
        summary = summarise(measurements.get((system.name, size.name), []))
        if not summary:
            table.add_row(system.name, str(system.cores), failures.get(system.name, "not measured"))
            continue
        cells = []
        for field in ("cpu_ms_per_update", "wall_ms_per_update"):
            cells.append(f"{summary[field]:.2f}")
            cells.append(f"{summary[field] / bare[field]:.2f}" if bare else "–")
        table.add_row(system.name, str(system.cores), *cells, f"{summary['peak_mb']:.0f}")
    return table


def summarise(measured: list[Measurement]) -> dict[str, float]:
    """Return the least of the repeats, which others disturbed least; nothing where nothing was measured."""
    fields = ("cpu_ms_per_update", "wall_ms_per_update", "peak_mb")
    return {field: min(_values(measured, field)) for field in fields} if measured else {}


def describe(
    systems: list[System],
    measurements: Measurements,
    failures: Failures,
    figures: list[Figure],
    repeats: int,
) -> dict[str, Any]:
    """Return everything that was measured, for a file."""
    described: dict[str, Any] = {}
    for system in systems:
        entry: dict[str, Any] = {"cores": system.cores}
        if system.name in failures:
            entry["error"] = failures[system.name]
        for size in SIZES.values():
            if measured := measurements.get((system.name, size.name)):
                repeated = [round(value, 3) for value in _values(measured, "cpu_ms_per_update")]
                rounded = {key: round(value, 3) for key, value in summarise(measured).items()}
                entry[size.name] = rounded | {"cpu_ms_of_repeats": repeated}
                entry["versions"] = measured[0].versions
        described[system.name] = entry
    return {
        "systems": described,
        **{figure.key: round(figure.value, 4) for figure in figures},
        "goals": {figure.key: str(figure.goal) for figure in figures},
        "missed": missed_goals(figures),
        "details": {figure.key: figure.detail for figure in figures},
        "others": figures[0].others if figures else None,
        "machine": machine(),
        "settings": {
            "clients": CLIENTS,
            "concurrency": CONCURRENCY,
            "buffer_size": BUFFER_SIZE,
            "batch_size": BATCH_SIZE,
            "repeats": repeats,
            **{f"{size.name}_steps": size.steps for size in SIZES.values()},
        },
    }


def _values(measured: list[Measurement], field: str) -> list[float]:
    return [float(getattr(measurement, field)) for measurement in measured]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare with peers.")
    parser.add_argument("--repeats", type=int, default=5, help="turns of every system (default: %(default)s)")
    parser.add_argument(
        "--only", metavar="TEXT", help="systems with this in their name; build/peers.json stays as it is"
    )
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"argument --repeats: must be at least 1, not {options.repeats}")
    return options


if __name__ == "__main__":
    main()
