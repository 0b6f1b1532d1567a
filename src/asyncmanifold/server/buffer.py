"""Buffers: whether steps move the model at once, or several together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.moves import Move
from asyncmanifold.server.stages import Arrival, Memory, Part


@dataclass(frozen=True)
class StepBuffer(Part):
    """Decides what moves the model, and when. Subclasses override ``gather``.

    A buffer that uses only every second step:

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import METHODS, StepBuffer
    >>> @dataclass(frozen=True)
    ... class EverySecond(StepBuffer):
    ...     def gather(self, move, arrival, memory):
    ...         count = memory.get("count", 0) + 1
    ...         return (move if count % 2 == 0 else None), {"count": count}
    >>> EverySecond().gather("a step", arrival=None, memory={"count": 1})
    ('a step', {'count': 2})
    """

    waits_for_all: ClassVar[bool] = False
    """Whether the buffer is full when all jobs are back, which only the session knows; see ``release``."""
    holds_back: ClassVar[bool] = False
    """Whether it holds a sum of steps, one vector, before the model moves."""
    is_mean: ClassVar[bool] = False
    """Whether the model moves by a mean of clients' steps, which η_g above 1 may extrapolate; other steps end
    at the client's model at the latest."""
    counts_relatively: ClassVar[bool] = False
    """Whether a client weighted by examples counts relative to the mean client, by n times its share: for
    means over clients."""

    @property
    def share(self) -> float:
        """The factor of a step if clients are not weighted by their examples."""
        return 1.0

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        """Return the step to make now, or None, and the new memory."""
        return move, memory

    def release(self, memory: Memory) -> tuple[Tensor, float] | None:
        """Return the held step and its factor; None if nothing is held."""
        return (memory["step"], 1.0) if "step" in memory else None

    def emptied(self, memory: Memory) -> Memory:
        """Return the memory after the held step was released."""
        return {}


@dataclass(frozen=True)
class Buffer(StepBuffer):
    """Moves once for every ``buffer_size`` accepted updates (FedBuff).

    Arguments:
        buffer_size: how many steps are added up before the model moves, at least 1.

    >>> from asyncmanifold import Buffer, Method
    >>> Method(buffer=Buffer(10), weighting="none").share(0.3)  # a mean over the buffer
    0.1
    """

    buffer_size: int = 10
    holds_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, buffer_size="at least 1")

    @property
    def share(self) -> float:
        return 1.0 / self.buffer_size

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        total, count = add_held_steps(move, memory)
        if count >= self.buffer_size:
            return total, {}
        return None, {"step": total.vector(), "staleness": total.staleness, "count": count}


@dataclass(frozen=True)
class Barrier(StepBuffer):
    """Holds every step until all clients of the round are back: synchronous rounds (FedAvg).

    The round's steps are divided by the sum of the weights that took part, so that the result is a mean even
    if clients drop out.

    >>> from asyncmanifold import METHODS
    >>> METHODS["fedavg"].buffer
    Barrier()
    """

    waits_for_all: ClassVar[bool] = True
    holds_back: ClassVar[bool] = True
    is_mean: ClassVar[bool] = True

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        total, count = add_held_steps(move, memory)
        weight = memory.get("weight", 0.0) + arrival.weight
        return None, {"step": total.vector(), "count": count, "weight": weight}

    def release(self, memory: Memory) -> tuple[Tensor, float] | None:
        if "step" not in memory:
            return None
        return memory["step"], 1.0 / memory["weight"] if memory["weight"] > 0.0 else 1.0


def add_held_steps(move: Move, memory: Memory) -> tuple[Move, int]:
    """Return the sum of a step and those held in ``memory``, and the number of steps in it."""
    return move.after(memory.get("step"), memory.get("staleness", 0)), memory.get("count", 0) + 1
