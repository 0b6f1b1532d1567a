"""Gates decide which updates are admitted; they are the first stage of the server's step."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from statistics import median_low
from typing import ClassVar

import numpy as np
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.protocol import Rejected
from asyncmanifold.server.stages import Arrival, Memory, Part


@dataclass(frozen=True)
class Admission:
    """How much of an update is admitted, where a factor for its offsets does not say it all.

    Arguments:
        factor: of the offsets: v becomes ``factor`` · v.
        centre: what shortened offsets are drawn to instead of 0, one row per control point: v becomes
            centre + ``factor`` · (v − centre).
        count: of the step, whatever the correction has made of the offsets.

    >>> from asyncmanifold import Admission
    >>> Admission(count=0.5).factor
    1.0
    """

    factor: float = 1.0
    centre: Tensor | None = None
    count: float = 1.0


@dataclass(frozen=True)
class Gate(Part):
    """Admits every update. Subclasses override ``admit``.

    A gate with a memory, which admits three updates per client:

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import Gate, Method, Rejected
    >>> @dataclass(frozen=True)
    ... class ThreeEach(Gate):
    ...     def init(self, theta):
    ...         return {"taken": {}}
    ...     def admit(self, arrival, memory):
    ...         taken = memory["taken"].get(arrival.client, 0)
    ...         if taken == 3:
    ...             raise Rejected(f"client {arrival.client} has had its three")
    ...         return 1.0, {"taken": {**memory["taken"], arrival.client: taken + 1}}
    >>> Method(gates=(ThreeEach(),)).gates
    (ThreeEach(),)
    """

    decides_only: ClassVar[bool] = False
    """Whether it leaves what it admits as it is, and learns from what it rejects too. A replay, which repeats
    admitted updates alone, leaves such a gate out."""
    needs_trusted: ClassVar[bool] = False
    """Whether it compares with the server's own update on trusted data, ``arrival.trusted``."""

    @property
    def cancel_from(self) -> int | None:
        """The staleness at which a running job is stopped and started again, if it can be."""
        return None

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[float | Admission, Memory]:
        """Return the factor for the offsets, usually 1, or an ``Admission``; and the new memory.

        Raises ``Rejected`` for an update that is not admitted. Every gate sees the update as received; what
        they return is applied in their order.
        """
        return 1.0, memory


@dataclass(frozen=True)
class StalenessBound(Gate):
    """Rejects updates from a model that is more than ``max_staleness`` versions old.

    Arguments:
        max_staleness: the greatest staleness that is accepted, at least 0.

    >>> from asyncmanifold import METHODS, StalenessBound
    >>> from dataclasses import replace
    >>> replace(METHODS["asyncsgd"], gates=(StalenessBound(20),)).gates
    (StalenessBound(max_staleness=20),)
    """

    max_staleness: int

    def __post_init__(self) -> None:
        check(self, max_staleness="at least 0")

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        if arrival.staleness > self.max_staleness:
            raise Rejected(f"staleness {arrival.staleness} is above the limit {self.max_staleness}")
        return 1.0, memory


@dataclass(frozen=True)
class NormBound(Gate):
    """Rejects or shortens updates whose longest offset is longer than ``norm_bound``.

    Arguments:
        norm_bound: the greatest length of an offset, above 0.
        clips: shorten the whole update to the bound instead of rejecting it.

    >>> from asyncmanifold import Method, NormBound, ServerState, Update, absorb
    >>> import torch
    >>> clipped = Method(gates=(NormBound(1.0, clips=True),), weighting="none")
    >>> state = ServerState(torch.zeros(2))
    >>> update = Update(client=0, version=0, offsets=torch.tensor([[3.0, 4.0]]))
    >>> absorb(clipped, state, update, base=state.theta, weight=1.0)[0].theta
    tensor([0.6000, 0.8000])
    """

    norm_bound: float
    _: KW_ONLY
    clips: bool = False

    def __post_init__(self) -> None:
        check(self, norm_bound="above 0")

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        longest = longest_offset(arrival)
        if longest <= self.norm_bound:
            return 1.0, memory
        if not self.clips:
            raise Rejected(f"norm {longest:.6g} is above the bound {self.norm_bound:g}")
        return self.norm_bound / longest, memory


def longest_offset(arrival: Arrival) -> float:
    """Return the length of an update's longest offset."""
    return float(np.sqrt(np.clip(np.diag(arrival.gram)[:-1], 0.0, None).max()))


def note_vote(votes: dict[int, float], client: int, value: float, most: int) -> dict[int, float]:
    """Return the votes with a client's new one, in the order in which they were given, at most so many."""
    kept = {voter: vote for voter, vote in votes.items() if voter != client}
    kept[client] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
    return kept


def usual_length(lengths: dict[int, float], length: float, arrival: Arrival) -> float:
    """Return the clients' lower median; the first update is compared with the model's own length."""
    own = float(arrival.theta.norm()) if len(lengths) == 1 else 0.0
    return min(length, own) if own > 0.0 else median_low(lengths.values())
