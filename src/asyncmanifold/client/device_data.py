"""Examples on a device: whole tensors are copied there once while they fit, others batch by batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncmanifold.devices import move
from asyncmanifold.tasks.data import Data, TensorData

ROOM = 1 << 30
"""Bytes for examples on a device that does not say how much memory is free."""
SHARE = 4
"""One part in this many of a GPU's free memory is for examples, by each worker."""


class DeviceExamples:
    """Gives examples in batches on one device.

    Tensors are copied once and stay there as long as they fit, those that clients share only once for all.
    Examples with a ``prepare`` function are prepared on the CPU, where the function's own tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[tuple[int, int], tuple[TensorData, TensorData]] = {}
        self._room = ROOM if device.type != "cuda" else torch.cuda.mem_get_info(device)[0] // SHARE

    def of(self, data: Data) -> Data:
        """Return a client's examples, as they are given, with batches on the device."""
        if self._device.type == "cpu":
            return data
        if not isinstance(data, TensorData) or data.prepare is not None:
            return MovedBatches(data, self._device)
        key = (id(data.inputs), id(data.targets))
        if key not in self._kept:
            size = sum(part.numel() * part.element_size() for part in (data.inputs, data.targets))
            if size > self._room:
                return MovedBatches(data, self._device)
            self._room -= size
            placed = TensorData(*move((data.inputs, data.targets), self._device))
            self._kept[key] = data, placed  # the original too, so that its key stays its own
        return PlacedRows(self._kept[key][1], data.indices)


class MovedBatches:
    """Examples whose batches are copied to a device one by one."""

    def __init__(self, data: Data, device: torch.device) -> None:
        self._data, self._device = data, device

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Tensor) -> tuple[Any, Any]:
        """Return a batch on the device."""
        inputs, targets = move(self._data.batch(indices), self._device)
        return inputs, targets


class PlacedRows:
    """A client's rows of tensors that are on a device; only row numbers are copied for a batch."""

    def __init__(self, placed: TensorData, rows: Tensor | None) -> None:
        self._placed, self._rows = placed, rows

    def __len__(self) -> int:
        return len(self._placed if self._rows is None else self._rows)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch on the device."""
        rows = indices if self._rows is None else self._rows.index_select(0, indices)
        return self._placed.batch(move(rows, self._placed.inputs.device))
