"""A simulation of the CNN on Ray with two local workers, over the same with two worker processes.

Wall time an update, without set-up and the first updates: a new worker's first job is slow. In turns, so that
a busy minute of the machine falls on both.
"""

from __future__ import annotations

import json
from statistics import median

from cnn import random_task

from asyncmanifold import LocalTraining, Run, simulate

UPDATES = 50
WARM_UP = 10
REPEATS = 3


def main() -> None:
    task = random_task(clients=30, examples=256)
    training = LocalTraining(point_epochs=1, curve_epochs=1, batch_size=64)
    run = Run(updates=UPDATES, evaluate_every=UPDATES)
    seconds: dict[str, list[float]] = {"process": [], "ray": []}
    for _ in range(REPEATS):
        for executor, measured in seconds.items():
            result = simulate(task, "asyncbezier", training=training, run=run, workers=2, executor=executor)
            walls = [record["wall_seconds"] for record in result.trace if record["kind"] == "update"]
            measured.append((walls[-1] - walls[WARM_UP - 1]) / (UPDATES - WARM_UP))
    ratios = [ray / process for process, ray in zip(*seconds.values(), strict=True)]
    process, ray = (median(measured) * 1e3 for measured in seconds.values())
    detail = (
        f"{min(ratios):.3f} to {max(ratios):.3f} in {REPEATS} pairs of runs, "
        f"{ray:.0f} over {process:.0f} ms an update"
    )
    print(json.dumps({"ray_over_process_cnn": {"value": median(ratios), "detail": detail}}))


if __name__ == "__main__":
    main()
