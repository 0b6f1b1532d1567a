"""The work of every worker: train a job and return its outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.client.training import Trainer, Untrainable
from asyncmanifold.devices import CPU
from asyncmanifold.execution.allocator import keep_freed_memory
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.server.outgoing import Outgoing, Parcel, pack_failure, pack_update
from asyncmanifold.server.protocol import Failure, Job
from asyncmanifold.tasks.task import Task
from asyncmanifold.vectors import Statistics

Outcome = Parcel | Failure
"""The outcome of a job."""
Array = npt.NDArray[np.generic]
Reply = Failure | tuple[dict[str, Array | None], float | None, float]
"""An outcome in the form that is sent to another process: a parcel's arrays, loss and seconds. None stands
for an array that is in shared memory."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a worker needs besides the job; the same for all jobs of a run."""

    task: Task
    embedding: Embedding
    outgoing: tuple[Outgoing, ...]
    training: LocalTraining
    seed: int
    device: torch.device = CPU
    threads: int = 1

    def worker(self) -> TrainingWorker:
        """Return a worker with its own module."""
        return TrainingWorker(self)


class TrainingWorker:
    """Trains one job after another; here, and only here, what cannot be trained becomes a ``Failure``."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        module = recipe.task.build_model(recipe.seed)
        self._trainer = Trainer(
            module, recipe.task.loss, recipe.embedding, recipe.training, recipe.seed, recipe.device
        )
        self.size = self._trainer.size

    def train(self, job: Job, out: Tensor | None = None) -> Outcome:
        """Return the parcel that the client sends, or the failure; offsets may be written to ``out``."""
        try:
            update = self._trainer.train(job, self._recipe.task.clients[job.client], out=out)
        except Untrainable as problem:
            if out is None:
                out = torch.empty(self._recipe.embedding.points, self.size)
            return pack_failure(problem, job, self._recipe.outgoing, self._recipe.seed, out)
        return pack_update(update, job, self._recipe.outgoing, self._recipe.seed)


def prepare_training_process(threads: int) -> None:
    """Prepare a process that only trains.

    By default one thread, since the order of a sum decides its last bit; freed memory is kept for the next
    batch.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()


def statistics_arrays(statistics: Statistics) -> tuple[Array, ...]:
    """Return statistics as arrays, to be sent to another process."""
    return tuple(tensor.numpy(force=True) for tensor in statistics)


def statistics_from(arrays: Iterable[Array]) -> Statistics:
    """Return statistics that another process sent as arrays."""
    return Statistics(*(torch.from_numpy(array) for array in arrays))


def pack_reply(outcome: Outcome) -> Reply:
    """Return an outcome in the form that is sent to another process."""
    if isinstance(outcome, Failure):
        return outcome
    arrays: dict[str, Array | None] = {name: tensor.numpy() for name, tensor in outcome.tensors.items()}
    return arrays, outcome.loss, outcome.seconds
