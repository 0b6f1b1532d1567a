"""The steps of a job: its shuffled batches and learning rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.server.protocol import Job


@dataclass(frozen=True)
class TrainingStep:
    """One step of the optimiser."""

    epoch: int
    left: int
    """Steps until the end of the job, with this one."""
    along_curve: bool
    starts_curve: bool
    ends_epoch: bool
    group: list[Tensor]
    """The example numbers of each batch."""
    factor: float
    """Of the learning rate."""

    @property
    def shares(self) -> list[float]:
        """Each batch's share of the step's examples, so that a step is the same as with one large batch."""
        total = sum(map(len, self.group))
        return [len(indices) / total for indices in self.group]


def job_steps(
    job: Job, examples: int, settings: LocalTraining, random: np.random.Generator
) -> Iterator[TrainingStep]:
    """Yield the steps of a job on so many examples; positions on the curve are drawn by the caller."""
    number, total = 0, count_steps(job, examples, settings)
    for epoch in range(job.epochs):
        along_curve = epoch >= job.point_epochs
        if (private := settings.example_privacy) is None:
            batches = shuffled_batches(examples, settings.batch_size, random)
        else:
            batches = [torch.zeros(0, dtype=torch.int64)] * private.steps_per_epoch  # drawn in secret
        for start in range(0, len(batches), settings.accumulate):
            yield TrainingStep(
                epoch=epoch,
                left=total - number,
                along_curve=along_curve,
                starts_curve=start == 0 and epoch == job.point_epochs,
                ends_epoch=start + settings.accumulate >= len(batches),
                group=batches[start : start + settings.accumulate],
                factor=settings.rate_factor(number, total),
            )
            number += 1


def count_steps(job: Job, examples: int, settings: LocalTraining) -> int:
    """Return the number of steps of a job."""
    if settings.example_privacy is not None:
        return job.epochs * settings.example_privacy.steps_per_epoch
    batches = -(-examples // settings.batch_size)
    return job.epochs * -(-batches // settings.accumulate)


def shuffled_batches(count: int, size: int, random: np.random.Generator) -> list[Tensor]:
    """Return a shuffled epoch as ⌈count / size⌉ batches whose sizes differ by at most one.

    Batches are nearly even because a last batch of a single example would break BatchNorm, and would weigh as
    much as a full one.
    """
    order = torch.from_numpy(random.permutation(count))
    return list(order.tensor_split(-(-count // size)))
