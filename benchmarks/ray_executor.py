"""A simulation of the CNN on Ray with two local workers, over the same with two worker processes.

Wall time an update, without set-up and the first updates: a new worker's first job is slow. In turns, so that
a busy minute of the machine falls on both. On a busy machine training itself takes longer now and then, so
the wall time over the workers' own training time is told too.
"""

from __future__ import annotations

import json
from statistics import mean, median

from cnn import random_task

from asyncmanifold import LocalTraining, Placement, Run, simulate

WORKERS = 2
UPDATES = 50
WARM_UP = 10
REPEATS = 3


def main() -> None:
    task = random_task(clients=30, examples=256)
    training = LocalTraining(point_epochs=1, curve_epochs=1, batch_size=64)
    run = Run(updates=UPDATES, evaluate_every=UPDATES)
    seconds: dict[str, list[float]] = {"process": [], "ray": []}
    overheads: dict[str, list[float]] = {"process": [], "ray": []}
    for _ in range(REPEATS):
        for executor in seconds:
            result = simulate(
                task,
                "asyncbezier",
                training=training,
                run=run,
                placement=Placement(workers=WORKERS, executor=executor),
            )
            updates = [record for record in result.trace if record["kind"] == "update"][WARM_UP - 1 :]
            wall = (updates[-1]["wall_seconds"] - updates[0]["wall_seconds"]) / (UPDATES - WARM_UP)
            seconds[executor].append(wall)
            trained = mean(record["train_seconds"] for record in updates[1:])
            overheads[executor].append(wall * WORKERS / trained)
    ratios = [ray / process for process, ray in zip(*seconds.values(), strict=True)]
    process, ray = (median(measured) * 1e3 for measured in seconds.values())
    plain, with_ray = (median(measured) for measured in overheads.values())
    detail = (
        f"{min(ratios):.2f} to {max(ratios):.2f} in {REPEATS} pairs of runs, "
        f"{ray:.0f} over {process:.0f} ms an update; wall over the workers' training time "
        f"{with_ray:.3f}, with processes {plain:.3f}"
    )
    print(json.dumps({"ray_over_process_cnn": {"value": median(ratios), "detail": detail}}))


if __name__ == "__main__":
    main()
