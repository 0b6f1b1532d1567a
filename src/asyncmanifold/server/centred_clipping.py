"""A gate that shortens an update's distance from what was accepted before, instead of its length."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.gates import Admission, Gate, note_vote, usual_length
from asyncmanifold.server.stages import Arrival, Memory


@dataclass(frozen=True)
class CentredClipping(Gate):
    """v becomes a + min(1, r/‖v − a‖) · (v − a), where a is the running mean of what it has admitted.

    Centred clipping (Karimireddy et al. 2021), one update at a time: a ← m · a + (1 − m) · v' with v' the
    clipped offset, from 0. Every control point of a curve has its own a, and the farthest decides the
    factor, which applies to all of them and to the model's statistics.

    Assumes that most clients are honest and that their updates agree in part. It rejects nothing: a hostile
    update moves the model by a, and by at most r in a direction of its own.

    Arguments:
        clip_radius: r. By default the usual distance, which the clients vote on: the lower median of each
            one's latest, as in ``PeerBound``.
        centre_momentum: m.
        clip_votes: how many clients vote, those heard last.

    >>> from asyncmanifold import CentredClipping, Method, ServerState, Update, absorb
    >>> import torch
    >>> method = Method(gates=(CentredClipping(1.0, centre_momentum=0.5),), weighting="none")
    >>> state = ServerState(torch.zeros(2))
    >>> for offset in ([0.6, 0.8], [0.3, 5.4]):  # a is (0.3, 0.4) at the second
    ...     update = Update(0, state.version, torch.tensor([offset]))
    ...     state, _ = absorb(method, state, update, base=state.theta, weight=1.0)
    ...     print(state.theta)
    tensor([0.6000, 0.8000])
    tensor([0.9000, 2.2000])
    """

    tangents: ClassVar[tuple[str, ...]] = ("centres",)
    clip_radius: float | None = None
    _: KW_ONLY
    centre_momentum: float = 0.9
    clip_votes: int = 256

    def __post_init__(self) -> None:
        check(self, clip_radius="above 0 and finite", centre_momentum="in [0, 1)", clip_votes="at least 1")

    def init(self, theta: Tensor) -> Memory:
        return {"centres": {}, "distances": {}}

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[Admission, Memory]:
        _ = arrival.gram  # what is not finite is rejected here, before it is remembered
        centres, offsets = memory["centres"], arrival.offsets
        centre = (
            torch.stack([centres[k] for k in range(len(offsets))]) if centres else torch.zeros_like(offsets)
        )
        ways = offsets - centre
        distance = max(arrival.space.norm(arrival.theta, way) for way in ways)
        distances = note_vote(memory["distances"], arrival.client, distance, self.clip_votes)
        radius = self.clip_radius or usual_length(distances, distance, arrival)
        factor = radius / distance if distance > radius else 1.0
        moved = torch.add(centre, ways, alpha=factor * (1.0 - self.centre_momentum))
        return Admission(factor, centre), {"centres": dict(enumerate(moved)), "distances": distances}
