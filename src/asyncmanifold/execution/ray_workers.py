"""Workers that are actors of a Ray cluster, on one or many machines."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import asyncmanifold
from asyncmanifold.arithmetic import PORTABLE, is_portable
from asyncmanifold.errors import InputError, RunError
from asyncmanifold.execution.prefetching import Workers
from asyncmanifold.execution.process_workers import block_interrupts
from asyncmanifold.execution.training_worker import (
    Array,
    Outcome,
    Recipe,
    Reply,
    pack_reply,
    prepare_training_process,
    statistics_arrays,
)
from asyncmanifold.server.outgoing import OFFSETS, Parcel
from asyncmanifold.server.protocol import Failure, Job
from asyncmanifold.vectors import Statistics

START_SECONDS = 120.0
"""How long to wait for a first worker."""
MOST_LOSSES = 3
"""The run ends if a job loses its worker this often, or if this many workers in a row fail to start."""
ALIGN = 64
"""In bytes. torch's own vectors begin at multiples of it, and the order of a sum depends on where a vector
begins: other vectors could change the last bit of a result."""


class RayWorkers(Workers):
    """Actors, each with one CPU of the cluster and its own trainer.

    Large objects are put into Ray's object store once: the task with its data when a run begins, and each
    model, for all jobs that start from it. Workers read both there without a copy. If a worker is lost,
    others train its jobs again, to the same bits, and a new worker replaces it as soon as the cluster has
    room.
    """

    def __init__(self, recipe: Recipe, count: int, address: str | None) -> None:
        self.count = count
        self._ray: Any = import_module("ray")
        self._starting: dict[Any, Any] = {}  # reference to an actor's first reply -> actor
        self._load: dict[Any, int] = {}  # actor -> jobs it has
        self._unplaced: list[Job] = []
        self._running: dict[Any, tuple[Job, Any]] = {}  # reference to a reply -> job, actor
        self._replies: dict[int, Any] = {}  # by job number
        self._models: dict[int, Any] = {}  # version -> reference to the model
        self._users: Counter[int] = Counter()  # version -> jobs that are not trained yet
        self._losses: Counter[int] = Counter()  # by job number
        self._failed_starts = 0
        self._is_guest = self._ray.is_initialized()
        try:
            if not self._is_guest:
                _connect(self._ray, address, count * recipe.threads)
            needs = {"num_cpus": recipe.threads, "num_gpus": self._gpus_per_worker(recipe)}
            self._actor = self._ray.remote(**needs, runtime_env=_environment())(TrainingActor)
            self._recipe, self._threads = self._put_recipe(recipe), recipe.threads
            for _ in range(count):
                self._start_worker()
            while not self._load:
                self._add_worker(self._first_ready())
        except BaseException:
            self.close()
            raise

    def start(self, job: Job) -> None:
        """Put the job's model into the object store, unless it is there, and send the job to a worker."""
        if job.version not in self._models:
            model = (job.theta.numpy(force=True), *statistics_arrays(job.statistics))
            self._models[job.version] = self._ray.put(model)
        self._users[job.version] += 1
        self._place_job(job)

    def wait(self) -> list[int]:
        """Wait until a job has ended; meanwhile workers may start or be lost."""
        while True:
            ready = self._first_ready()
            if ready in self._starting:
                self._add_worker(ready)
            elif (number := self._finish_job(ready)) is not None:
                return [number]

    def outcome(self, number: int) -> Outcome:
        """Return the outcome; its offsets are a view of the object store."""
        reply = self._replies[number]
        if isinstance(reply, Failure):
            return reply
        arrays, loss, seconds = reply
        # Small arrays are copied: the server's state, which keeps statistics, outlives the reply.
        kept = {name: array if name == OFFSETS else array.copy() for name, array in arrays.items()}
        return Parcel({name: tensor_of(array) for name, array in kept.items()}, loss, seconds)

    def forget(self, number: int) -> None:
        """Free the reply's memory in the object store."""
        del self._replies[number]

    def close(self) -> None:
        """End the actors, and the local Ray if this run started it."""
        self._replies.clear()
        if not self._is_guest:
            with _defer_signals():
                self._ray.shutdown()
            return
        for actor in (*self._load, *self._starting.values()):
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def _put_recipe(self, recipe: Recipe) -> Any:
        try:
            with _tensors_as_arrays(self._ray):
                return self._ray.put(recipe)
        except (AttributeError, TypeError) as error:
            # Ray's own message is pages long.
            raise InputError(f"a task for Ray must be picklable: {error.__cause__ or error}") from error

    def _gpus_per_worker(self, recipe: Recipe) -> float:
        """Return the GPUs, or the part of one, that each worker asks Ray for."""
        if recipe.device.type != "cuda":
            return 0
        gpus = int(self._ray.cluster_resources().get("GPU", 0))
        if gpus == 0:
            raise InputError("device 'cuda' on Ray: the cluster has no GPU")
        return gpus_per_worker(gpus, self.count)

    def _start_worker(self) -> None:
        actor = self._actor.remote(sys.path, [self._recipe], self._threads)
        self._starting[actor.versions.remote()] = actor

    def _first_ready(self) -> Any:
        """Wait until a worker has started or a job has ended; return the reference to its reply."""
        waiting = [*self._running, *self._starting]
        timeout = None if self._load else START_SECONDS
        ready, _ = self._ray.wait(waiting, timeout=timeout)
        if not ready:
            cpus = self._ray.cluster_resources().get("CPU", 0.0)
            raise RunError(
                f"no Ray worker started within {START_SECONDS:g} s: each needs one CPU, "
                f"the cluster has {cpus:g} and others may use them"
            )
        return ready[0]

    def _add_worker(self, reference: Any) -> None:
        """Add a worker that has started, and give it the jobs that had no worker."""
        actor = self._starting.pop(reference)
        try:
            versions = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MOST_LOSSES:
                raise RunError(f"Ray workers do not start: {str(error).strip().splitlines()[-1]}") from error
            self._start_worker()
            return
        if versions != own_versions():
            raise InputError(f"a Ray worker has {versions}, must have {own_versions()} as it is here")
        self._failed_starts = 0
        self._load[actor] = 0
        unplaced, self._unplaced = self._unplaced, []
        for job in unplaced:
            self._place_job(job)

    def _place_job(self, job: Job) -> None:
        """Send a job to the least busy worker, or keep it until there is a worker."""
        if not self._load:
            self._unplaced.append(job)
            return
        actor = min(self._load, key=self._load.__getitem__)
        self._load[actor] += 1
        reference = actor.train.remote(job.numbers(), self._models[job.version])
        self._running[reference] = (job, actor)

    def _finish_job(self, reference: Any) -> int | None:
        """Store a reply and return the job's number, or None if its worker was lost and it starts again."""
        job, actor = self._running.pop(reference)
        try:
            reply = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise RuntimeError(f"training failed in a Ray worker\n{error}") from None
        except self._ray.exceptions.RayError as error:
            self._replace_worker(job, actor, error)
            return None
        if actor in self._load:  # the worker may have been lost since
            self._load[actor] -= 1
        self._replies[job.number] = reply
        self._losses.pop(job.number, None)
        self._users[job.version] -= 1
        if self._users[job.version] == 0:
            del self._users[job.version], self._models[job.version]
        return job.number

    def _replace_worker(self, job: Job, actor: Any, error: Exception) -> None:
        """Replace a lost worker, and start its job again."""
        if actor in self._load:
            del self._load[actor]
            self._ray.kill(actor)  # it may be alive but out of reach
            self._start_worker()
        self._losses[job.number] += 1
        if self._losses[job.number] >= MOST_LOSSES:
            raise RunError(
                f"job {job.number} of client {job.client} lost its Ray worker {MOST_LOSSES} times "
                f"(out of memory?)"
            ) from error
        self._place_job(job)


