"""Where jobs are trained: what every place has in common, and the nearest one, this process.

A job is complete when it is dispatched, so it makes no difference to its result when and where it is
trained. Every trainer runs on one torch thread: the same bits for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from asyncmanifold.client.training import LocalTraining, Trainer
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.server.protocol import Job, Update
from asyncmanifold.tasks.task import Task


@dataclass(frozen=True)
class Workshop:
    """Everything that a trainer needs, the same for all jobs of a run."""

    task: Task
    embedding: Embedding
    training: LocalTraining
    seed: int

    def trainer(self) -> Trainer:
        """Return a trainer with a module of its own."""
        module = self.task.build_model(self.seed)
        return Trainer(module, self.task.loss, self.embedding, self.training, self.seed)


class Executor(Protocol):
    """Trains jobs. Submit each once; ask for each result once, then release it."""

    def submit(self, job: Job, arrival: float) -> None:
        """Take a job that will be asked for around the virtual time ``arrival``."""
        ...

    def result(self, job: Job, remaining: int) -> Update:
        """Return the trained job, or raise ``NonFiniteLoss``.

        At most ``remaining`` more results will be asked for, so no more than that are worth starting.
        """
        ...

    def release(self, job: Job) -> None:
        """Forget a job: its result has been used, or is not wanted any more."""
        ...

    def close(self) -> None:
        """End all work."""
        ...


class InlineExecutor:
    """Trains a job when its result is asked for, in this process."""

    def __init__(self, workshop: Workshop) -> None:
        self._task = workshop.task
        self._trainer = workshop.trainer()
        self._offsets: Tensor | None = None

    def submit(self, job: Job, arrival: float) -> None:
        """Do nothing yet."""

    def result(self, job: Job, remaining: int) -> Update:
        """Train the job now; its offsets go where those of the last one were, which has been released."""
        update = self._trainer.train(job, self._task.clients[job.client], out=self._offsets)
        self._offsets = update.offsets
        return update

    def release(self, job: Job) -> None:
        """Do nothing: there is nothing to give back."""

    def close(self) -> None:
        """Do nothing: there is nothing to end."""
