"""A simulation of the CNN over its pure training time, and with two workers over one.

Wall time is that of the trace: from the first dispatch to the last update, without set-up. Throughput
leaves the first updates out: a new process's first job is slow.
"""

from __future__ import annotations

import json
from statistics import median

from cnn import random_task

from asyncmanifold import LocalTraining, Placement, Run, simulate

UPDATES = {1: 20, 2: 60}
"""By the number of workers: the last job, which one worker waits for, must not count for much."""
WARM_UP = 4
REPEATS = 4


def main() -> None:
    task = random_task(clients=30, examples=256)
    training = LocalTraining(point_epochs=1, curve_epochs=1, batch_size=64)
    ratios: list[float] = []
    throughputs: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(REPEATS):
        for workers, count in UPDATES.items():
            run = Run(updates=count, evaluate_every=count)
            result = simulate(
                task, "asyncbezier", training=training, run=run, placement=Placement(workers=workers)
            )
            updates = [record for record in result.trace if record["kind"] == "update"]
            wall = updates[-1]["wall_seconds"]
            throughputs[workers].append((count - WARM_UP) / (wall - updates[WARM_UP - 1]["wall_seconds"]))
            if workers == 1:
                ratios.append(wall / sum(record["train_seconds"] for record in updates))
    one, two = median(throughputs[1]), median(throughputs[2])
    speedups = [b / a for a, b in zip(throughputs[1], throughputs[2], strict=True)]
    figures = {
        "simulator_over_training_cnn": {
            "value": median(ratios),
            "detail": f"{min(ratios):.4f} to {max(ratios):.4f} in {REPEATS} runs of {UPDATES[1]} updates",
        },
        "two_workers_speedup": {
            "value": median(speedups),
            "detail": f"{min(speedups):.2f} to {max(speedups):.2f} in {REPEATS} pairs of runs, "
            f"{two:.2f} over {one:.2f} updates a second",
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
