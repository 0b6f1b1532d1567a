"""What portable arithmetic costs: the same jobs in processes with it and without, on an MLP and on a CNN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from time import perf_counter

from asyncmanifold.arithmetic import PORTABLE

REPEATS = 5
JOBS = 12


def main() -> None:
    seconds: dict[str, dict[str, float]] = {"native": {}, "portable": {}}
    plain = {name: value for name, value in os.environ.items() if name not in PORTABLE}
    for _ in range(REPEATS):
        for name, environment in (("native", plain), ("portable", plain | PORTABLE)):
            command = [sys.executable, __file__, "child"]
            made = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            for kind, value in json.loads(made.stdout).items():
                seconds[name][kind] = min(value, seconds[name].get(kind, value))
    figures = {}
    for kind, native in seconds["native"].items():
        portable = seconds["portable"][kind]
        detail = f"{portable * 1e3:.1f} over {native * 1e3:.1f} ms per job, best of {REPEATS} processes"
        figures[f"portable_over_native_{kind}"] = {"value": portable / native, "detail": detail}
    print(json.dumps(figures))


def measure() -> None:
    """Print the least time of a job of each kind."""
    import torch
    from torch import nn

    from asyncmanifold import Bezier, Job, LocalTraining
    from asyncmanifold.client.training import Trainer
    from asyncmanifold.tasks.cnn import FederatedCNN
    from asyncmanifold.tasks.data import TensorData
    from asyncmanifold.vectors import FlatModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    training = LocalTraining(point_epochs=1, curve_epochs=1, batch_size=32)
    least = {}
    for kind, module, shape in (("mlp", mlp, (64,)), ("cnn", FederatedCNN(10), (1, 28, 28))):
        data = TensorData(torch.randn(96, *shape), torch.arange(96) % 10)
        model = FlatModel(module)
        job = Job(
            number=0,
            client=0,
            version=0,
            theta=model.vector.clone(),
            statistics=model.read_statistics(),
            point_epochs=1,
            curve_epochs=1,
        )
        trainer = Trainer(module, nn.functional.cross_entropy, Bezier(2), training, seed=0)
        times = []
        for _ in range(JOBS):
            started = perf_counter()
            trainer.train(job, data)
            times.append(perf_counter() - started)
        least[kind] = min(times)
    print(json.dumps(least))


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["child"] else main()
