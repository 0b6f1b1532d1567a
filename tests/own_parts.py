"""Parts from outside the package. Workers import this file, which therefore leaves Flower alone."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from asyncmanifold import Gate, Outgoing, Penalty, Rejected, Selection, Staleness


@dataclass(frozen=True)
class Noise(Outgoing):
    """Adds noise from the part's own random numbers."""

    noise: float = 0.01

    def send(self, parcel, random):
        offsets = parcel.tensors["offsets"]
        drawn = torch.from_numpy(random.standard_normal(tuple(offsets.shape), dtype=np.float32))
        offsets.add_(drawn, alpha=self.noise)  # in place, which a part may do
        return parcel


@dataclass(frozen=True)
class Bytes(Outgoing):
    """Sends offsets as bytes with one scale."""

    def send(self, parcel, random):
        rest = dict(parcel.tensors)
        offsets = rest.pop("offsets")
        scale = offsets.abs().max().clamp(min=1e-12) / 127.0
        return replace(
            parcel, tensors={**rest, "bytes": (offsets / scale).round().char(), "scale": scale[None]}
        )

    def receive(self, parcel):
        rest = dict(parcel.tensors)
        offsets = rest.pop("bytes").float() * rest.pop("scale")
        return replace(parcel, tensors={**rest, "offsets": offsets})


@dataclass(frozen=True)
class Quota(Gate):
    """Takes ``most`` updates of each client and rejects the rest."""

    most: int = 4

    def init(self, theta):
        return {"taken": {}}

    def admit(self, arrival, memory):
        taken = memory["taken"].get(arrival.client, 0)
        if taken >= self.most:
            raise Rejected(f"client {arrival.client} has had its {self.most}")
        return 1.0, {"taken": {**memory["taken"], arrival.client: taken + 1}}


@dataclass(frozen=True)
class Fading(Staleness):
    """Halves a client's factor with every update of its own."""

    def init(self, theta):
        return {"factors": {}}

    def weigh(self, arrival, memory):
        factor = memory["factors"].get(arrival.client, 1.0)
        return factor, {"factors": {**memory["factors"], arrival.client: 0.5 * factor}}


@dataclass(frozen=True)
class Growing(Penalty):
    """Steps grow with the number of updates, which it counts itself."""

    def init(self, theta):
        return {"count": 0}

    def weigh(self, end_norm, drift_norm, arrival, memory):
        return 0.1 * (1 + memory["count"]), {"count": memory["count"] + 1}


@dataclass(frozen=True)
class RoundRobin(Selection):
    """Sends jobs to clients in the order of their numbers."""

    def init(self, theta):
        return {"last": -1}

    def choose(self, waiting, random, memory):
        order = sorted(
            range(len(waiting)), key=lambda place: (waiting[place] <= memory["last"], waiting[place])
        )
        return order[0], {"last": waiting[order[0]]}


@dataclass(frozen=True)
class Timed(Staleness):
    """Shortens the steps of clients that took long, and the more the more clients there are."""

    def weigh(self, arrival, memory):
        assert arrival.situation.time > arrival.situation.dispatched >= 0.0
        assert arrival.clients > arrival.client
        return 1.0 / (1.0 + arrival.situation.duration + 0.1 * arrival.clients), memory
