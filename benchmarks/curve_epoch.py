"""An epoch along the curve over one at its end, and in a tunnel over one along the curve: same batches."""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter

import torch
from cnn import random_task

from asyncmanifold import Bezier, Job, LocalTraining, Tunnel
from asyncmanifold.client.training import Trainer
from asyncmanifold.vectors import FlatModel, Statistics

EXAMPLES = 512
REPEATS = 11


CURVE = "curve_epoch_over_point_epoch"
WAYS = {
    CURVE: Bezier(2),
    "tunnel_epoch_over_curve_epoch": Tunnel(2),
    "sharpness_aware_epoch_over_curve_epoch": Tunnel(2, sharpness_aware=True),
}


def main() -> None:
    torch.set_num_threads(1)  # as in a simulation
    task = random_task(clients=1, examples=EXAMPLES)
    theta = FlatModel(task.build_model(0)).vector
    offsets = torch.zeros(2, theta.numel())
    trainers = [
        Trainer(task.build_model(0), task.loss, embedding, LocalTraining(batch_size=64), seed=0)
        for embedding in WAYS.values()
    ]

    def seconds(trainer: Trainer, number: int, *, along_curve: bool) -> float:
        job = Job(
            number=number,
            client=0,
            version=0,
            theta=theta,
            statistics=Statistics.none(),
            point_epochs=int(not along_curve),
            curve_epochs=int(along_curve),
        )
        started = perf_counter()
        trainer.train(job, task.clients[0], out=offsets)
        return perf_counter() - started

    times: dict[str, list[float]] = {name: [] for name in ("point", *WAYS)}
    for number in range(REPEATS + 1):
        times["point"].append(seconds(trainers[0], number, along_curve=False))
        for name, trainer in zip(WAYS, trainers, strict=True):
            times[name].append(seconds(trainer, number, along_curve=True))
    figures = {}
    for name, against in zip(WAYS, ("point", CURVE, CURVE), strict=True):
        over, under = times[name][1:], times[against][1:]  # the first warms up
        ratio = median(a / b for a, b in zip(over, under, strict=True))
        both = f"{median(over) * 1e3:.0f} over {median(under) * 1e3:.0f} ms"
        detail = f"{both} for {EXAMPLES} examples, median of {REPEATS} pairs"
        figures[name] = {"value": ratio, "detail": detail}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
