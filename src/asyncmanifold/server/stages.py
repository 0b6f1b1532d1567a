"""What all stages of the server's step have in common: a part, its memory, and the update it sees.

gates → correction → penalty and staleness → buffer → server optimizer → averaging

A stage is one frozen dataclass with its settings. What it remembers between updates is a *memory*: a
dictionary of tensors, numbers, strings and dictionaries of these, which is stored in the state and in every
checkpoint. A part never changes the memory that it is given; it returns a new one, so that a rejected update
changes nothing. It must copy what it keeps of an update or of the model, because their memory is reused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from asyncmanifold.errors import InputError
from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.spaces import FLAT, Space
from asyncmanifold.server.protocol import UNKNOWN, Situation, Update
from asyncmanifold.vectors import Statistics

Memory = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A stage with settings and, optionally, a memory."""

    tangents: ClassVar[tuple[str, ...]] = ()
    """The entries of the memory that are tangent vectors at the current model, or dictionaries of these. On a
    curved space they are transported whenever the model moves."""

    flat_only: ClassVar[str] = ""
    """Why the part does not run with parameters on manifolds; empty if it does."""

    @property
    def memory_size(self) -> str:
        """What the memory grows to, in words, if it is not the vectors that ``init`` returns."""
        return ""

    def init(self, theta: Tensor) -> Memory:
        """Return the memory before the first update; ``theta`` is the initial model, with P entries."""
        return {}


@dataclass(frozen=True)
class Arrival:
    """The update that is being absorbed, as parts see it."""

    update: Update
    """The update as received."""
    staleness: int
    """Versions since the client's base model."""
    weight: float
    """The client's factor of the step: its share of all examples, or according to the method's weighting."""
    updates: int
    """Updates accepted before this one."""
    theta: Tensor
    """The current model."""
    statistics: Statistics
    """The current model's statistics."""
    measure: Callable[[], Floats] = field(repr=False)
    situation: Situation = UNKNOWN
    """The number of clients, and when the job was sent and came back."""
    target_ratio: float = 1.0
    """γ̄ of the method's adaptive epochs: the ‖d‖/‖v‖ that they aim at; 1 without them."""
    space: Space = FLAT
    """Where the model lives."""
    lift: Callable[[], Tensor] | None = field(default=None, repr=False)
    train_trusted: Callable[[], Tensor] | None = field(default=None, repr=False)

    @property
    def client(self) -> int:
        """The client's number."""
        return self.update.client

    @property
    def clients(self) -> int:
        """n, how many clients the federation has now."""
        return self.situation.clients

    @cached_property
    def statistics_move(self) -> float:
        """How far the client's statistics are from the model's, as a multiple of their size."""
        received, current = self.update.statistics.floats, self.statistics.floats
        if not current.numel():
            return 0.0
        return float(((received - current) / (1.0 + current.abs())).norm())

    @cached_property
    def offsets(self) -> Tensor:
        """The offsets v_1 … v_n as tangent vectors at the current model: in flat space as received."""
        return self.update.offsets if self.lift is None else self.lift()

    @cached_property
    def trusted(self) -> Tensor:
        """The server's own update v_s on its trusted data, from the current model; trained on first use."""
        if self.train_trusted is None:
            raise InputError(
                "a gate compares with the server's own update, and there is none: absorb(trusted=…)"
            )
        return self.train_trusted()

    @cached_property
    def gram(self) -> Floats:
        """All inner products of (v_1 … v_n, d), computed on first use; d is the drift."""
        return self.measure()
