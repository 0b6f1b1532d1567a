"""Selection: which client is sent the next job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from asyncmanifold.errors import InputError
from asyncmanifold.server.stages import Arrival, Memory, Part


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

    @property
    def needs_choice(self) -> bool:
        """Whether it only works if fewer clients than there are have a job at the same time."""
        return False

    def factor(self, arrival: Arrival) -> float:
        """Return the factor of a client's steps that makes up for how often it is chosen."""
        return 1.0


@dataclass(frozen=True)
class Uniform(Selection):
    """Chooses every waiting client with the same probability.

    >>> from asyncmanifold import Method, Uniform
    >>> Method().selection == Uniform()
    True
    """


@dataclass(frozen=True)
class Routed(Selection):
    """Chooses client i with probability p_i, and scales its steps by 1/(n p_i) (Leconte et al. 2024).

    The probabilities are those among the waiting clients. Steps of clients that are chosen more often are
    shorter, so that all contribute alike. It needs a limit of concurrent jobs: without one every client
    always has a job.

    Arguments:
        routing: a number for each client that p_i is proportional to; further clients have 1.

    >>> from asyncmanifold import Method, Routed
    >>> Method(selection=Routed((2.0, 1.0, 1.0))).selection.relative(0, clients=4)  # n p_i = 4 · 2/5
    1.6
    """

    routing: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "routing", tuple(map(float, self.routing)))
        for number in self.routing:
            if not 0.0 < number < inf:
                raise InputError(f"Routed(routing={self.routing}) must be numbers above 0 and finite")

    @property
    def needs_choice(self) -> bool:
        return any(number != 1.0 for number in self.routing)

    def choose(
        self, waiting: Sequence[int], random: np.random.Generator, memory: Memory
    ) -> tuple[int, Memory]:
        ends = np.cumsum([self._number(client) for client in waiting])
        return int(np.searchsorted(ends, random.random() * ends[-1], side="right")), memory

    def factor(self, arrival: Arrival) -> float:
        """Return 1/(n p_i)."""
        return 1.0 / self.relative(arrival.client, arrival.clients)

    def relative(self, client: int, clients: int) -> float:
        """Return n p_i, how often a client is chosen relative to the mean client."""
        listed = self.routing[:clients]
        return self._number(client) * clients / (sum(listed) + clients - len(listed))

    def _number(self, client: int) -> float:
        return self.routing[client] if client < len(self.routing) else 1.0


def check_choice(selection: Selection, concurrency: int | None) -> None:
    """Refuse a selection that has nothing to choose from, since every client always has a job."""
    if selection.needs_choice and concurrency is None:
        raise InputError(f"{selection} needs a limit of concurrent jobs: set concurrency below the clients")


SELECTIONS: dict[str, type[Selection]] = {"uniform": Uniform, "routed": Routed}
