"""Buffers that remember a step of every client, and move the model by a mean over clients.

Their memory grows with the number of clients: n vectors of the model's size. ``cache_precision="bfloat16"``
halves it; the rounded step is then the one that counts.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.buffer import StepBuffer
from asyncmanifold.server.gram import blocks
from asyncmanifold.server.moves import Move
from asyncmanifold.server.stages import Arrival, Memory


@dataclass(frozen=True)
class ClientCache(StepBuffer):
    """Remembers the latest step of every client."""

    _: KW_ONLY
    cache_precision: Literal["float32", "bfloat16"] = "float32"
    is_mean: ClassVar[bool] = True
    counts_relatively: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, cache_precision="'float32' or 'bfloat16'")

    @property
    def memory_size(self) -> str:
        """What the cache takes, for n clients and P parameters."""
        return "n × P" if self.cache_precision == "float32" else f"n × P in {self.cache_precision}"

    def rounded(self, step: Tensor) -> Tensor:
        """Return a step as it is remembered."""
        return step.bfloat16() if self.cache_precision == "bfloat16" else step


@dataclass(frozen=True)
class EveryClient(ClientCache):
    """U_i ← v, u ← (1/n) Σ_j U_j; the model moves by η_g u at every update (ACE, Chang et al. 2025).

    A client that has not sent anything yet counts as 0. Weighted by examples, u is the mean with the clients'
    shares.

    Arguments:
        cache_precision: how steps are remembered, ``"float32"`` or ``"bfloat16"``.

    >>> from asyncmanifold import METHODS
    >>> METHODS["ace"].buffer
    EveryClient(cache_precision='float32')
    """

    tangents: ClassVar[tuple[str, ...]] = ("total", "last")

    def init(self, theta: Tensor) -> Memory:
        return {"total": torch.zeros_like(theta), "last": {}}

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        step, last = self.rounded(move.vector()), memory["last"]
        total = exchanged(memory["total"], step, last.get(arrival.client))
        return move.along(total, 1.0 / arrival.clients), {
            "total": total,
            "last": {**last, arrival.client: step},
        }


@dataclass(frozen=True)
class RecentClients(ClientCache):
    """As ``EveryClient``, but the mean is over steps no older than ``oldest_step`` (ACED, Chang et al. 2025).

    A step's age is counted in versions since its client's base model. Older ones are forgotten; while there
    is none, the model stays.

    Arguments:
        oldest_step: the greatest age of a step that counts.
        cache_precision: how steps are remembered, ``"float32"`` or ``"bfloat16"``.

    >>> from asyncmanifold import METHODS
    >>> METHODS["aced"].buffer.oldest_step
    50
    """

    oldest_step: int = 50
    tangents: ClassVar[tuple[str, ...]] = ("total", "last")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, oldest_step="at least 0")

    def init(self, theta: Tensor) -> Memory:
        return {"total": torch.zeros_like(theta), "last": {}, "made_from": {}}

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        total, last, made_from = memory["total"], dict(memory["last"]), dict(memory["made_from"])
        first = arrival.update.version + arrival.staleness - self.oldest_step
        old = [client for client, version in made_from.items() if version < first]
        for client in [*old, *({arrival.client} & made_from.keys() - set(old))]:
            total = exchanged(total, None, last.pop(client))
            del made_from[client]
        if arrival.update.version >= first:
            last[arrival.client], made_from[arrival.client] = (
                self.rounded(move.vector()),
                arrival.update.version,
            )
            total = exchanged(total, last[arrival.client], None)
        new = {"total": total, "last": last, "made_from": made_from}
        return (move.along(total, 1.0 / len(last)) if last else None), new


@dataclass(frozen=True)
class CalibratedBuffer(ClientCache):
    """Every K updates the model moves by η_g (h̄ + (1/K) Σ (v − h_i)) (CA²FL, Wang et al. 2024).

    h_i is the latest step of client i before this one, 0 at first, and h̄ = (1/n) Σ_j h_j as it was at the
    last move. Weighted by examples, clients count with their shares.

    Arguments:
        calibrated_size: K.
        cache_precision: how steps are remembered, ``"float32"`` or ``"bfloat16"``.

    >>> from asyncmanifold import METHODS
    >>> METHODS["ca2fl"].buffer
    CalibratedBuffer(cache_precision='float32', calibrated_size=10)
    """

    calibrated_size: int = 10
    tangents: ClassVar[tuple[str, ...]] = ("total", "change", "last")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, calibrated_size="at least 1")

    def init(self, theta: Tensor) -> Memory:
        return {
            "total": torch.zeros_like(theta),
            "change": torch.zeros_like(theta),
            "last": {},
            "count": 0,
            "staleness": 0,
            "clients": 1,
        }

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        step, last = self.rounded(move.vector()), memory["last"]
        held = {
            **memory,
            "change": exchanged(memory["change"], step, last.get(arrival.client)),
            "last": {**last, arrival.client: step},
            "count": memory["count"] + 1,
            "staleness": max(memory["staleness"], move.staleness),
            "clients": arrival.clients,
        }
        if held["count"] < self.calibrated_size:
            return None, held
        released = self.release(held)
        assert released is not None
        return move.along(*released).with_staleness(held["staleness"]), self.emptied(held)

    def release(self, memory: Memory) -> tuple[Tensor, float] | None:
        if not memory.get("count"):
            return None
        count = memory["count"]
        return torch.add(memory["change"], memory["total"], alpha=count / memory["clients"]), 1.0 / count

    def emptied(self, memory: Memory) -> Memory:
        """Return the memory after a move: the sum of all h_j has changed by the change since the last one."""
        change = memory["change"]
        new = {"total": memory["total"] + change, "change": torch.zeros_like(change)}
        return {**memory, **new, "count": 0, "staleness": 0}


def exchanged(total: Tensor, new: Tensor | None, old: Tensor | None) -> Tensor:
    """Return a sum in which one vector is replaced by another; None stands for nothing."""
    result = torch.empty_like(total)
    vectors = [(vector, sign) for vector, sign in ((new, 1.0), (old, -1.0)) if vector is not None]
    pieces = [blocks(vector) for vector, _ in vectors]
    for number, (target, before) in enumerate(zip(blocks(result), blocks(total), strict=True)):
        source = before
        for (_, sign), piece in zip(vectors, pieces, strict=True):
            source = torch.add(source, piece[number], alpha=sign, out=target)
        if source is before:
            target.copy_(before)
    return result
