"""When jobs that are out become too late, each by its own deadline."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from math import isfinite

GRACE_SECONDS = 60.0
"""How long after its deadline a job counts as failed even if Flower reports nothing."""
MOST_OLD = 10_000
"""How many deadlines of messages that were answered may be kept."""


class JobDeadlines:
    """The deadlines of messages, soonest first: looking takes no longer with more of them."""

    def __init__(self) -> None:
        self._due: list[tuple[float, str, bool]] = []  # heap of (when, message, whether its grace has begun)

    def expect(self, message_id: str, due: float | None) -> None:
        """Expect the whole reply to a message by ``due``; without one, for ever."""
        if due is not None and isfinite(due):
            heapq.heappush(self._due, (due, message_id, False))

    def pop(self, now: float, out: Collection[str]) -> Iterator[tuple[str, bool]]:
        """Yield each message in ``out`` that is due, at its deadline and again after the grace, and which."""
        if len(self._due) > MOST_OLD + 2 * len(out):  # most have been answered long ago
            self._due = [entry for entry in self._due if entry[1] in out]
            heapq.heapify(self._due)
        while self._due and self._due[0][0] <= now:
            due, message_id, is_over = heapq.heappop(self._due)
            if message_id in out:
                if not is_over:
                    heapq.heappush(self._due, (due + GRACE_SECONDS, message_id, True))
                yield message_id, is_over
