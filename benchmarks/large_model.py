"""The peak of memory with a model of 100 million parameters, by the number of jobs in flight.

Every job is from a version of its own, the worst case. A process for each figure, a minute or two altogether
on a free machine: run by hand, on a machine with 24 GB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

METHODS = ("fedasync", "asyncbezier")
IN_FLIGHT = (4, 8)
WIDTH = 10_000
GOAL_GB = 12.0
"""For the larger method and number: half of 24 GB, so that the rest is for data and others."""


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(simulate_once(sys.argv[1], int(sys.argv[2]))))
        return
    figures = {}
    for method in METHODS:
        peaks = []
        for in_flight in IN_FLIGHT:
            command = [sys.executable, __file__, method, str(in_flight)]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            peak, parameters = json.loads(printed)
            peaks.append(peak)
        few, many = IN_FLIGHT
        each = (peaks[1] - peaks[0]) / (many - few) / parameters
        detail = (
            f"{parameters:,} parameters, {many} jobs in flight (with {few}: {peaks[0] / 1e9:.2f} GB): "
            f"{each:.1f} bytes a parameter for each job"
        )
        figures[f"peak_gb_100m_{method}"] = {
            "value": peaks[1] / 1e9,
            "detail": detail,
            "goal": f"≤ {GOAL_GB:g}",
        }
    print(json.dumps(figures))


def simulate_once(method: str, in_flight: int) -> tuple[int, int]:
    """Return the peak of a run's memory in bytes, and the model's size."""
    import numpy as np
    import torch
    from torch import nn

    from asyncmanifold import LocalTraining, Run, Schedule, Shares, Task, simulate

    def model() -> nn.Module:
        first, hidden, last = nn.Linear(64, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        return nn.Sequential(first, nn.ReLU(), hidden, nn.ReLU(), last)

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 64, generator=generator)
    targets = torch.randint(10, (80,), generator=generator)
    updates = in_flight + 4
    result = simulate(
        Task(
            model=model,
            loss=nn.functional.cross_entropy,
            clients=Shares(inputs, targets, list(np.arange(80).reshape(-1, 4))),
            test=(inputs[:8], targets[:8]),
        ),
        method,
        training=LocalTraining(point_epochs=1, curve_epochs=1),
        schedule=Schedule("clock", concurrency=in_flight),  # first in, first out: no two bases equal
        run=Run(updates=updates, evaluate_every=updates),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak, result.summary["parameters"]


if __name__ == "__main__":
    main()
