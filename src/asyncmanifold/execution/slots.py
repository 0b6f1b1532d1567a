"""Shared memory of the server and its workers: a few slots, each for one job."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SlotAddress:
    """The file and the shape of the slots, for another process."""

    path: str
    count: int
    points: int
    size: int


class SharedSlots:
    """Slots of shared memory, each for a base model and the offsets from it.

    A file that every process maps into memory: in /dev/shm if there is room, else in the temporary folder.
    Its name is removed as soon as all processes have opened it, so that nothing is left behind. Rows begin at
    multiples of 64 bytes, like torch's own vectors: the order of a sum, and so its last bit, depends on that.
    """

    ALIGN = 16  # floats

    def __init__(self, count: int, points: int, size: int) -> None:
        total = count * self._stride(points, size) * 4
        memory = "/dev/shm"
        fits = os.path.isdir(memory) and shutil.disk_usage(memory).free > 1.1 * total
        handle, path = tempfile.mkstemp(prefix="asyncmanifold-", dir=memory if fits else None)
        os.truncate(handle, total)
        os.close(handle)
        self.address = SlotAddress(path, count, points, size)
        self._map()

    @classmethod
    def open(cls, address: SlotAddress) -> SharedSlots:
        """Return the slots that another process created."""
        slots = cls.__new__(cls)
        slots.address = address
        slots._map()
        return slots

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a slot's base model, (P,), and its offsets, (n, P)."""
        points, size = self.address.points, self.address.size
        slot = self._rows[number]
        start = self._padded(size)
        return slot[:size], slot[start : start + points * size].view(points, size)

    def unlink(self) -> None:
        """Remove the file's name; the memory stays until the last process closes it."""
        os.unlink(self.address.path)

    def _map(self) -> None:
        with open(self.address.path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        stride = self._stride(self.address.points, self.address.size)
        self._rows = torch.frombuffer(memory, dtype=torch.float32).view(-1, stride)

    @classmethod
    def _stride(cls, points: int, size: int) -> int:
        return cls._padded(size) + cls._padded(points * size)

    @classmethod
    def _padded(cls, size: int) -> int:
        return -(-size // cls.ALIGN) * cls.ALIGN
