"""Local privacy: what leaves a client is clipped and noised there, so that nobody else must be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asyncmanifold.privacy.noise import add_noise, clip_factor
from asyncmanifold.privacy.protection import Protection
from asyncmanifold.server.outgoing import OFFSETS, Outgoing, Parcel
from asyncmanifold.server.protocol import Rejected
from asyncmanifold.vectors import Statistics


@dataclass(frozen=True)
class LocalPrivacy(Protection, Outgoing):
    """Clips the whole upload, ‖(v_1 … v_n)‖ ≤ C, and adds N(0, σ²C²) to every entry, at the client.

    Nothing else leaves the client: loss, training time, number of examples and BatchNorm's statistics are
    withheld, and a job that could not be trained sends noise like any other. Every job counts as one release
    of its client. The noise is the operating system's, so that such a run cannot be repeated.

    >>> import torch
    >>> from asyncmanifold import LocalPrivacy, Parcel
    >>> part = LocalPrivacy(clip_norm=0.5, noise_multiplier=8.0, max_releases=20)
    >>> round(part.epsilon(20), 1)
    5.0
    >>> sent = part.send(Parcel({"offsets": torch.ones(2, 100)}, loss=0.3), random=None)
    >>> sent.loss is None, sent.tensors["offsets"].norm() > 10
    (True, tensor(True))
    """

    keeps_failures_secret: ClassVar[bool] = True

    def send(self, parcel: Parcel, random: np.random.Generator) -> Parcel:
        offsets = parcel.tensors[OFFSETS].contiguous()
        factor = clip_factor(offsets, self.clip_norm)
        add_noise(offsets, self.noise_multiplier * self.clip_norm, factor=factor)
        return Parcel({OFFSETS: offsets}, loss=None)

    def receive(self, parcel: Parcel) -> Parcel:
        if set(parcel.tensors) != {OFFSETS}:
            raise Rejected("the update has more than its offsets, which local privacy does not protect")
        return Parcel({**parcel.tensors, **Statistics.none().named("statistics")}, parcel.loss)
