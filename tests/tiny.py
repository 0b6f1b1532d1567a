"""A task small enough that a run takes a fraction of a second, and ways to look at what a run left."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from asyncmanifold import LocalTraining, Placement, Records, Run, Schedule, Task, simulate
from asyncmanifold.simulation.schedules import LogNormalLatency

SIZES = (12, 20, 28, 36, 44)
WALL_TIMES = ("wall_seconds", "train_seconds")


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


def make_task(sizes: tuple[int, ...] = SIZES, broken: tuple[int, ...] = ()) -> Task:
    """Three classes of a linear rule; clients in ``broken`` have inputs that are not numbers."""
    random = np.random.default_rng(7)
    truth = random.standard_normal((6, 3))

    def examples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = random.standard_normal((count, 6))
        return torch.from_numpy(inputs).float(), torch.from_numpy((inputs @ truth).argmax(axis=1))

    clients = [examples(size) for size in sizes]
    for client in broken:
        clients[client][0].fill_(torch.nan)
    return Task(
        model=make_model,
        loss=nn.functional.cross_entropy,
        clients=clients,
        validation=[examples(8) for _ in sizes],
        test=examples(60),
    )


TRAINING = LocalTraining(point_epochs=1, curve_epochs=1, batch_size=8, local_lr=0.02)
CLOCK = Schedule("clock", latency=LogNormalLatency(0.5, 0.2))
EVENTFUL = replace(
    CLOCK,
    concurrency=4,
    drop_probability=0.1,
    late_fraction=0.3,
    late_by=2.0,
    leave_fraction=0.2,
    leave_by=9.0,
)


def simulated(
    task: Task,
    method: Any = "asyncbezier",
    *,
    workers: int = 1,
    executor: str | None = None,
    ray_address: str | None = None,
    out: Path | None = None,
    resume: bool = False,
    observer: Any = None,
    **settings: Any,
) -> Any:
    """``simulate`` with the settings of placement and records given one by one."""
    placement = Placement(workers=workers, executor=executor, ray_address=ray_address)
    records = Records(out=out, resume=resume, observer=observer)
    return simulate(task, method, placement=placement, records=records, **settings)


def make_run(updates: int = 30, **settings: Any) -> Run:
    return Run(**({"updates": updates, "evaluate_every": 10} | settings))


def without_wall_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in WALL_TIMES} for record in records]


def trace_of(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "trace.jsonl").read_text().splitlines()
    return without_wall_times([json.loads(line) for line in lines])


def of_kind(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def start_interruptible(command, **options):
    """Start a process that Ctrl-C reaches, also where the shell of the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **options)
    finally:
        signal.signal(signal.SIGINT, before)
