"""What a worker does, wherever it is: jobs in, outcomes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.client.training import NonFiniteLoss, Trainer
from asyncmanifold.execution.allocator import keep_freed_memory
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.server.outgoing import Outgoing, Parcel, pack_update
from asyncmanifold.server.protocol import Failure, Job
from asyncmanifold.tasks.task import Task
from asyncmanifold.vectors import Statistics

Outcome = Parcel | Failure
"""What a job came to."""
Array = npt.NDArray[np.generic]
Reply = Failure | tuple[dict[str, Array], float, float]
"""An outcome as it goes to another process: a parcel's arrays, loss and seconds."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a worker needs, the same for all jobs of a run."""

    task: Task
    embedding: Embedding
    outgoing: tuple[Outgoing, ...]
    training: LocalTraining
    seed: int

    def worker(self) -> TrainingWorker:
        """Return a worker with a module of its own."""
        return TrainingWorker(self)


class TrainingWorker:
    """Trains one job after another; a failure becomes an outcome here, and stays one."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        module = recipe.task.build_model(recipe.seed)
        self._trainer = Trainer(module, recipe.task.loss, recipe.embedding, recipe.training, recipe.seed)
        self.size = self._trainer.size

    def train(self, job: Job, out: Tensor | None = None) -> Outcome:
        """Return what leaves the client, or why nothing does; ``out`` is where offsets may go."""
        try:
            update = self._trainer.train(job, self._recipe.task.clients[job.client], out=out)
        except NonFiniteLoss as problem:
            return Failure(str(problem))
        return pack_update(update, job, self._recipe.outgoing, self._recipe.seed)


def prepare_training_process() -> None:
    """Prepare a process that does nothing but train."""
    torch.set_num_threads(1)
    keep_freed_memory()


def statistics_arrays(statistics: Statistics) -> tuple[Array, ...]:
    """Return statistics in a form that goes to another process."""
    return tuple(tensor.numpy() for tensor in statistics)


def statistics_from(arrays: Iterable[Array]) -> Statistics:
    """Return statistics that came from another process."""
    return Statistics(*(torch.from_numpy(array) for array in arrays))


def pack_reply(outcome: Outcome) -> Reply:
    """Return an outcome in a form that goes to another process."""
    if isinstance(outcome, Failure):
        return outcome
    arrays = {name: tensor.numpy() for name, tensor in outcome.tensors.items()}
    return arrays, outcome.loss, outcome.seconds
