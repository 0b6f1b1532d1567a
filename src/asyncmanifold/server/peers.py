"""Gates that compare an update with those of the other clients, and the names of all gates.

Both assume that most clients are honest, and give every client one vote, however often it sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import median_low
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.centred_clipping import CentredClipping
from asyncmanifold.server.delays import DelayLimit
from asyncmanifold.server.flooding import FloodingThrottle
from asyncmanifold.server.gates import (
    Gate,
    NormBound,
    StalenessBound,
    longest_offset,
    note_vote,
    usual_length,
)
from asyncmanifold.server.protocol import Rejected
from asyncmanifold.server.stages import Arrival, Memory
from asyncmanifold.server.trusted_gates import AflGuard, ZenoPlusPlus

CHANCE = 2.0
"""Random directions of P entries have cosines of 1/√P; this many times that is put down to chance."""


@dataclass(frozen=True)
class PeerBound(Gate):
    """Shortens updates to ``peer_multiple`` times the usual length, which the clients vote on.

    The usual length is the lower median over the clients' latest lengths as received, this update's
    included: every client has one vote, however often it sends, so fewer than half of the clients cannot
    move it. The very first update has no peers, and is compared with the model's own length. Statistics
    such as BatchNorm's have a usual move too, and the shorter of both factors applies to offsets and
    statistics alike.

    Assumes that most clients are honest, and that their updates are of similar length: a client with much
    more data or many more steps than the others is shortened to their measure.

    Arguments:
        peer_multiple: the greatest length, as a multiple of the usual one.
        peer_votes: how many clients vote, those heard last; bounds the cost of an update.

    >>> from asyncmanifold import Method, PeerBound, ServerState, Update, absorb
    >>> import torch
    >>> method = Method(gates=(PeerBound(1.0),), weighting="none")
    >>> state = ServerState(torch.tensor([3.0, 4.0]))
    >>> for client, length in enumerate([1.0, 2.0, 1e9]):
    ...     update = Update(client, state.version, torch.tensor([[length, 0.0]]))
    ...     state, step = absorb(method, state, update, base=state.theta, weight=1.0)
    ...     print(step.step_norm)
    1.0
    1.0
    2.0
    """

    peer_multiple: float = 2.0
    peer_votes: int = 256

    def __post_init__(self) -> None:
        check(self, peer_multiple="above 0 and finite", peer_votes="at least 1")

    def init(self, theta: Tensor) -> Memory:
        return {"lengths": {}, "moves": {}}

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        length, move = longest_offset(arrival), arrival.statistics_move
        lengths = note_vote(memory["lengths"], arrival.client, length, self.peer_votes)
        moves = note_vote(memory["moves"], arrival.client, move, self.peer_votes)
        usual = usual_length(lengths, length, arrival)
        factor = min(
            1.0,
            _ratio(self.peer_multiple * usual, length),
            _ratio(self.peer_multiple * median_low(moves.values()), move),
        )
        return factor, {"lengths": lengths, "moves": moves}


@dataclass(frozen=True)
class PeerDirection(Gate):
    """Rejects updates that point away from those of the other clients.

    The end point's offset is compared with the sum of the other clients' latest ones, each of length 1.
    Honest clients agree in part even if each has its own classes; the reverse of an honest update does not.
    Every client has one vote, whether its update was admitted or not: if only admitted ones had, a few
    hostile clients that happen to come first would decide for good. As long as fewer than
    ``direction_peers`` other clients have been heard, every direction is admitted.

    For a large model only ``direction_entries`` entries are compared, to save time and memory. Which they are
    follows from ``direction_seed``: choose a number that the clients do not know, or one of them could
    behave in these entries alone.

    Arguments:
        least_cosine: the least cosine to the others' sum that is admitted; for a small model 2/√entries less,
            since cosines of random directions are of that size.
        direction_peers: how many other clients are needed for a comparison.
        direction_votes: how many clients vote, those heard last.
        direction_entries: how many entries of the model are compared.
        direction_seed: determines which entries.

    >>> from asyncmanifold import Method, PeerDirection, Rejected, ServerState, Update, absorb
    >>> import torch
    >>> method, state = Method(gates=(PeerDirection(),)), ServerState(torch.zeros(10_000))
    >>> for client in range(3):
    ...     update = Update(client, state.version, torch.ones(1, 10_000))
    ...     state, _ = absorb(method, state, update, base=state.theta, weight=0.25)
    >>> try:
    ...     absorb(method, state, Update(3, 3, -torch.ones(1, 10_000)), base=state.theta, weight=0.25)
    ... except Rejected as problem:
    ...     print(problem)
    points away from the updates of 3 other clients: cosine -1.00 is below -0.12
    """

    decides_only: ClassVar[bool] = True

    least_cosine: float = -0.1
    direction_peers: int = 3
    direction_votes: int = 32
    direction_entries: int = 16_384
    direction_seed: int = 0

    def __post_init__(self) -> None:
        check(self, least_cosine="between -1 and 1", direction_peers="at least 1")
        check(self, direction_votes="at least 2", direction_entries="at least 1", direction_seed="at least 0")

    def init(self, theta: Tensor) -> Memory:
        return {"sum": theta.new_zeros(min(theta.numel(), self.direction_entries)), "votes": {}}

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        offset = arrival.update.offsets[-1]
        if offset.numel() > self.direction_entries:
            offset = offset[_entries(offset.numel(), self.direction_entries, self.direction_seed)]
        length = float(offset.norm())
        if not 0.0 < length < np.inf:  # nothing to compare; what is not finite is rejected later
            return 1.0, memory
        direction, votes = offset / length, dict(memory["votes"])
        own = votes.pop(arrival.client, None)
        others = memory["sum"] if own is None else memory["sum"] - own
        heard, total = len(votes), others + direction
        votes[arrival.client] = direction
        if len(votes) > self.direction_votes:
            total = total - votes.pop(next(iter(votes)))
        kept = {"sum": total, "votes": votes}
        if heard >= self.direction_peers:
            cosine = float(direction @ others) / max(float(others.norm()), 1e-12)
            least = self.least_cosine - CHANCE / sqrt(offset.numel())
            if cosine < least:
                raise Rejected(
                    f"points away from the updates of {heard} other clients: "
                    f"cosine {cosine:.2f} is below {least:.2f}",
                    memory=kept,
                )
        return 1.0, kept


@lru_cache(maxsize=4)
def _entries(size: int, count: int, seed: int) -> Tensor:
    """Return the entries of a model that are compared, in ascending order."""
    random = np.random.default_rng((seed, size, count))
    return torch.from_numpy(np.sort(random.choice(size, count, replace=False)))


def _ratio(bound: float, value: float) -> float:
    return bound / value if value > bound else 1.0


PEER_GATES: tuple[Gate, ...] = (PeerDirection(), PeerBound())
"""What a server needs whose clients are not under its control; on by default on Flower."""
GATES: dict[str, type[Gate]] = {
    "staleness-bound": StalenessBound,
    "norm-bound": NormBound,
    "delay-limit": DelayLimit,
    "peer-bound": PeerBound,
    "peer-direction": PeerDirection,
    "aflguard": AflGuard,
    "zeno++": ZenoPlusPlus,
    "centred-clipping": CentredClipping,
    "flooding-throttle": FloodingThrottle,
}
