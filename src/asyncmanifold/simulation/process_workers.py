"""Workers that are processes of this machine and share memory with the server."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from typing import Any

from asyncmanifold.client.training import NonFiniteLoss
from asyncmanifold.errors import InputError, RunError
from asyncmanifold.server.protocol import Job, Update
from asyncmanifold.simulation.ahead import held_at_most
from asyncmanifold.simulation.executors import Workshop
from asyncmanifold.simulation.slots import SharedSlots, SlotAddress
from asyncmanifold.simulation.training_worker import TrainingWorker, arrays_of, buffers_of, header_of


class ProcessWorkers:
    """Worker processes.

    A slot of shared memory holds a job's base model and, once trained, its offsets; the server reads
    them there.
    """

    def __init__(self, workshop: Workshop, count: int, size: int) -> None:
        self.count = count
        slots = held_at_most(count)
        self._slots = SharedSlots(slots, workshop.embedding.points, size)
        self._free = list(range(slots))
        self._slot_of: dict[int, int] = {}  # job number -> slot
        self._replies: dict[int, Any] = {}  # by job number
        self._load: dict[Connection, int] = {}  # worker -> jobs it has
        self._processes = []
        context = multiprocessing.get_context("spawn")
        try:
            for _ in range(count):
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
        except RunError as error:
            raise RunError(_NOT_STARTED) from error
        except (AttributeError, TypeError, PicklingError) as error:
            raise InputError(f"a task for several workers must be picklable: {error}") from error
        except (OSError, RuntimeError) as error:
            if "Too many open files" in str(error):
                raise InputError(_TOO_MANY_TENSORS) from error
            raise
        finally:
            self._slots.unlink()

    def start(self, job: Job) -> None:
        """Write the job's model to a slot, and tell the worker that has least to do."""
        slot = self._slot_of[job.number] = self._free.pop()
        theta, _ = self._slots[slot]
        theta.copy_(job.theta)
        connection = min(self._load, key=self._load.__getitem__)
        self._load[connection] += 1
        try:
            connection.send((slot, header_of(job), arrays_of(job.buffers)))
        except OSError as error:
            raise RunError(_DIED) from error

    def wait(self) -> Iterator[int]:
        """Take in what the workers have sent."""
        for connection in wait(list(self._load)):
            assert isinstance(connection, Connection)
            number, reply = _receive(connection)
            self._replies[number] = reply
            self._load[connection] -= 1
            yield number

    def update(self, job: Job) -> Update:
        """Return the update in the job's slot."""
        reply = self._replies[job.number]
        if isinstance(reply, str):
            raise NonFiniteLoss(reply)
        buffers, loss, seconds = reply
        _, offsets = self._slots[self._slot_of[job.number]]
        return Update(job.client, job.version, offsets, buffers_of(buffers), loss, seconds)

    def forget(self, number: int) -> None:
        """Give the job's slot back."""
        del self._replies[number]
        self._free.append(self._slot_of.pop(number))

    def close(self) -> None:
        """End the processes."""
        for connection in self._load:
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()


@contextmanager
def sheltered_from_interrupts() -> Iterator[None]:
    """Start processes in this block that Ctrl-C does not reach: it is for the process that started them."""
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
_NOT_STARTED = (
    "a worker process did not start: a program that uses workers must do its work below "
    "if __name__ == '__main__'"
)


def _receive(connection: Connection) -> Any:
    """Return a worker's next reply; its programming errors are raised here."""
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


def _work(connection: Connection, workshop: Workshop, address: SlotAddress) -> None:
    """Train jobs in a worker process until the server hangs up."""
    try:
        slots = SharedSlots.open(address)
        worker = TrainingWorker(workshop)
        connection.send("ready")
        while True:
            slot, header, buffers = connection.recv()
            theta, offsets = slots[slot]
            update = worker.train(header, theta, buffers_of(buffers), out=offsets)
            reply: Any = update
            if isinstance(update, Update):
                reply = (arrays_of(update.buffers), update.loss, update.seconds)
            connection.send((header[0], reply))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception:
        connection.send(_Crash(traceback.format_exc()))
