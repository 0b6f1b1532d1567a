"""What goes out, what comes back, and what the server keeps.

**An offset is always relative to the version that the client started from**: offset k is free control
point k minus Θ^t. The last row is the local model minus Θ^t. Nothing else in this package is called an
offset. **Staleness** is the number of versions that the model has moved on since: τ − t.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from asyncmanifold.vectors import Buffers


@dataclass(frozen=True)
class Job:
    """One piece of local training; complete when it is dispatched, so that it can run at any time.

    ``theta`` is shared, never copied and never written to.
    """

    number: int
    """The dispatch number, unique within a run."""
    client: int
    version: int
    """The version t that the client starts from."""
    theta: Tensor
    """Θ^t."""
    buffers: Buffers
    point_epochs: int
    curve_epochs: int


@dataclass(frozen=True)
class Update:
    """What a client returns: the free control points of its curve as offsets from Θ^t."""

    client: int
    version: int
    """The version t that the client started from."""
    offsets: Tensor
    """Shape (n, P): free control points minus Θ^t (the paper's v_i^t)."""
    buffers: Buffers
    loss: float = 0.0
    """Mean training loss over the job."""
    seconds: float = 0.0
    """Wall time of the training."""


@dataclass(frozen=True)
class Pending:
    """Steps that a buffer holds back until it is full."""

    step: Tensor
    """Sum of the steps."""
    count: int
    weight: float
    """Sum of the clients' weights."""
    fraction: float
    """Sum of the step fractions."""
    buffers: Buffers
    """Floating-point buffers summed with the step fractions; the last client's whole numbers."""


@dataclass(frozen=True)
class Average:
    """The running mean of late models (stochastic weight averaging)."""

    theta: Tensor
    buffers: Buffers
    count: int
    points: Tensor | None = None
    """What a mean on manifolds or along a curve must know of every averaged model, a row each."""


@dataclass(frozen=True)
class ServerState:
    """Everything that an update may change. Never modified: an update returns a new one."""

    theta: Tensor
    """Θ^τ, the global model now."""
    buffers: Buffers = field(default_factory=Buffers.none)
    version: int = 0
    """τ: how often the model has moved."""
    updates: int = 0
    """How many updates have been accepted; ahead of ``version`` where a buffer holds some back."""
    memory: Tensor | None = None
    """What the correction remembers, such as a running mean square."""
    pending: Pending | None = None
    average: Average | None = None

    def staleness(self, version: int) -> int:
        """Return τ − t for an update that started from ``version``."""
        return self.version - version

    def returned(self) -> tuple[Tensor, Buffers]:
        """Return the model to hand out: the average where there is one, else the current model."""
        if self.average is not None:
            return self.average.theta, self.average.buffers
        return self.theta, self.buffers


class Rejected(Exception):  # noqa: N818 - an outcome, not an error
    """An update that must not be absorbed, with the reason."""


def state_to_file(state: ServerState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a state as named tensors and plain numbers, for a checkpoint."""
    tensors = {"theta": state.theta, **state.buffers.named("buffers")}
    numbers: dict[str, Any] = {"version": state.version, "updates": state.updates}
    if state.memory is not None:
        tensors["memory"] = state.memory
    if (pending := state.pending) is not None:
        tensors |= {"pending.step": pending.step, **pending.buffers.named("pending.buffers")}
        numbers["pending"] = [pending.count, pending.weight, pending.fraction]
    if (average := state.average) is not None:
        tensors |= {"average.theta": average.theta, **average.buffers.named("average.buffers")}
        numbers["average"] = average.count
        if average.points is not None:
            tensors["average.points"] = average.points
    return tensors, numbers


def state_from_file(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> ServerState:
    """Return the state that ``state_to_file`` described."""
    pending = average = None
    if "pending" in numbers:
        count, weight, fraction = numbers["pending"]
        buffers = Buffers.from_named("pending.buffers", tensors)
        pending = Pending(tensors["pending.step"], count, weight, fraction, buffers)
    if "average" in numbers:
        buffers = Buffers.from_named("average.buffers", tensors)
        points = tensors.get("average.points")
        average = Average(tensors["average.theta"], buffers, numbers["average"], points)
    return ServerState(
        theta=tensors["theta"],
        buffers=Buffers.from_named("buffers", tensors),
        version=numbers["version"],
        updates=numbers["updates"],
        memory=tensors.get("memory"),
        pending=pending,
        average=average,
    )
