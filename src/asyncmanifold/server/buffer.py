"""Holding steps back: buffers that move the model once for several updates."""

from __future__ import annotations

from dataclasses import dataclass

from asyncmanifold.errors import InputError


@dataclass(frozen=True)
class Buffer:
    """Move once for every ``buffer_size`` accepted updates (FedBuff)."""

    buffer_size: int = 10

    def __post_init__(self) -> None:
        if self.buffer_size < 1:
            raise InputError(f"Buffer(buffer_size={self.buffer_size}) must be at least 1")

    def full(self, count: int) -> bool:
        """Return whether ``count`` held steps are to be applied now."""
        return count >= self.buffer_size


@dataclass(frozen=True)
class Barrier:
    """Hold every step until all clients of the round are back: synchronous rounds (FedAvg).

    The round's steps are divided by the weights that took part, so a client that drops out leaves a mean.
    """

    def full(self, count: int) -> bool:
        """Return False: only whoever dispatched the round knows that it is complete."""
        return False


BUFFERS: dict[str, type[Buffer] | type[Barrier]] = {"buffer": Buffer, "barrier": Barrier}
