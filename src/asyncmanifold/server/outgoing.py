"""What a client sends: an update as named tensors, after the method's outgoing parts.

The client applies the outgoing parts in their order, for example clipping or compression; the server undoes
what can be undone, in reverse order. Both work alike in the simulator, its workers, Ray and Flower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.protocol import Failure, Job, Rejected, Update
from asyncmanifold.vectors import Statistics

LARGEST_REPORT = 1e12
"""No training has a loss of this size, or takes so many seconds."""
OFFSETS = "offsets"
"""The name of a parcel's tensor that holds the plain offsets."""


@dataclass(frozen=True)
class Parcel:
    """An update as it is sent: named tensors, in any form that the outgoing parts give them.

    Arguments:
        tensors: at first ``offsets``, and the model's ``statistics.floats`` and ``statistics.integers``.
        loss: mean training loss over the job; None if the client keeps it to itself.
        seconds: wall time of the training.

    >>> import torch
    >>> from asyncmanifold import Parcel
    >>> Parcel({"offsets": torch.zeros(2, 100)}).size
    800
    """

    tensors: Mapping[str, Tensor]
    loss: float | None = 0.0
    seconds: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


@dataclass(frozen=True)
class Outgoing:
    """Sends an update unchanged. Subclasses override ``send``, and ``receive`` if the server must undo it.

    Half precision, which halves the bytes sent:

    >>> import torch
    >>> from dataclasses import dataclass, replace
    >>> from asyncmanifold import Outgoing, Parcel
    >>> @dataclass(frozen=True)
    ... class Half(Outgoing):
    ...     def send(self, parcel, random):
    ...         sent = parcel.tensors["offsets"].half()
    ...         return replace(parcel, tensors={**parcel.tensors, "offsets": sent})
    ...     def receive(self, parcel):
    ...         received = parcel.tensors["offsets"].float()
    ...         return replace(parcel, tensors={**parcel.tensors, "offsets": received})
    ...     def outline(self, parcel):
    ...         return self.send(parcel, random=None)  # which works without numbers too
    >>> parcel = Parcel({"offsets": torch.ones(1, 100)})
    >>> parcel.size, Half().send(parcel, random=None).size
    (400, 200)
    """

    keeps_failures_secret: ClassVar[bool] = False
    """Whether a job that could not be trained sends zeros through this part, instead of a failure."""

    def send(self, parcel: Parcel, random: np.random.Generator) -> Parcel:
        """Return what is sent; ``random`` belongs to this part and job. Tensors may be changed in place."""
        return parcel

    def receive(self, parcel: Parcel) -> Parcel:
        """Undo ``send`` as far as possible; any exception raised here rejects the update."""
        return parcel

    def outline(self, parcel: Parcel) -> Parcel | None:
        """Return the form of what ``send`` makes of a parcel of this form: tensors without numbers.

        So the bytes of an upload are known before it is made, and a server knows what to expect. None if the
        form depends on the numbers, or is not stated.
        """
        return None


def check_report(parcel: Parcel, *, is_private: bool = False) -> None:
    """Reject what a client says about its training if no training can have it; a private one has no loss."""
    for name in ("loss", "seconds"):
        value = getattr(parcel, name)
        if is_private and value is None and name == "loss":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST_REPORT:
            raise Rejected(f"{name} is {value!r}, must be a number below {LARGEST_REPORT:g}")
    if parcel.seconds < 0.0:
        raise Rejected(f"seconds are {parcel.seconds!r}, must be at least 0")


def outline_update(
    points: int, theta: Tensor, statistics: Statistics, parts: Sequence[Outgoing]
) -> Parcel | None:
    """Return the form in which updates of a model are sent, without numbers; None if a part does not say.

    >>> import torch
    >>> outline_update(2, torch.zeros(100), Statistics.none(), parts=()).size
    800
    """
    offsets = torch.empty((points, *theta.shape), dtype=theta.dtype, device="meta")
    kept = {name: tensor.to("meta") for name, tensor in statistics.named("statistics").items()}
    parcel: Parcel | None = Parcel({OFFSETS: offsets, **kept})
    for part in parts:
        parcel = None if parcel is None else part.outline(parcel)
    return parcel


def pack_update(update: Update, job: Job, parts: Sequence[Outgoing], seed: int) -> Parcel:
    """Return an update as its client sends it."""
    tensors = {OFFSETS: update.offsets, **update.statistics.named("statistics")}
    parcel = Parcel(tensors, update.loss, update.seconds)
    for place, part in enumerate(parts):
        parcel = part.send(parcel, derive(seed, Purpose.OUTGOING, job.client, job.number, place))
    return parcel


def pack_failure(
    problem: Exception, job: Job, parts: Sequence[Outgoing], seed: int, offsets: Tensor
) -> Parcel | Failure:
    """Return the outcome of a job that could not be trained; ``offsets`` is memory of their size.

    Whether training fails depends on the client's data: a part that keeps this secret sends an update of
    zeros like any other.
    """
    if not any(part.keeps_failures_secret for part in parts):
        return Failure(str(problem))
    return pack_update(Update(job.client, job.version, offsets.zero_()), job, parts, seed)


def unpack_update(parcel: Parcel, job: Job, parts: Sequence[Outgoing]) -> Update:
    """Return the update of a parcel that answers ``job``, or raise ``Rejected``.

    Client and version are taken from the job, so a parcel cannot claim others.
    """
    try:
        for part in reversed(parts):
            parcel = part.receive(parcel)
        offsets = parcel.tensors[OFFSETS]
        statistics = Statistics.from_named("statistics", parcel.tensors)
    except Exception as problem:  # untrusted bytes may raise anything
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise Rejected(f"malformed reply: {reason}") from problem
    return Update(job.client, job.version, offsets, statistics, parcel.loss, parcel.seconds)
