"""Where jobs are trained: in this process, or in others that share memory with it.

A job is complete when it is dispatched, so it makes no difference to its result when and where it is
trained. Every trainer runs on one torch thread: the same bits for any number of workers.
"""

from __future__ import annotations

import heapq
import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from typing import Any, Protocol

import torch

from asyncmanifold.client.training import LocalTraining, NonFiniteLoss, Trainer
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.server.protocol import Job, Update
from asyncmanifold.simulation.allocator import keep_freed_memory
from asyncmanifold.simulation.slots import SharedSlots, SlotAddress
from asyncmanifold.tasks.task import Task
from asyncmanifold.vectors import Buffers


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

    def submit(self, job: Job, arrival: float) -> None:
        """Do nothing yet."""

    def result(self, job: Job, remaining: int) -> Update:
        """Train the job now."""
        return self._trainer.train(job, self._task.clients[job.client])

    def release(self, job: Job) -> None:
        """Do nothing: there is nothing to give back."""

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


class WorkerDied(RuntimeError):  # noqa: N818 - the name says what happened
    """A worker process that ended without being asked to."""


class ProcessExecutor:
    """Trains jobs ahead of their arrival in worker processes.

    A slot of shared memory holds a job's base model and, once trained, its offsets; the server reads
    them there. Jobs start in the order of their arrival. Each worker has a second job waiting, so that it
    need not wait for the server; one slot stays free for a job that overtakes those already started.
    """

    QUEUE_DEPTH = 2
    SLOTS_PER_WORKER = 3  # jobs end out of order: some wait for their turn while others are trained

    def __init__(self, workshop: Workshop, workers: int, size: int) -> None:
        count = workers * self.SLOTS_PER_WORKER + 1
        self._slots = SharedSlots(count, workshop.embedding.points, size)
        self._free = list(range(count))
        self._waiting: list[tuple[float, int, Job]] = []
        self._running: dict[int, int] = {}  # job number -> slot
        self._done: dict[int, tuple[int, Any]] = {}  # job number -> slot, reply
        self._taken: dict[int, int] = {}  # job number -> slot of a result in use
        self._unwanted: set[int] = set()
        self._load: dict[Connection, int] = {}  # worker -> jobs it has
        self._processes = []
        context = multiprocessing.get_context("spawn")
        try:
            for _ in range(workers):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_work, args=(theirs, workshop, self._slots.address), daemon=True
                )
                with sheltered_from_interrupts():
                    process.start()
                theirs.close()
                self._load[ours] = 0
                self._processes.append(process)
            for connection in self._load:
                _receive(connection)  # it has opened the slots
        except WorkerDied as error:
            raise WorkerDied(_NOT_STARTED) from error
        except (AttributeError, TypeError, PicklingError) as error:
            raise ValueError(f"a task for several workers must be picklable: {error}") from error
        finally:
            self._slots.unlink()

    def submit(self, job: Job, arrival: float) -> None:
        """Queue the job by its arrival."""
        heapq.heappush(self._waiting, (arrival, job.number, job))

    def result(self, job: Job, remaining: int) -> Update:
        """Keep the workers busy until this job is trained."""
        if job.number not in self._running and job.number not in self._done:
            self._start(self._next())  # nothing that is still waiting arrives before it
        while job.number not in self._done:
            self._start_ahead(remaining)
            for connection in wait(list(self._load)):
                assert isinstance(connection, Connection)
                self._finish(connection)
        self._start_ahead(remaining)
        slot, reply = self._done.pop(job.number)
        self._taken[job.number] = slot
        if isinstance(reply, str):
            raise NonFiniteLoss(reply)
        arrays, loss, seconds = reply
        buffers = Buffers(*(torch.from_numpy(array) for array in arrays))
        _, offsets = self._slots[slot]
        return Update(job.client, job.version, offsets, buffers, loss, seconds)

    def release(self, job: Job) -> None:
        """Give the job's slot back, now or when its training ends."""
        if job.number in self._taken:
            self._free.append(self._taken.pop(job.number))
        elif job.number in self._done:
            self._free.append(self._done.pop(job.number)[0])
        else:
            self._unwanted.add(job.number)

    def close(self) -> None:
        """End the workers."""
        for connection in self._load:
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()

    def _start_ahead(self, remaining: int) -> None:
        """Start waiting jobs, as many as there is room for and will be asked for."""
        room = len(self._load) * self.QUEUE_DEPTH
        while (
            len(self._free) > 1
            and len(self._running) < room
            and len(self._running) + len(self._done) < remaining
        ):
            job = self._next()
            if job is None:
                return
            self._start(job)

    def _next(self) -> Job | None:
        while self._waiting:
            job = heapq.heappop(self._waiting)[2]
            if job.number not in self._unwanted:
                return job
            self._unwanted.discard(job.number)
        return None

    def _start(self, job: Job | None) -> None:
        assert job is not None
        slot = self._free.pop()
        theta, _ = self._slots[slot]
        theta.copy_(job.theta)
        connection = min(self._load, key=self._load.__getitem__)
        self._load[connection] += 1
        self._running[job.number] = slot
        buffers = tuple(b.numpy() for b in job.buffers)
        header = (job.number, job.client, job.version, job.point_epochs, job.curve_epochs)
        try:
            connection.send((slot, header, buffers))
        except OSError as error:
            raise WorkerDied(_DIED) from error

    def _finish(self, connection: Connection) -> None:
        number, reply = _receive(connection)
        self._load[connection] -= 1
        slot = self._running.pop(number)
        if number in self._unwanted:
            self._unwanted.discard(number)
            self._free.append(slot)
        else:
            self._done[number] = (slot, reply)


@contextmanager
def sheltered_from_interrupts() -> Iterator[None]:
    """Start processes in this block that Ctrl-C does not reach: it is for the process that started them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_DIED = "a worker process died (out of memory?)"
_NOT_STARTED = (
    "a worker process did not start: a program that uses workers must do its work below "
    "if __name__ == '__main__'"
)


def _receive(connection: Connection) -> Any:
    """Return a worker's next reply; its programming errors are raised here."""
    try:
        reply = connection.recv()
    except (EOFError, OSError) as error:
        raise WorkerDied(_DIED) from error
    if isinstance(reply, _Crash):
        raise RuntimeError(f"training failed in a worker process\n{reply.traceback}")
    return reply


@dataclass(frozen=True)
class _Crash:
    traceback: str


def _work(connection: Connection, workshop: Workshop, address: SlotAddress) -> None:
    """Train jobs in a worker process until the server hangs up."""
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        slots = SharedSlots.open(address)
        trainer = workshop.trainer()
        connection.send("ready")
        while True:
            slot, header, buffers = connection.recv()
            theta, offsets = slots[slot]
            number, client, version, point_epochs, curve_epochs = header
            tensors = Buffers(*(torch.from_numpy(b) for b in buffers))
            job = Job(number, client, version, theta, tensors, point_epochs, curve_epochs)
            reply: Any
            try:
                update = trainer.train(job, workshop.task.clients[client], out=offsets)
                arrays = tuple(b.numpy() for b in update.buffers)
                reply = (arrays, update.loss, update.seconds)
            except NonFiniteLoss as problem:
                reply = str(problem)
            connection.send((number, reply))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception:
        connection.send(_Crash(traceback.format_exc()))
