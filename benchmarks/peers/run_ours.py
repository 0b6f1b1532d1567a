"""This library: ``fedasync`` or ``fedbuff``, in one process or with worker processes, files and all."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from arguments import parse
from meter import Meter
from problem import BATCH_SIZE, BUFFER_SIZE, CONCURRENCY, LEARNING_RATE
from torch import nn

from asyncmanifold import METHODS, Buffer, LocalTraining, Placement, Records, Run, Schedule, Task, simulate
from asyncmanifold.session.trace import Record


class Measured(Exception):  # noqa: N818 - an outcome, not an error
    """The run has gone on for long enough."""


def main() -> None:
    problem, options = parse()
    method = METHODS[options.method]
    if options.method == "fedbuff":
        method = replace(method, buffer=Buffer(BUFFER_SIZE))
    meter = Meter(problem.size)

    def observe(record: Record) -> None:
        if record["kind"] == "update":
            meter.count()
            if meter.is_done:
                raise Measured

    task = Task(
        model=problem.model,
        loss=nn.functional.cross_entropy,
        clients=list(zip(problem.inputs, problem.targets, strict=True)),
        test=(problem.inputs[0, :8], problem.targets[0, :8]),
    )
    updates = 2 * (problem.size.warm_up + problem.size.measured)  # workers are busy until all is measured
    with tempfile.TemporaryDirectory() as folder, suppress(Measured):
        simulate(
            task,
            method,
            training=LocalTraining(
                point_epochs=1,
                curve_epochs=0,
                batch_size=BATCH_SIZE,
                optimizer="sgd",
                local_lr=LEARNING_RATE,
                proximal=0.0,
                channels_last=options.channels_last,
            ),
            schedule=Schedule(concurrency=CONCURRENCY),
            run=Run(updates=updates, evaluate_every=updates),
            placement=Placement(workers=options.at_once),
            records=Records(out=Path(folder) / "run", observer=observe),
        )
    meter.print(torch=torch.__version__)


if __name__ == "__main__":
    main()
