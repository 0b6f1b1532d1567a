"""Timing the middle of a run: after the warm-up, before the end, with nothing of imports and set-up."""

from __future__ import annotations

import json
from time import perf_counter
from typing import NamedTuple

from problem import BUFFER_SIZE, Size, read_passes
from processes import cpu_seconds

LONGEST = 5.0
"""Seconds after which a slow system need not go on."""


class Reading(NamedTuple):
    updates: int
    passes: int
    wall: float
    cpu: float


class Meter:
    """Counts the updates that a server absorbs, and reads the clocks before and after those measured."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._updates = 0
        self._first: Reading | None = None
        self._last: Reading | None = None

    @property
    def is_done(self) -> bool:
        return self._last is not None

    def count(self, arrived: int = 1) -> None:
        """Note that so many updates have been absorbed."""
        self._updates += arrived
        if self._first is None:
            if self._updates >= self._size.warm_up:
                self._first = self._read()
        elif self._last is None and self._is_long_enough(self._first):
            self._last = self._read()

    def print(self, **versions: str) -> None:
        """Print the measurement as a line of JSON."""
        if self._first is None or self._last is None:
            raise RuntimeError(f"only {self._updates} updates were absorbed")
        noted = read_passes()[self._first.passes : self._last.passes]
        measured = {
            "updates": self._last.updates - self._first.updates,
            "passes": len(noted),
            "batch_sizes": sorted(set(noted)),
            "wall_seconds": self._last.wall - self._first.wall,
            "cpu_seconds": self._last.cpu - self._first.cpu,
            "versions": versions,
        }
        print(json.dumps(measured), flush=True)

    def _is_long_enough(self, first: Reading) -> bool:
        """Return whether enough was measured: enough updates, or whole statistics in enough time."""
        updates = self._updates - first.updates
        if updates >= self._size.measured:
            return True
        return updates > 0 and updates % BUFFER_SIZE == 0 and perf_counter() - first.wall >= LONGEST

    def _read(self) -> Reading:
        return Reading(self._updates, len(read_passes()), perf_counter(), cpu_seconds())
