"""Who is sent the next job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncmanifold.server.stages import Memory, Part


@dataclass(frozen=True)
class Selection(Part):
    """Chooses among the clients that wait for a job; uniformly unless a subclass overrides ``choose``.

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import Method, Selection
    >>> @dataclass(frozen=True)
    ... class Lowest(Selection):
    ...     def choose(self, waiting, random, memory):
    ...         return waiting.index(min(waiting)), memory
    >>> Method(selection=Lowest()).selection.choose([7, 3, 5], random=None, memory={})
    (1, {})
    """

    def choose(
        self, waiting: Sequence[int], random: np.random.Generator, memory: Memory
    ) -> tuple[int, Memory]:
        """Return the place, in ``waiting``, of the client to be sent a job, and the new memory."""
        return int(random.integers(len(waiting))), memory


@dataclass(frozen=True)
class Uniform(Selection):
    """Every client that waits is as likely as any other.

    >>> from asyncmanifold import Method, Uniform
    >>> Method().selection == Uniform()
    True
    """


SELECTIONS: dict[str, type[Selection]] = {"uniform": Uniform}
