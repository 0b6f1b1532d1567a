"""Training ahead of arrival: which job starts when, for workers of any kind."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Protocol

from asyncmanifold.execution.executors import Executor
from asyncmanifold.execution.training_worker import Outcome
from asyncmanifold.server.protocol import Job

QUEUE_DEPTH = 2
"""Jobs that a worker has: the one that it trains, and the next, so that it need not wait for the server."""
HELD_PER_WORKER = 3
"""Jobs end out of order: some wait for their turn while others are trained."""


def most_jobs_held(workers: int) -> int:
    """Return how many jobs are started and not yet forgotten, at most; one is kept for an overtaking job."""
    return workers * HELD_PER_WORKER + 1


class Workers(Protocol):
    """Train jobs elsewhere. Each job is started once, ends once and is then forgotten once."""

    count: int

    def start(self, job: Job) -> None:
        """Hand a job to a worker."""
        ...

    def wait(self) -> Iterable[int]:
        """Wait until jobs have ended, and return their numbers."""
        ...

    def outcome(self, number: int) -> Outcome:
        """Return what a job that has ended came to."""
        ...

    def forget(self, number: int) -> None:
        """Give back the memory of a job that has ended; its update is not used any more."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class PrefetchingExecutor(Executor):
    """Trains jobs ahead of their arrival, in its order, as far as the workers' memory allows."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._waiting: list[tuple[float, int, Job]] = []
        self._running: set[int] = set()
        self._done: set[int] = set()
        self._taken: set[int] = set()
        """Done, and their results are in use."""
        self._unwanted: set[int] = set()

    def submit(self, job: Job, arrival: float) -> None:
        """Queue the job by its arrival."""
        heapq.heappush(self._waiting, (arrival, job.number, job))

    def result(self, job: Job, remaining: int) -> Outcome:
        """Keep the workers busy until this job is trained."""
        if job.number not in self._running and job.number not in self._done:
            first = self._next_job()  # nothing that is still waiting arrives before it
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
        """Start waiting jobs, as many as there is room for and will be asked for."""
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
