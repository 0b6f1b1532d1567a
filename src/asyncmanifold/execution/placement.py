"""Where the jobs of a run are trained, checked before any work starts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.execution.executors import Executor, InlineExecutor
from asyncmanifold.execution.prefetching import PrefetchingExecutor
from asyncmanifold.execution.training_worker import Recipe


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where jobs are trained; unless they are batched, the results are the same everywhere.

    Arguments:
        workers: how many jobs are trained at the same time; 16 by default if they are batched.
        executor: ``"inline"`` in this process; ``"process"`` in worker processes; ``"ray"`` on a Ray cluster;
            ``"batched"`` as one program in this process, which is faster for small models and gives the same
            results only up to rounding. By default inline for one worker, and worker processes for more.
        ray_address: a running cluster, HOST:PORT or ``"auto"``; by default a local Ray is started and ended
            with the run. If the program has called ``ray.init`` itself, its cluster is used.

    >>> from asyncmanifold import Placement
    >>> Placement(workers=2)
    Placement(workers=2, executor=None, ray_address=None)
    """

    workers: int = 1
    executor: str | None = None
    ray_address: str | None = None

    def __post_init__(self) -> None:
        check(self, workers="at least 1", executor="'inline', 'process', 'ray' or 'batched'")
        if self.executor == "inline" and self.workers > 1:
            raise InputError(f"executor 'inline' is one process: workers={self.workers} must be 1")
        if self.ray_address is not None:
            if self.executor != "ray":
                raise InputError(f"ray_address={self.ray_address!r} is only for executor 'ray'")
            if self.ray_address != "auto" and not re.fullmatch(r"[^/\s]+:\d{1,5}", self.ray_address):
                raise InputError(f"ray_address={self.ray_address!r} must be HOST:PORT or auto")
        if self.executor == "ray":
            try:
                version("ray")
            except PackageNotFoundError as error:
                raise InputError(
                    "executor 'ray' needs the extra 'ray': pip install 'asyncmanifold[ray]'"
                ) from error

    def crowding(self) -> str | None:
        """Return one line if more workers than cores would train on this machine."""
        cores = available_cores()
        if self.executor == "ray" or self.workers <= cores:
            return None
        return f"{self.workers} workers share {cores} core{'s' * (cores != 1)}: no faster than {cores}"

    def open(self, recipe: Recipe) -> Executor:
        """Start the executor."""
        if self.executor == "ray":
            from asyncmanifold.execution.ray_workers import RayWorkers

            return PrefetchingExecutor(RayWorkers(recipe, self.workers, self.ray_address))
        if self.executor == "batched":
            from asyncmanifold.execution.batched_executor import BATCH, BatchedExecutor

            return BatchedExecutor(recipe, self.workers if self.workers > 1 else BATCH)
        if self.executor == "process" or self.workers > 1:
            from asyncmanifold.execution.process_workers import ProcessWorkers

            return PrefetchingExecutor(ProcessWorkers(recipe, self.workers))
        return InlineExecutor(recipe)
