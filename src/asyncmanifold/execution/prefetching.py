"""Prefetching: train jobs before their results are needed, on workers of any kind.

A job's result depends on the job alone, so it can be computed before its virtual arrival, in any order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Protocol

from asyncmanifold.execution.executors import Executor
from asyncmanifold.execution.training_worker import Outcome
from asyncmanifold.server.protocol import Job

QUEUE_DEPTH = 2
"""Jobs per worker: the one in training, and the next one, so that a worker never waits for the server."""
HELD_PER_WORKER = 3
"""Jobs held per worker. More than ``QUEUE_DEPTH``, because jobs end out of order: some results wait for their
virtual arrival while other jobs are trained."""


def most_jobs_held(workers: int) -> int:
    """Return the most jobs that are started and not yet forgotten.

    One is reserved for a job that is needed at once although the workers' queue is full.
    """
    return workers * HELD_PER_WORKER + 1


class Workers(Protocol):
    """Workers that train jobs. Each job is started once, ends once and is then forgotten once."""

    count: int

    def start(self, job: Job) -> None:
        """Give a job to a worker."""
        ...

    def wait(self) -> Iterable[int]:
        """Wait until jobs have ended, and return their numbers."""
        ...

    def outcome(self, number: int) -> Outcome:
        """Return the outcome of a job that has ended."""
        ...

    def forget(self, number: int) -> None:
        """Free the memory of a job that has ended; its update is no longer used."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class PrefetchingExecutor(Executor):
    """Trains jobs before they arrive, in the order of arrival, limited by the memory for held jobs."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._waiting: list[tuple[float, int, Job]] = []
        self._running: set[int] = set()
        self._done: set[int] = set()
        self._taken: set[int] = set()
        """Jobs that are done and whose results are in use."""
        self._unwanted: set[int] = set()

    def submit(self, job: Job, arrival: float) -> None:
        """Queue the job by its arrival time."""
        heapq.heappush(self._waiting, (arrival, job.number, job))

    def result(self, job: Job, remaining: int) -> Outcome:
        """Keep the workers busy until this job is trained."""
        if job.number not in self._running and job.number not in self._done:
            first = self._next_job()  # no waiting job arrives before it
            assert first is job
            self._start_job(job)
        while job.number not in self._done:
            self._prefetch_jobs(remaining)
            for number in self._workers.wait():
                self._finish_job(number)
        self._prefetch_jobs(remaining)
        self._done.remove(job.number)
        self._taken.add(job.number)
        return self._workers.outcome(job.number)

    def release(self, job: Job) -> None:
        """Forget the job, now or when its training ends."""
        held = next((held for held in (self._taken, self._done) if job.number in held), None)
        if held is None:
            self._unwanted.add(job.number)
        else:
            held.remove(job.number)
            self._workers.forget(job.number)

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def _prefetch_jobs(self, remaining: int) -> None:
        """Start waiting jobs, while there is room and no more than will be asked for."""
        count = self._workers.count
        while (
            len(self._running) + len(self._done) + len(self._taken) < most_jobs_held(count) - 1
            and len(self._running) < count * QUEUE_DEPTH
            and len(self._running) + len(self._done) < remaining
        ):
            job = self._next_job()
            if job is None:
                return
            self._start_job(job)

    def _next_job(self) -> Job | None:
        while self._waiting:
            job = heapq.heappop(self._waiting)[2]
            if job.number not in self._unwanted:
                return job
            self._unwanted.remove(job.number)
        return None

    def _start_job(self, job: Job) -> None:
        self._running.add(job.number)
        self._workers.start(job)

    def _finish_job(self, number: int) -> None:
        self._running.remove(number)
        if number in self._unwanted:
            self._unwanted.remove(number)
            self._workers.forget(number)
        else:
            self._done.add(number)
