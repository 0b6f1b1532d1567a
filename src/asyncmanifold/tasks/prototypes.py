"""Classify digits by class prototypes on a sphere: the nearest direction wins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from asyncmanifold.checks import check
from asyncmanifold.tasks.digits import Digits
from asyncmanifold.tasks.manifolds import make_parameter
from asyncmanifold.tasks.task import Task

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Prototypes(Digits):
    """The digits, partitioned as by ``Digits``, and a prototype for each class.

    On the ``sphere`` prototypes are always unit vectors; in ``flat`` space they are free, and are normalised
    only when they are compared.

    Arguments:
        space: where prototypes live: on the ``"sphere"``, or in ``"flat"`` space.
        dimension: the dimension of prototypes. Other arguments are those of ``Digits``.
    """

    space: Literal["sphere", "flat"] = "sphere"
    dimension: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, space="'sphere' or 'flat'", dimension="at least 2")

    def build(self, seed: int) -> Task:
        """Return the task; the same seed gives the same split."""
        return replace(super().build(seed), model=partial(PrototypeNet, self.dimension, self.space))


class PrototypeNet(nn.Module):
    """A small dense net to unit vectors, scored by the cosine to each prototype."""

    SHARPNESS = 10.0

    def __init__(self, dimension: int, space: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, dimension))
        start = nn.functional.normalize(torch.randn(CLASSES, dimension), dim=1)
        self.prototypes = make_parameter(start, "Sphere" if space == "sphere" else None)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of 8×8 images."""
        directions = nn.functional.normalize(self.body(images), dim=1)
        return self.SHARPNESS * directions @ nn.functional.normalize(self.prototypes, dim=1).T
