"""A gate against clients that send so often that others are hardly heard."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import ceil

from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.gates import Admission, Gate
from asyncmanifold.server.stages import Arrival, Memory


@dataclass(frozen=True)
class FloodingThrottle(Gate):
    """The c-th repeat of a client, while the others have not been heard, counts 1/q^c of a step.

    A client's repeats are counted from an update that counts in full. The first update after a share
    ``throttle_others`` of the other clients, at least one of them, has been heard since then counts in full
    again. So however often a client sends, it moves the model by less than q/(q − 1) of its steps until
    then.

    Assumes that fewer clients than ``throttle_others`` flood together, and that the others are heard now and
    then. A client that is much faster than most is throttled too, honest or not. It rejects nothing, and says
    nothing about directions: it limits what a flood does, and a gate that rejects must do the rest.

    Arguments:
        throttle_base: q, above 1.
        throttle_others: the share of the other known clients that must be heard.

    >>> from asyncmanifold import FloodingThrottle, Method, ServerState, Update, absorb
    >>> import torch
    >>> method = Method(gates=(FloodingThrottle(2.0),), weighting="none")
    >>> state = ServerState(torch.zeros(1))
    >>> for client in (7, 7, 7, 3, 7):
    ...     update = Update(client, state.version, torch.ones(1, 1))
    ...     state, step = absorb(method, state, update, base=state.theta, weight=1.0)
    ...     print(step.fraction)
    1.0
    0.5
    0.25
    1.0
    1.0
    """

    throttle_base: float = 2.0
    _: KW_ONLY
    throttle_others: float = 0.5

    def __post_init__(self) -> None:
        check(self, throttle_base="above 1 and finite", throttle_others="between 0 and 1")

    def init(self, theta: Tensor) -> Memory:
        return {"heard": {}, "full": {}, "repeats": {}}

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[Admission, Memory]:
        client, now = arrival.client, arrival.updates
        heard: dict[int, int] = memory["heard"]
        since = memory["full"].get(client, -1)
        others = [last for other, last in heard.items() if other != client]
        needed = max(1, ceil(self.throttle_others * len(others)))
        is_repeat = since >= 0 and sum(last > since for last in others) < needed
        repeats = memory["repeats"].get(client, 0) + 1 if is_repeat else 0
        return Admission(count=self.throttle_base**-repeats), {
            "heard": {**heard, client: now},
            "full": {**memory["full"], client: since if is_repeat else now},
            "repeats": {**memory["repeats"], client: repeats},
        }
