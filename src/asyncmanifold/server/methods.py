"""Methods: embedding × correction × penalty (× buffer × averaging), every published one a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncmanifold.errors import InputError
from asyncmanifold.geometry.embeddings import Bezier, Embedding, Point
from asyncmanifold.server.averaging import Averaging
from asyncmanifold.server.buffer import Barrier, Buffer
from asyncmanifold.server.corrections import (
    Correction,
    DelayCompensation,
    OrthoDC,
    Position,
    Tangent,
)
from asyncmanifold.server.penalties import AdaptiveEpochs, Constant, Distance, Penalty, Staleness


@dataclass(frozen=True, kw_only=True)
class Method:
    """An asynchronous method, put together from independent parts."""

    embedding: Embedding = Point()
    correction: Correction = Tangent()
    penalty: Penalty = Distance(decay=0.0)
    staleness: Staleness = Constant()
    buffer: Buffer | Barrier | None = None
    adaptive_epochs: AdaptiveEpochs | None = None
    averaging: Averaging | None = None
    global_lr: float = 1.0
    """The paper's η_g."""
    weighting: Literal["examples", "none"] = "examples"
    """Step by a client's share of all examples (the paper), or the same for all (FedAsync and FedBuff as
    published; a buffer then averages over its size)."""
    max_staleness: int | None = None
    """Updates staler than this are rejected."""
    norm_bound: float | None = None
    """Updates with a longer offset are rejected."""

    def __post_init__(self) -> None:
        if not 0.0 < self.global_lr < float("inf"):
            raise InputError(f"Method(global_lr={self.global_lr}) must be above 0 and finite")
        if self.weighting not in ("examples", "none"):
            raise InputError(f"Method(weighting={self.weighting!r}) must be 'examples' or 'none'")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise InputError(f"Method(max_staleness={self.max_staleness}) must be at least 0")
        if self.norm_bound is not None and not self.norm_bound > 0.0:
            raise InputError(f"Method(norm_bound={self.norm_bound}) must be above 0")

    @property
    def synchronous(self) -> bool:
        """Whether clients wait for each other."""
        return isinstance(self.buffer, Barrier)

    def share(self, weight: float) -> float:
        """Return the factor of the step that stands for the client's weight."""
        if self.weighting == "examples":
            return weight
        return 1.0 / self.buffer.buffer_size if isinstance(self.buffer, Buffer) else 1.0


METHODS: dict[str, Method] = {
    "fedasync": Method(correction=Position()),
    "asyncsgd": Method(correction=Tangent()),
    "fedortho": Method(correction=OrthoDC(1.0)),
    "fedgs": Method(correction=OrthoDC(0.0)),
    "dcasgd": Method(correction=DelayCompensation(2.0)),
    "fedbuff": Method(correction=Tangent(), buffer=Buffer(10)),
    "asyncfeded": Method(penalty=Distance(1.0, warmup=10), adaptive_epochs=AdaptiveEpochs(1.0)),
    "asyncbezier": Method(embedding=Bezier(2), correction=OrthoDC(0.0)),
    "asyncbezier-ed": Method(embedding=Bezier(2), correction=OrthoDC(0.0), penalty=Distance(1.0)),
    "fedavg": Method(buffer=Barrier()),
}
