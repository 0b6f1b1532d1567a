"""Methods: embedding × correction × penalty (× buffer × optimizer × averaging), one line for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.embeddings import Bezier, Embedding, Point
from asyncmanifold.geometry.surfaces import Disc
from asyncmanifold.privacy.protection import Protection
from asyncmanifold.server.adaptive_optimizers import ServerAMSGrad
from asyncmanifold.server.averaging import AveragedModel, TailAveraging
from asyncmanifold.server.buffer import Barrier, Buffer, StepBuffer
from asyncmanifold.server.caches import CalibratedBuffer, EveryClient, RecentClients
from asyncmanifold.server.codecs import Codec
from asyncmanifold.server.corrections import (
    Correction,
    DelayCompensation,
    OrthoDC,
    Position,
    Tangent,
)
from asyncmanifold.server.delays import DelayAdaptive, DelayLimit, SpeedRescaled
from asyncmanifold.server.gates import Gate, NormBound, StalenessBound
from asyncmanifold.server.named_parts import resolve_parts
from asyncmanifold.server.optimizers import ServerOptimizer
from asyncmanifold.server.outgoing import Outgoing
from asyncmanifold.server.penalties import AdaptiveEpochs, Constant, Distance, Penalty, Staleness
from asyncmanifold.server.protections import find_protection
from asyncmanifold.server.rates import FixedRate, RateSchedule
from asyncmanifold.server.round_table import RoundTable
from asyncmanifold.server.selection import Routed, Selection, Uniform
from asyncmanifold.server.stages import Part
from asyncmanifold.server.step_windows import PortBuffer, SlidingWindow
from asyncmanifold.server.workloads import ArrivalGroups, EpochRule


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
    averaging: AveragedModel | None = None
    adaptive_epochs: EpochRule | None = None
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
        _ = self.all_gates, self.protection  # this checks their limits, and what a private method may be
        if len(codecs := [type(part).__name__ for part in self.outgoing if isinstance(part, Codec)]) > 1:
            raise InputError(f"Method(outgoing=…) has several codecs ({', '.join(codecs)}), must have one")

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

    @cached_property
    def protection(self) -> Protection | None:
        """The part that protects clients' privacy, if there is one; runs with it cannot be repeated."""
        return find_protection(self)

    @property
    def target_ratio(self) -> float:
        """γ̄ of the adaptive epochs, 1 without them."""
        return 1.0 if self.adaptive_epochs is None else self.adaptive_epochs.target_ratio

    def rate(self, version: int) -> float:
        """Return η_g for a step from this version of the model."""
        return self.global_lr * self.rate_schedule.factor(version)

    @property
    def optimizer_takes_rate(self) -> bool:
        """Whether η_g is a factor of the server optimizer's steps, not of those it is given."""
        return self.server_optimizer is not None and self.server_optimizer.takes_rate

    @property
    def cancel_from(self) -> int | None:
        """The staleness at which a running job is stopped and started again, if any."""
        limits = [gate.cancel_from for gate in self.all_gates.values() if gate.cancel_from is not None]
        return min(limits, default=None)

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


STAGES = (
    *("correction", "penalty", "staleness", "buffer", "server_optimizer", "averaging", "adaptive_epochs"),
    "selection",
)
"""The parts that may have a memory, besides gates."""


METHODS: dict[str, Method] = {
    "fedasync": Method(correction=Position()),
    "asyncsgd": Method(correction=Tangent()),
    "fedortho": Method(correction=OrthoDC(1.0)),
    "fedgs": Method(correction=OrthoDC(0.0)),
    "dcasgd": Method(correction=DelayCompensation(2.0)),
    "delay-adaptive": Method(staleness=DelayAdaptive()),
    "rescaled": Method(staleness=SpeedRescaled()),
    "ringmaster": Method(gates=(DelayLimit(),)),
    "generalized-asyncsgd": Method(selection=Routed()),
    "fedbuff": Method(correction=Tangent(), buffer=Buffer(10)),
    "fadas": Method(buffer=Buffer(5), server_optimizer=ServerAMSGrad(), weighting="none", global_lr=0.01),
    "port": Method(buffer=PortBuffer(10)),
    "fedfa": Method(buffer=SlidingWindow(5)),
    "ca2fl": Method(buffer=CalibratedBuffer(), weighting="none"),
    "ace": Method(buffer=EveryClient(), weighting="none"),
    "aced": Method(buffer=RecentClients(), weighting="none"),
    "ringleader": Method(buffer=RoundTable(), weighting="none"),
    "fedcompass": Method(adaptive_epochs=ArrivalGroups()),
    "asyncfeded": Method(penalty=Distance(1.0, warmup=10), adaptive_epochs=AdaptiveEpochs(1.0)),
    "asyncbezier": Method(embedding=Bezier(2), correction=OrthoDC(0.0)),
    "asyncbezier-ed": Method(embedding=Bezier(2), correction=OrthoDC(0.0), penalty=Distance(1.0)),
    "asyncdisc": Method(embedding=Disc(2), correction=OrthoDC(0.0)),
    "orthomean": Method(
        correction=OrthoDC(1.0), penalty=Distance(1.0), averaging=TailAveraging(0.125), global_lr=3.0
    ),
    "fedavg": Method(buffer=Barrier()),
}
"""Every published method by its name, and ``orthomean``, which this library has found."""
COMPARED = (
    *("fedasync", "asyncsgd", "fedortho", "fedgs", "dcasgd", "fedbuff", "asyncfeded"),
    *("asyncbezier", "asyncbezier-ed", "asyncdisc", "orthomean", "fedavg"),
)
"""The methods that a comparison takes by default: the paper's, and ``orthomean``."""


def named_method(method: Method | str) -> tuple[str, Method]:
    """Return a method and its name: the published one that it equals, else ``custom``."""
    if isinstance(method, Method):
        return next((name for name, published in METHODS.items() if published == method), "custom"), method
    if not isinstance(method, str):
        raise InputError(f"a method is a Method or the name of one, not a {type(method).__name__}")
    if method not in METHODS:
        raise InputError(f"unknown method {method!r} (allowed: {', '.join(METHODS)})")
    return method, METHODS[method]
