"""Executors train jobs: the interface of all of them, and the one that trains in this process.

A job is complete when it is dispatched, so its result does not depend on when and where it is trained.
Every trainer uses one torch thread, because the order of a sum decides its last bit: results are the same
bits for any number of workers.
"""

from __future__ import annotations

from typing import Protocol

import torch

from asyncmanifold.execution.training_worker import Outcome, Recipe
from asyncmanifold.server.protocol import Job


class Executor(Protocol):
    """Trains jobs. Submit each once; ask for each result once, then release it."""

    def submit(self, job: Job, arrival: float) -> None:
        """Accept a job whose result will be needed around the virtual time ``arrival``."""
        ...

    def result(self, job: Job, remaining: int) -> Outcome:
        """Return the job's outcome.

        At most ``remaining`` more results will be asked for, so no more than that are worth starting.
        """
        ...

    def release(self, job: Job) -> None:
        """Forget a job whose result has been used or is no longer needed."""
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
        return self._worker.train(job, self._offsets)  # the memory of the last job, which has been released

    def release(self, job: Job) -> None:
        pass

    def close(self) -> None:
        pass
