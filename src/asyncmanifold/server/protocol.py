"""Jobs that are sent, updates that come back, and the server's state.

**An offset is always relative to the version that the client started from**: offset k is free control
point k minus Θ^t. The last row is the local model minus Θ^t. Nothing else in this package is called an
offset. **Staleness** is the number of versions that the model has moved on since: τ − t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from asyncmanifold.vectors import Statistics


@dataclass(frozen=True)
class Job:
    """One unit of local training, complete when it is dispatched, so that it can be trained at any time.

    Arguments:
        number: the dispatch number, unique within a run.
        client: the client's number.
        version: the version t that the client starts from.
        theta: Θ^t; shared, never copied and never written to.
        statistics: the model's state besides parameters, such as BatchNorm's running means.
        point_epochs: epochs at the end point.
        curve_epochs: epochs along the curve after that.

    >>> import torch
    >>> from asyncmanifold import Job
    >>> Job(number=7, client=2, version=5, theta=torch.zeros(3), point_epochs=2).epochs
    2
    """

    number: int
    client: int
    version: int
    theta: Tensor
    statistics: Statistics = field(default_factory=Statistics.none)
    point_epochs: int = 1
    curve_epochs: int = 0

    @property
    def epochs(self) -> int:
        """The total number of epochs."""
        return self.point_epochs + self.curve_epochs

    @property
    def size(self) -> int:
        """Bytes of the model and its statistics, as they are sent."""
        tensors = (self.theta, *self.statistics)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def numbers(self) -> dict[str, int]:
        """Return everything except the model, to send the job to another process."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


@dataclass(frozen=True)
class Update:
    """What a client learned: the free control points of its curve as offsets from Θ^t.

    Arguments:
        client: the client's number.
        version: the version t that the client started from.
        offsets: shape (n, P): free control points minus Θ^t (the paper's v_i^t).
        statistics: the client's model statistics, such as BatchNorm's.
        loss: mean training loss over the job; None if the client keeps it to itself.
        seconds: wall time of the training.

    >>> import torch
    >>> from asyncmanifold import Update
    >>> Update(client=0, version=3, offsets=torch.ones(2, 5)).offsets.shape  # a curve with two free points
    torch.Size([2, 5])
    """

    client: int
    version: int
    offsets: Tensor
    statistics: Statistics = field(default_factory=Statistics.none)
    loss: float | None = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Situation:
    """What the server knows about an arrival that the update itself does not say.

    Arguments:
        clients: n, how many clients the federation has now.
        dispatched: when the job was sent, on the engine's clock.
        time: when its update arrived.

    >>> from asyncmanifold import Situation
    >>> Situation(clients=15, dispatched=2.0, time=3.5).duration
    1.5
    """

    clients: int = 1
    dispatched: float = 0.0
    time: float = 0.0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Situation:
        """Return the situation that the record of an update tells."""
        known = {field.name for field in fields(cls)} & record.keys()
        return cls(**{name: record[name] for name in known})

    @property
    def duration(self) -> float:
        """How long the client took, from dispatch to arrival."""
        return self.time - self.dispatched


UNKNOWN = Situation()
"""The situation of an update that nothing is said about: one client that took no time."""


@dataclass(frozen=True)
class Failure:
    """The outcome of a job without an update, with the reason."""

    reason: str
    is_final: bool = False
    """Whether the client refused the job and will refuse any other: its own privacy budget is spent."""


@dataclass(frozen=True)
class ServerState:
    """Everything that an update may change. Never modified: absorbing an update returns a new state.

    Arguments:
        theta: Θ^τ, the current global model.
        statistics: its statistics, such as BatchNorm's.
        version: τ, how often the model has moved.
        updates: how many updates have been accepted; more than ``version`` if a buffer holds some back.
        memory: the memory of each stage, by its name.

    >>> import torch
    >>> from asyncmanifold import ServerState
    >>> ServerState(torch.zeros(3), version=8).staleness(5)
    3
    """

    theta: Tensor
    statistics: Statistics = field(default_factory=Statistics.none)
    version: int = 0
    updates: int = 0
    memory: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def staleness(self, version: int) -> int:
        """Return τ − t for an update that started from ``version``."""
        return self.version - version

    def returned(self) -> tuple[Tensor, Statistics]:
        """Return the model to deliver: the average if there is one, else the current model."""
        average = self.memory.get("averaging")
        if average is None:
            return self.theta, self.statistics
        return average["theta"], Statistics(average["floats"], average["integers"])


class Rejected(Exception):  # noqa: N818 - an outcome, not an error
    """An update that must not be absorbed; the message says why.

    A rejected update changes nothing, unless the part that rejects it passes a new memory, for example to
    count its refusals. Such a memory may only decide what is rejected: a replay repeats accepted updates
    alone.

    >>> from asyncmanifold import Rejected
    >>> str(Rejected("norm 12 is above the bound 5"))
    'norm 12 is above the bound 5'
    >>> Rejected("the third time", memory={"refusals": {7: 3}}).memory
    {'refusals': {7: 3}}
    """

    def __init__(self, reason: str, *, memory: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.memory = memory
        """The new memory of the part that rejects."""
        self.stage = ""
        """That part's stage, as the step fills it in."""


class Discarded(Rejected):
    """An update that a method does without, such as one that comes too late: no failure of its client.

    >>> from asyncmanifold import Discarded, Rejected
    >>> isinstance(Discarded("staleness 9 has reached the limit 9"), Rejected)
    True
    """
