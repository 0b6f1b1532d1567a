"""What a worker does, wherever it is: jobs in, updates out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncmanifold.client.training import NonFiniteLoss
from asyncmanifold.server.protocol import Job, Update
from asyncmanifold.simulation.allocator import keep_freed_memory
from asyncmanifold.simulation.executors import Workshop
from asyncmanifold.vectors import Buffers

Array = npt.NDArray[np.generic]
Header = tuple[int, int, int, int, int]


def header_of(job: Job) -> Header:
    """Return the numbers of a job: all but its model."""
    return job.number, job.client, job.version, job.point_epochs, job.curve_epochs


def arrays_of(buffers: Buffers) -> tuple[Array, ...]:
    """Return buffers in a form that goes to another process."""
    return tuple(buffer.numpy() for buffer in buffers)


def buffers_of(arrays: Iterable[Array]) -> Buffers:
    """Return buffers that came from another process."""
    return Buffers(*(torch.from_numpy(array) for array in arrays))


class TrainingWorker:
    """Trains one job after another, in a process that does nothing else."""

    def __init__(self, workshop: Workshop) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._clients = workshop.task.clients
        self._trainer = workshop.trainer()

    def train(
        self, header: Header, theta: Tensor, buffers: Buffers, out: Tensor | None = None
    ) -> Update | str:
        """Return what the client learned, or why its loss is no number; ``out`` is where offsets go."""
        number, client, version, point_epochs, curve_epochs = header
        job = Job(number, client, version, theta, buffers, point_epochs, curve_epochs)
        try:
            return self._trainer.train(job, self._clients[client], out=out)
        except NonFiniteLoss as problem:
            return str(problem)
