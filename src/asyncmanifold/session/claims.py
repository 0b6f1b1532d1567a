"""What clients claim to have: numbers of examples, which no server can check, and the shares that follow
from them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from asyncmanifold.errors import InputError
from asyncmanifold.server.protocol import Rejected

MOST_EXAMPLES = 2**53
"""Whole numbers up to this are exact as floating-point numbers too."""


class Claims:
    """The claims of the clients that are present; none counts for more than ``limit`` times the median claim.

    The median is the lower one over all clients that have made a claim, so fewer than half of the clients
    cannot move it. A client that has not made a claim counts with the mean of the others: otherwise the
    first reply would have all the weight. Claims stay sorted, so that a share takes about the same time for
    any number of clients.
    """

    def __init__(self, limit: float) -> None:
        """Begin with no clients."""
        if not limit >= 1.0:
            raise InputError(f"Claims(limit={limit}) must be at least 1")
        self.limit = limit
        self._known: dict[int, int] = {}  # by client
        self._sorted: list[int] = []
        self._total = 0
        self._silent: set[int] = set()  # clients that are present and have made no claim

    def join(self, client: int, examples: int | None = None) -> None:
        """Count a client as present, with its latest claim, if it has made one."""
        self.leave(client)
        if examples is None:
            self._silent.add(client)
        else:
            self._known[client] = examples
            self._total += examples
            insort(self._sorted, examples)

    def leave(self, client: int) -> None:
        """Count a client as absent."""
        self._silent.discard(client)
        examples = self._known.pop(client, None)
        if examples is not None:
            self._total -= examples
            del self._sorted[bisect_left(self._sorted, examples)]

    def share(self, client: int, examples: int) -> tuple[float, bool]:
        """Return the share of all examples that a claim gives a client, and whether it counts in full.

        The claim itself is not kept: ``join`` does that, once the update is accepted.
        """
        if isinstance(examples, bool) or not isinstance(examples, int) or not 1 <= examples <= MOST_EXAMPLES:
            raise Rejected(f"num-examples is {examples!r}, must be a whole number from 1 to {MOST_EXAMPLES}")
        was_present, before = client in self._silent or client in self._known, self._known.get(client)
        self.join(client, examples)
        told = len(self._sorted)
        most = self.limit * self._sorted[(told - 1) // 2]
        above = self._sorted[bisect_right(self._sorted, most) :]
        mean = (self._total - sum(above) + most * len(above)) / told
        share = min(examples, most) / (mean * (told + len(self._silent)))
        if was_present:
            self.join(client, before)
        else:
            self.leave(client)
        return share, examples <= most
