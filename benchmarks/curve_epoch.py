"""An epoch along the curve over an epoch at the end point: the same batches, one more control point."""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter

import torch
from cnn import random_task

from asyncmanifold import Bezier, Job, LocalTraining
from asyncmanifold.client.training import Trainer
from asyncmanifold.vectors import Buffers, FlatModel

EXAMPLES = 512
REPEATS = 11


def main() -> None:
    torch.set_num_threads(1)  # as in a simulation
    task = random_task(clients=1, examples=EXAMPLES)
    settings = LocalTraining(batch_size=64)
    trainer = Trainer(task.build_model(0), task.loss, Bezier(2), settings, seed=0)
    theta = FlatModel(task.build_model(0)).vector
    offsets = torch.zeros(2, theta.numel())

    def seconds(number: int, point_epochs: int, curve_epochs: int) -> float:
        job = Job(
            number=number,
            client=0,
            version=0,
            theta=theta,
            buffers=Buffers.none(),
            point_epochs=point_epochs,
            curve_epochs=curve_epochs,
        )
        started = perf_counter()
        trainer.train(job, task.clients[0], out=offsets)
        return perf_counter() - started

    pairs = [(seconds(n, 1, 0), seconds(n, 0, 1)) for n in range(REPEATS + 1)][1:]  # one to warm up
    ratio = median(curve / point for point, curve in pairs)
    point, curve = (median(side) for side in zip(*pairs, strict=True))
    detail = f"{curve * 1e3:.0f} over {point * 1e3:.0f} ms for {EXAMPLES} examples, median of {REPEATS} pairs"
    print(json.dumps({"curve_epoch_over_point_epoch": {"value": ratio, "detail": detail}}))


if __name__ == "__main__":
    main()
