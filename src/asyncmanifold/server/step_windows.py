"""Buffers of the last few steps: a sliding window, and Port's weighted mean; and the names of all buffers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.buffer import Barrier, Buffer, StepBuffer, add_held_steps
from asyncmanifold.server.caches import (
    EXCHANGES,
    CalibratedBuffer,
    EveryClient,
    RecentClients,
    added,
    exchanging,
)
from asyncmanifold.server.corrections import cosines
from asyncmanifold.server.moves import Move
from asyncmanifold.server.round_table import RoundTable
from asyncmanifold.server.stages import Arrival, Memory


@dataclass(frozen=True)
class SlidingWindow(StepBuffer):
    """The model moves by the mean of the last K steps, at every update (FedFa, Xu et al. 2024).

    Arguments:
        window: K; until there are so many, the mean is over those that there are.

    >>> from asyncmanifold import METHODS
    >>> METHODS["fedfa"].buffer
    SlidingWindow(window=5)
    """

    window: int = 5
    is_mean: ClassVar[bool] = True
    tangents: ClassVar[tuple[str, ...]] = ("total", "steps")

    def __post_init__(self) -> None:
        check(self, window="at least 1")

    @property
    def memory_size(self) -> str:
        """What the window takes, for P parameters."""
        return f"{self.window} × P"

    def init(self, theta: Tensor) -> Memory:
        return {"total": torch.zeros_like(theta), "steps": {}, "count": 0}

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        place = memory["count"] % self.window
        total, exchange = exchanging(memory["total"], memory["steps"].get(place))
        steps = {**memory["steps"], place: move.vector(exchange)}
        if (memory["count"] + 1) % EXCHANGES == 0:
            total = added(steps.values(), total)
        new = {"total": total, "steps": steps, "count": memory["count"] + 1}
        return move.along(total, 1.0 / len(steps)), new


@dataclass(frozen=True)
class PortBuffer(StepBuffer):
    """Every K updates the model moves by η_g Σ_k p_k v_k / Σ_k p_k (Port, Su and Li 2022).

    p_k = w_k (a (1 + cos(v_k, d_k))/2 + b S/(S + τ_k)), with the drift d_k since the client's base model; the
    cosine counts as 1 if there is none.

    Arguments:
        port_size: K.
        similarity_weight: a.
        freshness_weight: b.
        freshness_scale: S, the staleness at which an update counts half.

    >>> from asyncmanifold import METHODS
    >>> METHODS["port"].buffer
    PortBuffer(port_size=10, similarity_weight=1.0, freshness_weight=1.0, freshness_scale=10)
    """

    port_size: int = 10
    _: KW_ONLY
    similarity_weight: float = 1.0
    freshness_weight: float = 1.0
    freshness_scale: int = 10
    holds_back: ClassVar[bool] = True
    is_mean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, port_size="at least 1", similarity_weight="at least 0 and finite")
        check(self, freshness_weight="above 0 and finite", freshness_scale="at least 1")

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        quality = self.quality(arrival)
        weighted = move.along(move.vector().mul_(quality))
        total, count = add_held_steps(weighted, memory)
        weight = memory.get("weight", 0.0) + arrival.weight * quality
        held = {"step": total.vector(), "staleness": total.staleness, "count": count, "weight": weight}
        if count < self.port_size:
            return None, held
        released = self.release(held)
        assert released is not None
        return total.along(*released), {}

    def quality(self, arrival: Arrival) -> float:
        """Return a (1 + cos)/2 + b S/(S + τ)."""
        similarity = cosines(arrival.gram)[-1] if arrival.gram[-1, -1] > 0.0 else 1.0
        freshness = self.freshness_scale / (self.freshness_scale + arrival.staleness)
        return self.similarity_weight * (1.0 + similarity) / 2.0 + self.freshness_weight * freshness

    def release(self, memory: Memory) -> tuple[Tensor, float] | None:
        if "step" not in memory:
            return None
        return memory["step"], 1.0 / memory["weight"] if memory["weight"] > 0.0 else 1.0


BUFFERS: dict[str, type[StepBuffer]] = {
    "buffer": Buffer,
    "barrier": Barrier,
    "every-client": EveryClient,
    "recent-clients": RecentClients,
    "calibrated": CalibratedBuffer,
    "round-table": RoundTable,
    "window": SlidingWindow,
    "port": PortBuffer,
}
