"""Selection: which client is sent the next job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncmanifold.server.stages import Memory, Part


@dataclass(frozen=True)
class Selection(Part):
    """Chooses among the waiting clients, uniformly unless a subclass overrides ``choose``.

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
        """Return the index in ``waiting`` of the client to send a job, and the new memory."""
        return int(random.integers(len(waiting))), memory


@dataclass(frozen=True)
class Uniform(Selection):
    """Chooses every waiting client with the same probability.

    >>> from asyncmanifold import Method, Uniform
    >>> Method().selection == Uniform()
    True
    """


SELECTIONS: dict[str, type[Selection]] = {"uniform": Uniform}
