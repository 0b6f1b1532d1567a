"""What hostile clients do, as a part of a schedule: what they send, how often, and what they claim."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.seeding import Purpose, derive


@dataclass(frozen=True)
class Attack:
    """Hostile clients, which behave like the others here. Subclasses override what they do.

    Arguments:
        hostile_fraction: the share of all clients that are hostile, at least one of them; which they are
            follows from the run's seed.
        hostile_strength: how strong the attack is.

    >>> from asyncmanifold import SignFlip
    >>> len(SignFlip(0.2).hostile_clients(15, seed=0))
    3
    """

    hostile_fraction: float = 0.2
    hostile_strength: float = 1.0
    flips_labels: ClassVar[bool] = False
    """Whether hostile clients train on wrong labels."""
    needs_honest: ClassVar[bool] = False
    """Whether ``change`` needs the honest clients' updates."""

    def __post_init__(self) -> None:
        check(self, hostile_fraction="between 0 and 1", hostile_strength="above 0 and finite")

    def hostile_clients(self, clients: int, seed: int) -> frozenset[int]:
        """Return which clients are hostile."""
        if self.hostile_fraction == 0.0:
            return frozenset()
        count = max(1, round(self.hostile_fraction * clients))
        return frozenset(derive(seed, Purpose.HOSTILE).choice(clients, count, replace=False).tolist())

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        """Return what is sent instead of the offsets that were trained, in memory of its own.

        ``known`` holds the latest accepted offsets of honest clients, shape (clients, n, P), at most
        ``attacker.KNOWN`` of them; None if there are none, or the attack does not need them.
        """
        return offsets

    @property
    def pace(self) -> float:
        """How many times as fast hostile clients are."""
        return 1.0

    @property
    def boast(self) -> float:
        """How many times their number of examples hostile clients claim."""
        return 1.0


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends −``hostile_strength`` times what was learned.

    >>> import torch
    >>> from asyncmanifold import SignFlip
    >>> SignFlip(hostile_strength=2.0).change(torch.tensor([[1.0, -3.0]]), None, random=None)
    tensor([[-2.,  6.]])
    """

    hostile_strength: float = 4.0

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        return offsets * -self.hostile_strength


@dataclass(frozen=True)
class Scaling(Attack):
    """Sends ``hostile_strength`` times what was learned, so that the model becomes the client's own.

    >>> import torch
    >>> from asyncmanifold import Scaling
    >>> Scaling(hostile_strength=5.0).change(torch.tensor([[1.0, -3.0]]), None, random=None)
    tensor([[  5., -15.]])
    """

    hostile_strength: float = 10.0

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        return offsets * self.hostile_strength


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """Sends random directions, ``hostile_strength`` times as long as what was learned.

    >>> import numpy as np, torch
    >>> from asyncmanifold import GaussianNoise
    >>> noise = GaussianNoise(hostile_strength=2.0)
    >>> sent = noise.change(torch.ones(1, 10_000), None, np.random.default_rng(0))
    >>> round(float(sent.norm()) / 100, 1)
    2.0
    """

    hostile_strength: float = 4.0

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        noise = torch.from_numpy(random.standard_normal(tuple(offsets.shape), dtype=np.float32))
        lengths = offsets.norm(dim=1, keepdim=True)
        sent: Tensor = noise * (lengths * (self.hostile_strength / sqrt(offsets.shape[1])))
        return sent


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Trains on wrong labels, class C − 1 − y for y (1 − y for labels of 0 and 1), and sends that.

    The update is ``hostile_strength`` times what was learned.

    >>> from asyncmanifold import LabelFlip, Schedule
    >>> Schedule(attack=LabelFlip(0.3)).attack.flips_labels
    True
    """

    flips_labels: ClassVar[bool] = True

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        return offsets * self.hostile_strength


@dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """Sends μ − z σ, entry by entry (Baruch et al. 2019); z is ``hostile_strength``.

    μ and σ are the mean and the standard deviation of the honest clients' latest accepted updates, one each:
    an attacker that sees everything the server accepts. Until there are two, it sends what it learned.

    >>> import torch
    >>> from asyncmanifold import ALittleIsEnough
    >>> known = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]])  # μ = (2, 0), σ = (1, 0)
    >>> ALittleIsEnough(hostile_strength=1.5).change(torch.zeros(1, 2), known, random=None)
    tensor([[0.5000, 0.0000]])
    """

    hostile_strength: float = 1.5
    needs_honest: ClassVar[bool] = True

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        if known is None or len(known) < 2:
            return offsets
        return known.mean(0) - self.hostile_strength * known.std(0, correction=0)


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Sends −ε μ, the reverse of the honest clients' mean (Xie et al. 2019); ε is ``hostile_strength``.

    μ is the mean of the honest clients' latest accepted updates, one each. Until there is one, it sends what
    it learned.

    >>> import torch
    >>> from asyncmanifold import InnerProduct
    >>> known = torch.tensor([[[1.0, 0.0]], [[3.0, 2.0]]])
    >>> InnerProduct(hostile_strength=2.0).change(torch.zeros(1, 2), known, random=None)
    tensor([[-4., -2.]])
    """

    hostile_strength: float = 4.0
    needs_honest: ClassVar[bool] = True

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        return offsets if known is None else known.mean(0) * -self.hostile_strength


@dataclass(frozen=True)
class Flooding(Attack):
    """Is ``hostile_strength`` times as fast, and sends the reverse of what was learned, of its honest length.

    >>> from asyncmanifold import Flooding
    >>> Flooding(hostile_strength=10.0).pace
    10.0
    """

    hostile_strength: float = 10.0

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        return -offsets

    @property
    def pace(self) -> float:
        return self.hostile_strength


@dataclass(frozen=True)
class FalseExamples(Attack):
    """Claims ``hostile_strength`` times its number of examples, and sends the reverse of what was learned.

    >>> from asyncmanifold import FalseExamples
    >>> FalseExamples(hostile_strength=100.0).boast
    100.0
    """

    hostile_strength: float = 100.0

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        return -offsets

    @property
    def boast(self) -> float:
        return self.hostile_strength


@dataclass(frozen=True)
class NotANumber(Attack):
    """Sends what was learned with NaN as the end point's first entry.

    >>> import torch
    >>> from asyncmanifold import NotANumber
    >>> NotANumber().change(torch.ones(1, 2), None, random=None)
    tensor([[nan, 1.]])
    """

    def change(self, offsets: Tensor, known: Tensor | None, random: np.random.Generator) -> Tensor:
        sent = offsets.clone()
        sent[-1, 0] = torch.nan
        return sent


ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "scaling": Scaling,
    "gaussian-noise": GaussianNoise,
    "label-flip": LabelFlip,
    "a-little-is-enough": ALittleIsEnough,
    "inner-product": InnerProduct,
    "flooding": Flooding,
    "false-examples": FalseExamples,
    "not-a-number": NotANumber,
}
