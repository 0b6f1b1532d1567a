"""Where each batch of the curve phase is trained: the paper's measure 𝐏."""

from __future__ import annotations

import numpy as np

from asyncmanifold.client.controls import Controls
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.geometry.paths import Path, Spot

RENEWED_EVERY = 8
"""Batches after which a path is computed again from the control points learned meanwhile. It takes about as
long as a batch of a small model, and the control points move little in so few."""


class Sampling:
    """Draws the position of each batch, near the path that the control points determine."""

    def __init__(self, embedding: Embedding, controls: Controls) -> None:
        self._embedding, self._controls = embedding, controls
        self._path: Path | None = None

    def begin(self, batches: int) -> None:
        """Start the curve phase of a job, which has so many steps."""
        self._batches, self._drawn = batches, 0

    def draw(self, random: np.random.Generator) -> Spot:
        """Return the next batch's position."""
        if not self._embedding.follows_shape:
            return self._embedding.draw(random)
        if self._path is None or self._drawn % RENEWED_EVERY == 0:
            self._path = self._embedding.path(self._controls.gram(), exactly=False)
        progress = self._drawn / self._batches
        self._drawn += 1
        return self._path.draw(random, progress)
