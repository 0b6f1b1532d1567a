"""Buffers that remember a step of every client, and move the model by a mean over clients.

Their memory grows with the number of clients: n vectors of the model's size. ``cache_precision="bfloat16"``
halves it; the rounded step is then the one that counts. ``cache_place="disk"`` keeps them in files, to the
same bits; on a curved space, where all of them are transported at every move, it brings nothing.

The sum over clients is kept by exchanging one vector at a time, so that an update does not cost n passes.
What rounding leaves in it, a little every time and a lot if a vector was very long, goes when it is formed
anew.

A client that has left is not known to have: what it sent last still counts, and so does the client itself,
also where the federation says that it has fewer now. ``RecentClients`` forgets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.buffer import StepBuffer
from asyncmanifold.server.disk_vectors import on_disk
from asyncmanifold.server.gram import Visit, blocks
from asyncmanifold.server.moves import Move
from asyncmanifold.server.stages import Arrival, Memory

EXCHANGES = 1000
"""After so many exchanges, or ten for each client, a sum is formed anew: a tenth of a pass per update."""


@dataclass(frozen=True)
class ClientCache(StepBuffer):
    """Remembers the latest step of every client."""

    _: KW_ONLY
    cache_precision: Literal["float32", "bfloat16"] = "float32"
    cache_place: Literal["memory", "disk"] = "memory"
    is_mean: ClassVar[bool] = True
    counts_relatively: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, cache_precision="'float32' or 'bfloat16'", cache_place="'memory' or 'disk'")

    @property
    def memory_size(self) -> str:
        """What the cache takes, for n clients and P parameters."""
        precision = "" if self.cache_precision == "float32" else f" in {self.cache_precision}"
        return f"n × P{precision}" + (" on disk" if self.cache_place == "disk" else "")

    def remembered(self, step: Tensor) -> Tensor:
        """Return a step as it is remembered."""
        rounded = step.bfloat16() if self.cache_precision == "bfloat16" else step
        return on_disk(rounded) if self.cache_place == "disk" else rounded

    def exchanged(
        self, total: Tensor, move: Move, old: Tensor | None, *visits: Visit
    ) -> tuple[Tensor, Tensor]:
        """Return a step after ``visits``, as it is remembered, and a sum in which it replaces ``old``."""
        result, exchange = exchanging(total, old)
        if self.cache_precision == "float32" and self.cache_place == "memory":
            return move.vector(*visits, exchange), result
        step = self.remembered(move.vector(*visits))
        for number, block in enumerate(blocks(step)):
            exchange(number, block)
        return step, result

    def renewed(self, memory: Memory) -> Memory:
        """Return the memory after one more exchange, with the sum formed anew when it is time."""
        count = memory["exchanges"] + 1
        if count < max(EXCHANGES, 10 * len(memory["last"])):
            return {**memory, "exchanges": count}
        return {**memory, "exchanges": 0, "total": added(memory["last"].values(), memory["total"])}


@dataclass(frozen=True)
class EveryClient(ClientCache):
    """U_i ← v, u ← (1/n) Σ_j U_j; the model moves by η_g u at every update (ACE, Chang et al. 2025).

    A client that has not sent anything yet counts as 0. Weighted by examples, u is the mean with the clients'
    shares. What a client sent last counts for ever, also if it has left.

    Arguments:
        cache_precision: how steps are remembered, ``"float32"`` or ``"bfloat16"``.
        cache_place: where, in ``"memory"`` or on ``"disk"`` (``TMPDIR``).

    >>> from asyncmanifold import METHODS
    >>> METHODS["ace"].buffer
    EveryClient(cache_precision='float32', cache_place='memory')
    """

    tangents: ClassVar[tuple[str, ...]] = ("total", "last")

    def init(self, theta: Tensor) -> Memory:
        return {"total": torch.zeros_like(theta), "last": {}, "exchanges": 0}

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        last = memory["last"]
        step, total = self.exchanged(memory["total"], move, last.get(arrival.client))
        new = self.renewed({**memory, "total": total, "last": {**last, arrival.client: step}})
        return move.along(new["total"], 1.0 / max(arrival.clients, len(new["last"]))), new


@dataclass(frozen=True)
class RecentClients(ClientCache):
    """As ``EveryClient``, but the mean is over steps no older than ``oldest_step`` (ACED, Chang et al. 2025).

    A step's age is counted in versions since its client's base model. Older ones are forgotten; while there
    is none, the model stays.

    Arguments:
        oldest_step: the greatest age of a step that counts.
        cache_precision: how steps are remembered, ``"float32"`` or ``"bfloat16"``.
        cache_place: where, in ``"memory"`` or on ``"disk"`` (``TMPDIR``).

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
        return {"total": torch.zeros_like(theta), "last": {}, "made_from": {}, "exchanges": 0}

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        total, last, made_from = memory["total"], dict(memory["last"]), dict(memory["made_from"])
        first = arrival.update.version + arrival.staleness - self.oldest_step
        old = [client for client, version in made_from.items() if version < first]
        for client in [*old, *({arrival.client} & made_from.keys() - set(old))]:
            total = total - last.pop(client).to(total.device)
            del made_from[client]
        if arrival.update.version >= first:
            last[arrival.client], total = self.exchanged(total, move, None)
            made_from[arrival.client] = arrival.update.version
        new = self.renewed({**memory, "total": total, "last": last, "made_from": made_from})
        return (move.along(new["total"], 1.0 / len(last)) if last else None), new


