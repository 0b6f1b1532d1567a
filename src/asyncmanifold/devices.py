"""Devices: which one a run uses, how values get there, and how results stay repeatable on it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from asyncmanifold.errors import InputError

CPU = torch.device("cpu")
AUTOMATIC = ("cuda", "mps")
"""What ``auto`` looks for, in this order, before it takes the CPU."""


def find_device(name: str) -> torch.device:
    """Return the device with this name, or refuse it with one line if this machine does not have it.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = next((each for each in AUTOMATIC if _count_devices(each)), "cpu")
    if name == "cpu":
        return CPU
    kind, _, index = name.partition(":")
    count = _count_devices(kind)
    if count == 0 or (index and int(index) >= count):
        there = f"there are {count}, counted from 0" if count else "torch finds none on this machine"
        raise InputError(f"device {name!r} is not available: {there}; 'auto' takes what there is")
    return torch.device(name)


def spread_devices(device: torch.device, workers: int) -> list[torch.device]:
    """Return a device for each worker: in turn, if a kind of device is given without a number."""
    count = _count_devices(device.type)
    if device.index is not None or count < 2:
        return [device] * workers
    return [torch.device(device.type, worker % count) for worker in range(workers)]


def move(value: Any, device: torch.device) -> Any:
    """Return tensors, and dictionaries, lists and tuples of them, on a device; anything else unchanged.

    A copy to CUDA starts from pinned memory and does not block: the processor prepares the next batch
    meanwhile.
    """
    if isinstance(value, Tensor):
        if value.device == device:
            return value
        if device.type == "cuda" and value.device.type == "cpu":
            return value.pin_memory().to(device, non_blocking=True)
        return value.to(device)
    if isinstance(value, MutableMapping):
        moved = copy.copy(value)  # of its own type: Hugging Face's outputs are read by attribute
        for key, entry in value.items():
            moved[key] = move(entry, device)
        return moved
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(entry, device) for entry in value))
    if isinstance(value, list | tuple):
        return type(value)(move(entry, device) for entry in value)
    return value


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Ask for deterministic algorithms within a block, if it works on a device other than the CPU.

    On the CPU one thread is enough. torch warns, once, about an operation that has no such algorithm.
    """
    if device.type == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs; read when CUDA starts
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark


def _count_devices(kind: str) -> int:
    """Return how many devices of a kind torch can use here."""
    if kind == "cpu":
        return 1
    module = getattr(torch, kind, None)
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    if module is None or not hasattr(module, "device_count") or not module.is_available():
        return 0
    return int(module.device_count())
