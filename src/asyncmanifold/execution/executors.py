"""Where jobs are trained: what every place has in common, and the nearest one, this process.

A job is complete when it is dispatched, so it makes no difference to its result when and where it is
trained. Every trainer runs on one torch thread: the same bits for any number of workers.
"""

from __future__ import annotations

from typing import Protocol

import torch

from asyncmanifold.execution.training_worker import Outcome, Recipe
from asyncmanifold.server.protocol import Job


class Executor(Protocol):
    """Trains jobs. Submit each once; ask for each result once, then release it."""

    def submit(self, job: Job, arrival: float) -> None:
        """Take a job that will be asked for around the virtual time ``arrival``."""
        ...

    def result(self, job: Job, remaining: int) -> Outcome:
        """Return what the job came to.

        At most ``remaining`` more results will be asked for, so no more than that are worth starting.
        """
        ...

    def release(self, job: Job) -> None:
        """Forget a job: its result has been used, or is not wanted any more."""
        ...

    def close(self) -> None:
        """End all work."""
        ...


class InlineExecutor(Executor):
    """Trains a job when its result is asked for, in this process."""

    def __init__(self, recipe: Recipe) -> None:
        self._worker = recipe.worker()
        self._offsets = torch.empty(recipe.embedding.points, self._worker.size)

    def submit(self, job: Job, arrival: float) -> None:
        pass

    def result(self, job: Job, remaining: int) -> Outcome:
        return self._worker.train(job, self._offsets)  # where those of the last job were, which is released

    def release(self, job: Job) -> None:
        pass

    def close(self) -> None:
        pass
