"""A simulation of the digits scenario, with its files, over its pure training time.

The scenario as it is, but for evaluations, which are no part of either: one, on a few examples.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from asyncmanifold import Records, simulate
from asyncmanifold.configuration.config import load_config
from asyncmanifold.session.trace import read_trace

REPEATS = 3


def main() -> None:
    config = load_config("digits", "asyncbezier")
    task = config.task.build(config.run.seed)
    task = replace(task, test=task.test.batch(torch.arange(8)))
    run = replace(config.run, evaluate_every=config.run.updates)
    ratios, overheads = [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            simulate(
                task,
                config.method,
                training=config.training,
                schedule=config.schedule,
                run=run,
                records=Records(out=out),
            )
            updates = [record for record in read_trace(out / "trace.jsonl") if record["kind"] == "update"]
        wall, trained = updates[-1]["wall_seconds"], sum(record["train_seconds"] for record in updates)
        ratios.append(wall / trained)
        overheads.append((wall - trained) / len(updates))
    spread = f"{min(ratios):.3f} to {max(ratios):.3f} in {REPEATS} runs of {len(updates)} updates"
    detail = f"{spread}, {median(overheads) * 1e3:.2f} ms an update"
    print(json.dumps({"simulator_over_training_digits": {"value": median(ratios), "detail": detail}}))


if __name__ == "__main__":
    main()
