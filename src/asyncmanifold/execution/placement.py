"""Where the jobs of a run are trained, checked before any work starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.execution.executors import Executor, InlineExecutor
from asyncmanifold.execution.prefetching import PrefetchingExecutor
from asyncmanifold.execution.training_worker import Recipe


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where jobs are trained; the results are the same everywhere.

    Arguments:
        workers: how many jobs are trained at the same time.
        executor: ``"inline"`` in this process; ``"process"`` in worker processes; ``"ray"`` on a Ray cluster.
            By default inline for one worker, and worker processes for more.
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
        check(self, workers="at least 1", executor="'inline', 'process' or 'ray'")
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

    def open(self, recipe: Recipe) -> Executor:
        """Start the executor."""
        if self.executor == "ray":
            from asyncmanifold.execution.ray_workers import RayWorkers

            return PrefetchingExecutor(RayWorkers(recipe, self.workers, self.ray_address))
        if self.executor == "process" or self.workers > 1:
            from asyncmanifold.execution.process_workers import ProcessWorkers

            return PrefetchingExecutor(ProcessWorkers(recipe, self.workers))
        return InlineExecutor(recipe)
