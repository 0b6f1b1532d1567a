"""Trains the jobs in flight that arrive next as one batched program, in this process."""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from asyncmanifold.client.batched_training import BatchedTrainer
from asyncmanifold.client.training import NonFiniteLoss
from asyncmanifold.errors import InputError
from asyncmanifold.execution.executors import Executor
from asyncmanifold.execution.training_worker import Outcome, Recipe
from asyncmanifold.server.outgoing import pack_failure, pack_update
from asyncmanifold.server.protocol import Job

BATCH = 16
"""Jobs in one program, unless ``workers`` says how many."""


class BatchedExecutor(Executor):
    """Trains a job together with those that arrive after it, when its result is asked for.

    A result depends, in its last digits, on the jobs beside it: runs repeat to the last bit if they are not
    interrupted, and a resumed run agrees with them up to rounding.
    """

    def __init__(self, recipe: Recipe, count: int) -> None:
        if recipe.device.type != "cpu":
            raise InputError(f"executor 'batched' is for the CPU, not for device '{recipe.device}'")
        self._recipe, self._count = recipe, count
        task = recipe.task
        self._trainer = BatchedTrainer(
            task.build_model(recipe.seed),
            task.loss,
            recipe.embedding,
            recipe.training,
            recipe.seed,
            jobs=count,
            probe=task.clients[0],
        )
        self._waiting: list[tuple[float, int, Job]] = []
        self._unwanted: set[int] = set()
        self._outcomes: dict[int, Outcome] = {}
        self._offsets: dict[int, Tensor] = {}  # by job number
        self._free: list[Tensor] = []

    def submit(self, job: Job, arrival: float) -> None:
        """Queue the job by its arrival time."""
        heapq.heappush(self._waiting, (arrival, job.number, job))

    def result(self, job: Job, remaining: int) -> Outcome:
        """Train the next jobs, of which this is the first, unless it is trained already."""
        if job.number not in self._outcomes:
            self._train_next(min(self._count, remaining - len(self._outcomes)))
        return self._outcomes.pop(job.number)

    def release(self, job: Job) -> None:
        """Forget the job, trained or not."""
        self._outcomes.pop(job.number, None)
        if job.number in self._offsets:
            self._free.append(self._offsets.pop(job.number))
        else:
            self._unwanted.add(job.number)

    def close(self) -> None:
        """Nothing is left to end."""

    def _train_next(self, count: int) -> None:
        jobs: list[Job] = []
        while self._waiting and len(jobs) < max(1, count):
            job = heapq.heappop(self._waiting)[2]
            if job.number in self._unwanted:
                self._unwanted.remove(job.number)
            else:
                jobs.append(job)
        points = self._recipe.embedding.points
        for job in jobs:
            self._offsets[job.number] = (
                self._free.pop() if self._free else torch.empty(points, self._trainer.size)
            )
        updates = self._trainer.train(
            jobs,
            [self._recipe.task.clients[job.client] for job in jobs],
            [self._offsets[job.number] for job in jobs],
        )
        for job, update in zip(jobs, updates, strict=True):
            parts, seed = self._recipe.outgoing, self._recipe.seed
            self._outcomes[job.number] = (
                pack_failure(update, job, parts, seed, self._offsets[job.number])
                if isinstance(update, NonFiniteLoss)
                else pack_update(update, job, parts, seed)
            )
