"""Worker processes on this machine, which share memory with the server."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.devices import spread_devices
from asyncmanifold.errors import InputError, RunError
from asyncmanifold.execution.importable import check_importable
from asyncmanifold.execution.prefetching import Workers, most_jobs_held
from asyncmanifold.execution.slots import SharedSlots, SlotAddress
from asyncmanifold.execution.training_worker import (
    Array,
    Outcome,
    Recipe,
    pack_reply,
    prepare_training_process,
    statistics_arrays,
    statistics_from,
)
from asyncmanifold.server.outgoing import OFFSETS, Parcel
from asyncmanifold.server.protocol import Failure, Job
from asyncmanifold.vectors import FlatModel


class ProcessWorkers(Workers):
    """Worker processes.

    A slot of shared memory holds a job's base model and, once trained, its offsets; the server reads them
    there, so they are never copied through a pipe.
    """

    def __init__(self, recipe: Recipe, count: int) -> None:
        self.count = count
        check_importable(recipe)
        size = FlatModel(recipe.task.build_model(recipe.seed)).size
        slots = most_jobs_held(count)
        self._slots = SharedSlots(slots, recipe.embedding.points, size)
        self._free = list(range(slots))
        self._slot_of: dict[int, int] = {}  # job number -> slot
        self._replies: dict[int, Any] = {}  # by job number
        self._load: dict[Connection, int] = {}  # worker -> jobs it has
        self._processes = []
        context = worker_context()
        try:
            for device in spread_devices(recipe.device, count):
                ours, theirs = context.Pipe()
                placed = replace(recipe, device=device)
                process = context.Process(
                    target=_work, args=(theirs, placed, self._slots.address), daemon=True
                )
                with block_interrupts():
                    process.start()
                theirs.close()
                self._load[ours] = 0
                self._processes.append(process)
            for connection in self._load:
                _receive(connection)  # it is ready: it has opened the slots
        except RunError as error:
            raise RunError(NOT_STARTED) from error
        except (AttributeError, TypeError, PicklingError) as error:
            raise InputError(f"a task for several workers must be picklable: {error}") from error
        except (OSError, RuntimeError) as error:
            if "Too many open files" in str(error):
                raise InputError(_TOO_MANY_TENSORS) from error
            raise
        finally:
            self._slots.unlink()

    def start(self, job: Job) -> None:
        """Write the job's model to a slot, and send the job to the least busy worker."""
        slot = self._slot_of[job.number] = self._free.pop()
        theta, _ = self._slots[slot]
        theta.copy_(job.theta)
        connection = min(self._load, key=self._load.__getitem__)
        self._load[connection] += 1
        try:
            connection.send((slot, job.numbers(), statistics_arrays(job.statistics)))
        except OSError as error:
            raise RunError(_DIED) from error

    def wait(self) -> Iterator[int]:
        """Wait for replies, and yield the numbers of the jobs that ended."""
        for connection in wait(list(self._load)):
            assert isinstance(connection, Connection)
            number, reply = _receive(connection)
            self._replies[number] = reply
            self._load[connection] -= 1
            yield number

    def outcome(self, number: int) -> Outcome:
        """Return the outcome; dense offsets are a view of the job's slot."""
        reply = self._replies[number]
        if isinstance(reply, Failure):
            return reply
        arrays, loss, seconds = reply
        _, offsets = self._slots[self._slot_of[number]]
        received = {
            name: offsets if array is None else torch.from_numpy(array) for name, array in arrays.items()
        }
        return Parcel(received, loss, seconds)

    def forget(self, number: int) -> None:
        """Free the job's slot."""
        del self._replies[number]
        self._free.append(self._slot_of.pop(number))

    def close(self) -> None:
        """End the processes."""
        for connection in self._load:
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()


def worker_context() -> ForkServerContext | SpawnContext:
    """Return how worker processes are started, now and later in this process.

    Forking a process that runs threads, as torch does, is not safe. On Linux workers are forked from a server
    process that has loaded torch and started no thread, so that many of them load it once; elsewhere, where
    system libraries may not be forked either, each is a new Python.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Start processes in this block with Ctrl-C blocked.

    Ctrl-C goes to every process of a terminal. Only the main process shall react to it: it writes a
    checkpoint and then ends its workers. The standard library starts its resource tracker with the first
    process and unblocks Ctrl-C after that, so the tracker is started before.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_TOO_MANY_TENSORS = (
    "a task for several workers has more tensors than files may be open (ulimit -n): make its clients Shares "
    "of the same examples"
)
_DIED = "a worker process died (out of memory?)"
NOT_STARTED = (
    "a worker process did not start: a program that uses workers must do its work below "
    "if __name__ == '__main__'"
)


def _receive(connection: Connection) -> Any:
    """Return a worker's next reply; raise here what crashed the worker."""
    try:
        reply = connection.recv()
    except (EOFError, OSError) as error:
        raise RunError(_DIED) from error
    if isinstance(reply, _Crash):
        raise RuntimeError(f"training failed in a worker process\n{reply.traceback}")
    return reply


@dataclass(frozen=True)
class _Crash:
    traceback: str


def _work(connection: Connection, recipe: Recipe, address: SlotAddress) -> None:
    """Train jobs in a worker process until the server closes the connection."""
    try:
        prepare_training_process(recipe.threads)
        slots = SharedSlots.open(address)
        worker = recipe.worker()
        connection.send("ready")
        while True:
            slot, numbers, statistics = connection.recv()
            theta, offsets = slots[slot]
            job = Job(theta=theta, statistics=statistics_from(statistics), **numbers)
            reply = pack_reply(worker.train(job, offsets))
            if not isinstance(reply, Failure):
                _leave_in_slot(reply[0], offsets)
            connection.send((job.number, reply))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception:
        with suppress(OSError):  # the server may be gone: then nobody is left to tell
            connection.send(_Crash(traceback.format_exc()))


def _leave_in_slot(arrays: dict[str, Array | None], offsets: Tensor) -> None:
    """Replace dense offsets in a reply by None: the server reads them in the slot."""
    sent = arrays.get(OFFSETS)
    if sent is not None and sent.shape == tuple(offsets.shape) and sent.dtype == np.float32:
        if sent.ctypes.data != offsets.data_ptr():
            offsets.copy_(torch.from_numpy(sent))
        arrays[OFFSETS] = None