@dataclass(frozen=True)
class CalibratedBuffer(ClientCache):
    """Every K updates the model moves by η_g (h̄ + (1/K) Σ (v − h_i)) (CA²FL, Wang et al. 2024).

    h_i is the latest step of client i before this one, 0 at first, and h̄ = (1/n) Σ_j h_j as it was at the
    last move. Weighted by examples, clients count with their shares.

    Arguments:
        calibrated_size: K.
        cache_precision: how steps are remembered, ``"float32"`` or ``"bfloat16"``.
        cache_place: where, in ``"memory"`` or on ``"disk"`` (``TMPDIR``).

    >>> from asyncmanifold import METHODS
    >>> METHODS["ca2fl"].buffer
    CalibratedBuffer(cache_precision='float32', cache_place='memory', calibrated_size=10)
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
            "exchanges": 0,
            "count": 0,
            "staleness": 0,
            "clients": 1,
        }

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        last = memory["last"]
        step, change = self.exchanged(memory["change"], move, last.get(arrival.client))
        held = {
            **memory,
            "change": change,
            "last": {**last, arrival.client: step},
            "count": memory["count"] + 1,
            "staleness": max(memory["staleness"], move.staleness),
            "clients": arrival.clients,
            "exchanges": memory["exchanges"] + 1,
        }
        if held["count"] < self.calibrated_size:
            return None, held
        released = self.release(held)
        assert released is not None
        return move.along(*released).with_staleness(held["staleness"]), self.emptied(held)

    def release(self, memory: Memory) -> tuple[Tensor, float] | None:
        if not memory.get("count"):
            return None
        count, clients = memory["count"], max(memory["clients"], len(memory["last"]))
        return torch.add(memory["change"], memory["total"], alpha=count / clients), 1.0 / count

    def emptied(self, memory: Memory) -> Memory:
        """Return the memory after a move: the sum of all h_j has changed by the change since the last one."""
        change = memory["change"]
        new = {"total": memory["total"] + change, "change": torch.zeros_like(change)}
        return self.renewed({**memory, **new, "count": 0, "staleness": 0})


def added(vectors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Return the sum of vectors, in their order, in the precision of ``like``; the sum is written once."""
    total = torch.empty_like(like)
    pieces = [blocks(vector) for vector in vectors]
    for number, target in enumerate(blocks(total)):
        target.zero_()
        for piece in pieces:
            target += piece[number].to(target.device)  # those on disk are not on a server's device
    return total


def exchanging(total: Tensor, old: Tensor | None) -> tuple[Tensor, Visit]:
    """Return an unformed sum, and what forms it from the blocks of a vector that replaces ``old``.

    >>> total, exchange = exchanging(torch.tensor([5.0]), old=torch.tensor([2.0]))
    >>> exchange(0, torch.tensor([4.0]))
    >>> total
    tensor([7.])
    """
    result = torch.empty_like(total)
    targets, before = blocks(result), blocks(total)
    taken = None if old is None else blocks(old.to(total.device))

    def exchange(number: int, new: Tensor) -> None:
        torch.add(before[number], new.to(total.device), out=targets[number])
        if taken is not None:
            targets[number].sub_(taken[number])

    return result, exchange
