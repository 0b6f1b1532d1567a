"""Where the time of an update goes, part by part, on the 54,000-parameter MLP of ``bench_peers``; by hand.

Parts are timed as they are called in a run with files, on one thread; the bare training steps of one update
are timed between runs. Timing costs about a microsecond a call.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bare_loop import BATCH_SIZE, bare_loop, make_problem
from rich.console import Console
from rich.table import Table
from torch import nn

from asyncmanifold import LocalTraining, Records, Run, Schedule, Task, simulate
from asyncmanifold.client import Trainer, job_steps
from asyncmanifold.client.controls import FlatControls
from asyncmanifold.server import moves, tangents
from asyncmanifold.session import session
from asyncmanifold.session.trace import FileTrace
from asyncmanifold.simulation import engine
from asyncmanifold.tasks import TensorData

CLIENTS, UPDATES, RUNS, RATE = 10, 500, 5, 0.01
PARTS: list[tuple[str, Any, str]] = [
    ("training", Trainer, "train"),
    ("  batches drawn", job_steps, "shuffled_batches"),
    ("  batches taken", TensorData, "batch"),
    ("  forward and backward", Trainer, "_backpropagate"),
    ("  optimiser", FlatControls, "learn"),
    ("  model in, offsets out", FlatControls, "begin"),
    ("  model in, offsets out", FlatControls, "finish"),
    ("absorbing", session, "absorb"),
    ("  inner products", tangents, "gram_matrix"),
    ("  new model", moves, "combine"),
    ("dispatching", engine.Simulation, "_dispatch"),
    ("trace", FileTrace, "write"),
]


def main() -> None:
    model, shards = make_problem(CLIENTS)
    task = Task(model=model, loss=nn.functional.cross_entropy, clients=shards, test=shards[0])
    spent: dict[str, float] = {}
    for name, owner, attribute in PARTS:
        setattr(owner, attribute, timed(getattr(owner, attribute), name, spent))
    runs, bare = [], []
    for _ in range(RUNS):
        spent.clear()
        whole = simulated(task)
        runs.append({"update": whole, **{name: seconds / UPDATES for name, seconds in spent.items()}})
        bare.append(bare_loop(task.build_model(0), shards, UPDATES, RATE, perf_counter))
    table = Table("part", "µs per update", "over the bare loop", title=f"medians of {RUNS} runs")
    steps = median(bare)
    for name in ("update", *dict.fromkeys(name for name, _, _ in PARTS)):
        seconds = median(run[name] for run in runs)
        table.add_row(name, f"{1e6 * seconds:.0f}", f"{seconds / steps:.3f}")
    table.add_row("bare loop", f"{1e6 * steps:.0f}", "1.000")
    Console().print(table)


def simulated(task: Task) -> float:
    """Return the wall time of an update."""
    with tempfile.TemporaryDirectory() as folder:
        result = simulate(
            task,
            "fedasync",
            training=LocalTraining(
                point_epochs=1, batch_size=BATCH_SIZE, optimizer="sgd", local_lr=RATE, proximal=0.0
            ),
            schedule=Schedule(concurrency=5),
            run=Run(updates=UPDATES, evaluate_every=UPDATES),
            records=Records(out=Path(folder) / "run"),
        )
        updates = [record for record in result.trace if record["kind"] == "update"]
    return float(updates[-1]["wall_seconds"] - updates[0]["wall_seconds"]) / (UPDATES - 1)


def timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        started = perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + perf_counter() - started

    return call


if __name__ == "__main__":
    main()
