"""Methods: embedding × correction × penalty (× buffer × optimizer × averaging), one line for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.embeddings import Bezier, Embedding, Point
from asyncmanifold.geometry.surfaces import Disc
from asyncmanifold.server.averaging import Averaging
from asyncmanifold.server.buffer import Barrier, Buffer, StepBuffer
from asyncmanifold.server.corrections import (
    Correction,
    DelayCompensation,
    OrthoDC,
    Position,
    Tangent,
)
from asyncmanifold.server.gates import Gate, NormBound, StalenessBound
from asyncmanifold.server.named_parts import resolve_parts
from asyncmanifold.server.optimizers import ServerOptimizer
from asyncmanifold.server.outgoing import Outgoing
from asyncmanifold.server.penalties import AdaptiveEpochs, Constant, Distance, Penalty, Staleness
from asyncmanifold.server.rates import FixedRate, RateSchedule
from asyncmanifold.server.selection import Selection, Uniform
from asyncmanifold.server.stages import Part


@dataclass(frozen=True, kw_only=True)
class Method:
    """An asynchronous method, composed of independent parts; the name of a part stands for its defaults.

    Arguments:
        embedding: what a client learns and sends: a point, a curve to it, or a surface.
        outgoing: what the client does to an update before it is sent, in this order.
        gates: which updates are admitted, in this order.
        correction: what the server does about staleness.
        penalty: scales the step by distance.
        staleness: scales the step by staleness.
        buffer: when steps move the model; at once by default.
        server_optimizer: how the server transforms a step before it takes it.
        averaging: return a mean of late models instead of the last one.
        adaptive_epochs: how many epochs a client's next job has.
        selection: which client is sent the next job.
        global_lr: the paper's η_g.
        rate_schedule: how η_g changes over the run.
        weighting: ``"examples"`` weights a step by the client's share of all examples (the paper); ``"none"``
            weights all alike (FedAsync and FedBuff as published; a buffer then averages over its size).
        max_staleness: short for a gate ``StalenessBound(max_staleness)``.
        norm_bound: short for a gate ``NormBound(norm_bound, clips=norm_clips)``.
        norm_clips: whether ``norm_bound`` shortens an update that is too long instead of rejecting it.

    >>> from asyncmanifold import Bezier, Method, OrthoDC, Polynomial
    >>> mine = Method(embedding=Bezier(3), correction=OrthoDC(0.5), staleness=Polynomial(0.5), global_lr=2.0)
    >>> mine.embedding.points
    3
    """

    embedding: Embedding = Point()
    outgoing: tuple[Outgoing, ...] = ()
    gates: tuple[Gate, ...] = ()
    correction: Correction = Tangent()
    penalty: Penalty = Distance(decay=0.0)
    staleness: Staleness = Constant()
    buffer: StepBuffer | None = None
    server_optimizer: ServerOptimizer | None = None
    averaging: Averaging | None = None
    adaptive_epochs: AdaptiveEpochs | None = None
    selection: Selection = Uniform()
    global_lr: float = 1.0
    rate_schedule: RateSchedule = FixedRate()
    weighting: Literal["examples", "none"] = "examples"
    max_staleness: int | None = None
    norm_bound: float | None = None
    norm_clips: bool = False

    def __post_init__(self) -> None:
        resolve_parts(self)
        check(self, global_lr="above 0 and finite", weighting="'examples' or 'none'")
        _ = self.all_gates  # this checks their limits

    @cached_property
    def all_gates(self) -> dict[str, Gate]:
        """The gates by their stage's name: those of ``max_staleness`` and ``norm_bound`` first.

        Their class is in the name, so that each finds its memory when others are added or removed.
        """
        limits: list[Gate] = []
        if self.max_staleness is not None:
            limits.append(StalenessBound(self.max_staleness))
        if self.norm_bound is not None:
            limits.append(NormBound(self.norm_bound, clips=self.norm_clips))
        named: dict[str, Gate] = {}
        for gate in (*limits, *self.gates):
            name = f"gates.{type(gate).__name__}"
            named[name if name not in named else f"{name}.{len(named)}"] = gate
        return named

    @cached_property
    def stages(self) -> dict[str, Part]:
        """Every part that may have a memory, by its stage's name."""
        parts = {name: getattr(self, name) for name in STAGES}
        return {**self.all_gates, **{name: part for name, part in parts.items() if part is not None}}

    @property
    def target_ratio(self) -> float:
        """γ̄ of the adaptive epochs, 1 without them."""
        return 1.0 if self.adaptive_epochs is None else self.adaptive_epochs.target_ratio

    @property
    def needs_trusted(self) -> bool:
        """Whether a gate compares updates with the server's own on trusted data."""
        return any(gate.needs_trusted for gate in self.all_gates.values())

    @property
    def synchronous(self) -> bool:
        """Whether clients wait for each other."""
        return self.buffer is not None and self.buffer.waits_for_all

    def share(self, weight: float) -> float:
        """Return the factor of the step for a client of this weight."""
        if self.weighting == "examples":
            return weight
        return 1.0 if self.buffer is None else self.buffer.share


STAGES = ("correction", "penalty", "staleness", "buffer", "server_optimizer", "averaging", "selection")


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
    "asyncdisc": Method(embedding=Disc(2), correction=OrthoDC(0.0)),
    "fedavg": Method(buffer=Barrier()),
}
"""Every published method by its name."""


def named_method(method: Method | str) -> tuple[str, Method]:
    """Return a method and its name: the published one that it equals, else ``custom``."""
    if isinstance(method, Method):
        return next((name for name, published in METHODS.items() if published == method), "custom"), method
    if method not in METHODS:
        raise InputError(f"unknown method {method!r} (allowed: {', '.join(METHODS)})")
    return method, METHODS[method]