class TrainingActor:
    """A worker in a Ray cluster.

    It first extends ``sys.path`` by the server's, so that it finds the modules of the user's task. The recipe
    is passed in a list because Ray would unpickle a bare reference before that.
    """

    def __init__(self, path: list[str], recipe: list[Any], threads: int) -> None:
        sys.path.extend(place for place in path if place not in sys.path)
        prepare_training_process(threads)
        self._worker = import_module("ray").get(recipe[0]).worker()

    def versions(self) -> dict[str, str]:
        """Return the worker's versions: other versions may give other bits."""
        return own_versions()

    def train(self, numbers: dict[str, int], model: tuple[Array, ...]) -> Reply:
        """Return the outcome of a job."""
        theta, *statistics = map(tensor_of, model)
        return pack_reply(self._worker.train(Job(theta=theta, statistics=Statistics(*statistics), **numbers)))


def gpus_per_worker(gpus: int, workers: int) -> float:
    """Return how many GPUs each worker gets: a whole one if there are enough, else an even part of one.

    >>> gpus_per_worker(4, 2), gpus_per_worker(2, 4), gpus_per_worker(2, 3)
    (1.0, 0.5, 0.5)
    """
    return 1.0 / -(-workers // gpus)


def own_versions() -> dict[str, str]:
    """Return what affects the bits of a result and must be the same in every worker."""
    kind = "portable" if is_portable() else "native"
    return {"asyncmanifold": asyncmanifold.__version__, "torch": torch.__version__, "arithmetic": kind}


def _environment() -> dict[str, Any]:
    """Return Ray's runtime environment for workers that compute as this process does."""
    return {"env_vars": PORTABLE} if is_portable() else {}


def tensor_of(array: Array) -> Tensor:
    """Return an array of the object store as a tensor, which must not be written to.

    An array that is aligned like torch's own vectors is not copied; Ray aligns all but small arrays.
    """
    if array.ctypes.data % ALIGN:
        return torch.tensor(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


@contextmanager
def _tensors_as_arrays(ray: Any) -> Iterator[None]:
    """Make Ray store tensors as numpy arrays within this block: each once, and only the viewed part.

    By default Ray copies the whole memory behind every view into the pickle itself.
    """
    ray.util.register_serializer(Tensor, serializer=_pack, deserializer=_unpack)
    try:
        yield
    finally:
        ray.util.deregister_serializer(Tensor)


def _pack(tensor: Tensor) -> tuple[Array, torch.dtype, torch.Size, bool]:
    """Return a tensor as bytes, since numpy lacks some of torch's dtypes."""
    flat = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
    return flat.numpy(), tensor.dtype, tensor.shape, tensor.requires_grad


def _unpack(packed: tuple[Array, torch.dtype, torch.Size, bool]) -> Tensor:
    array, dtype, shape, requires_grad = packed
    return tensor_of(array).view(dtype).view(shape).requires_grad_(requires_grad)


def _connect(ray: Any, address: str | None, cpus: int) -> None:
    """Join the cluster at ``address``, or start a local one, without Ray's log messages."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray prints a warning
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address not in (None, "auto"):
            _check_reachable(str(address))
        with _defer_signals():
            if address is None:
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
            else:
                ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine" if address is None else f"at {address}"
        raise InputError(f"no Ray cluster {where}: {' '.join(str(error).split())}") from error


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the end of the block, then restore the signal handlers.

    If Ray is interrupted while it starts or ends, it leaves processes behind; and it installs its own
    handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda number, _: caught.append(number)) for number in numbers]
    try:
        with block_interrupts():
            yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
    if caught:
        signal.raise_signal(caught[0])


def _check_reachable(address: str) -> None:
    """Raise ``OSError`` if nothing listens at ``address``: Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=5.0).close()
