"""The server's own update on data that it trusts, which gates compare clients' updates with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.client.training import Loss, Trainer, Untrainable
from asyncmanifold.devices import CPU
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.protocol import Job, Rejected, ServerState
from asyncmanifold.tasks.data import Data
from asyncmanifold.tasks.own_data import as_data


@dataclass(frozen=True)
class TrustedExamples:
    """Data that a server on Flower trusts, and the loss to train its model on them.

    Arguments:
        loss: takes outputs and targets, returns a scalar tensor.
        examples: as in ``Task``: (inputs, targets), a ``Dataset``, a ``DataLoader``, ``Data`` …

    >>> import torch
    >>> from asyncmanifold.flower import TrustedExamples
    >>> len(TrustedExamples(torch.nn.functional.cross_entropy, (torch.zeros(8, 4), torch.arange(8))).examples)
    8
    """

    loss: Loss
    examples: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", as_data(self.examples))


class TrustedTrainer:
    """Trains on the trusted data as a client would, from each version at most once.

    An update depends only on the seed and the version's model, so a resumed run and a replay make the same.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        data: Data,
        embedding: Embedding,
        settings: LocalTraining,
        seed: int,
        device: torch.device = CPU,
    ) -> None:
        """Modify ``module`` in place; every version brings its own weights."""
        own_seed = int(derive(seed, Purpose.TRUSTED).integers(2**63))
        self._trainer = Trainer(module, loss, embedding, settings, own_seed, device)
        self._data = data
        self._epochs = (settings.point_epochs, settings.curve_epochs if embedding.is_curve else 0)
        self._made: tuple[int, Tensor] | None = None

    def update(self, state: ServerState) -> Tensor:
        """Return v_s: the end point that is learned from the state's model, minus the model."""
        if self._made is None or self._made[0] != state.version:
            point_epochs, curve_epochs = self._epochs
            job = Job(
                number=state.version,
                client=0,
                version=state.version,
                theta=state.theta,
                statistics=state.statistics,
                point_epochs=point_epochs,
                curve_epochs=curve_epochs,
            )
            try:
                trained = self._trainer.train(job, self._data)
            except Untrainable as problem:
                raise Rejected(f"the server's own update could not be trained: {problem}") from problem
            self._made = state.version, trained.offsets[-1].clone()
        return self._made[1]
