"""Processor time of an update with 16 jobs batched, files included, over the bare loop's training steps.

The 53,850-parameter MLP of ``bench_peers``: SGD, five steps of 32 examples per update. Runs and bare loops
alternate. The least of the repeats on both sides: other work on the machine only ever adds time. The first
updates, in which torch warms up and the batched step is written down, do not count.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from time import process_time

import torch
from bare_loop import BATCH_SIZE, bare_loop, make_problem
from torch import nn

from asyncmanifold import LocalTraining, Placement, Records, Run, Schedule, Task, simulate

CLIENTS, IN_FLIGHT, JOBS = 100, 64, 16
WARM_UP = 4 * JOBS
UPDATES, REPEATS, RATE = 320, 5, 0.0001
TRAINING = LocalTraining(point_epochs=1, batch_size=BATCH_SIZE, optimizer="sgd", local_lr=RATE, proximal=0.0)


def main() -> None:
    torch.set_num_threads(1)
    model, shards = make_problem(CLIENTS)
    test = tuple(part[:8] for part in shards[0])
    task = Task(model=model, loss=nn.functional.cross_entropy, clients=shards, test=test)
    seconds: dict[str, list[float]] = {"batched": [], "inline": [], "bare": []}
    for _ in range(REPEATS):
        for executor in ("batched", "inline"):
            seconds[executor].append(simulated(task, Placement(executor=executor)))
        seconds["bare"].append(bare_loop(task.build_model(0), shards, UPDATES, RATE, process_time))
    least = {name: min(found) for name, found in seconds.items()}
    detail = ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in least.items())
    figure = {"value": least["batched"] / least["bare"], "detail": f"{detail} per update"}
    print(json.dumps({"batched_over_bare_loop_mlp": figure}))


def simulated(task: Task, placement: Placement) -> float:
    """Return the processor time of an update, beyond the first ones."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        simulate(
            task,
            "fedasync",
            training=TRAINING,
            schedule=Schedule(concurrency=IN_FLIGHT),
            run=Run(updates=UPDATES + WARM_UP, evaluate_every=UPDATES + WARM_UP),
            placement=placement,
            records=Records(out=Path(folder) / "run", observer=lambda _: times.append(process_time())),
        )
    return (times[UPDATES + WARM_UP] - times[WARM_UP]) / UPDATES


if __name__ == "__main__":
    main()
