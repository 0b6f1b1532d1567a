"""What training off the curve needs of a job: random numbers of its own, and a model that can be moved."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from asyncmanifold.client.controls import Controls
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.protocol import Job


class OffCurve:
    """The part of an embedding's ``Surroundings`` that is the same however a job is trained."""

    _controls: Controls
    _seed: int

    def _enter(self, job: Job) -> None:
        """Start a job."""
        self._job = job
        self._random: np.random.Generator | None = None

    @property
    def random(self) -> np.random.Generator:
        """The job's random generator for leaving the curve, created on first use."""
        if self._random is None:
            self._random = derive(self._seed, Purpose.TUNNEL, self._job.client, self._job.number)
        return self._random

    def shift(self, direction: Tensor, length: float) -> None:
        """Move the model off the curve."""
        self._controls.shift(direction, length)
