"""Central privacy: a trusted server adds noise to the sum of a buffer before the model moves by it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asyncmanifold.privacy.noise import add_noise, clip_factor, secret_stream
from asyncmanifold.privacy.protection import Protection
from asyncmanifold.server.buffer import Buffer
from asyncmanifold.server.moves import Move
from asyncmanifold.server.stages import Arrival, Memory


@dataclass(frozen=True)
class PrivateBuffer(Protection, Buffer):
    """Moves by the noised mean of steps of ``buffer_size`` different clients, each clipped to C.

    Steps are clipped after correction, penalty and rate, as if they were made alone; the sum gets
    N(0, σ²C²) in every entry and is divided by ``buffer_size`` (Nguyen et al. 2022, section 4, without its
    sampling rate: arrivals are no random sample). A second step of a client replaces its first, so that one
    client contributes once to a sum. Each sum counts as one release of every client in it. A buffer that is
    not full is never applied.

    The noise follows from a secret of the operating system, which is kept in the run's checkpoints, and from
    the sum: a resumed run repeats it instead of releasing the same sum twice.

    >>> from asyncmanifold import METHODS, PrivateBuffer
    >>> from dataclasses import replace
    >>> buffer = PrivateBuffer(buffer_size=8, clip_norm=0.5, noise_multiplier=2.0, max_epsilon=10.0)
    >>> replace(METHODS["fedbuff"], buffer=buffer, weighting="none").share(0.3)
    0.125
    """

    def __post_init__(self) -> None:
        Protection.__post_init__(self)
        Buffer.__post_init__(self)

    @property
    def least_clients(self) -> int:
        return self.buffer_size

    def init(self, theta: Tensor) -> Memory:
        return {"secret": os.urandom(32).hex(), "steps": {}}

    def gather(self, move: Move, arrival: Arrival, memory: Memory) -> tuple[Move | None, Memory]:
        step = move.vector().mul_(self.buffer_size)
        step.mul_(clip_factor(step, self.clip_norm))
        steps = {**memory["steps"], arrival.client: step}
        staleness = max(move.staleness, memory.get("staleness", 0))
        if len(steps) < self.buffer_size:
            return None, {"secret": memory["secret"], "steps": steps, "staleness": staleness}
        total = torch.stack([steps[client] for client in sorted(steps)]).sum(dim=0)
        sum_only = hashlib.sha256(total.numpy(force=True).tobytes()).digest()  # another sum has other noise
        stream = secret_stream(memory["secret"], sum_only)
        add_noise(total, self.noise_multiplier * self.clip_norm, random_bytes=stream)
        made = move.along(total, scale=1.0 / self.buffer_size)
        return replace(made, staleness=staleness), {"secret": memory["secret"], "steps": {}}

    def contributors(self, memory: Memory) -> list[int]:
        """Return the clients whose steps are held."""
        return list(memory.get("steps", ()))
