"""A plane through three models, a curve from one model to another, and the loss of any model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.geometry.paths import Path, Spot
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks.data import Data
from asyncmanifold.tasks.partitions import draw_subset
from asyncmanifold.tasks.task import Task
from asyncmanifold.vectors import FlatModel, Statistics

BATCH = 512
STRAIGHT = 1e-4
"""If a third point is nearer than this to the line through the other two, in chords, there is no plane."""


@dataclass(frozen=True)
class Plane:
    """A plane with orthogonal axes, measured in chords: its origin is (0, 0), the chord's end (1, 0)."""

    origin: Tensor
    chord: Tensor
    """From the origin to the end."""
    across: Tensor
    """Orthogonal to the chord, and as long."""
    unit: float
    """The chord's length."""

    @classmethod
    def through(cls, origin: Tensor, chord: Tensor, others: Iterable[Tensor]) -> Plane | None:
        """Return the plane through an origin, a chord's end and the first other offset that is off the line.

        That offset lies above the chord. None if no plane is determined.
        """
        unit = _length(chord)
        for other in others if unit > 0.0 else ():
            aside = torch.add(other, chord, alpha=-_dot(other, chord) / unit**2)
            if (height := _length(aside)) > STRAIGHT * unit:
                return cls(origin, chord, aside * (unit / height), unit)
        return None

    def at(self, x: float, y: float) -> Tensor:
        """Return the model at a position."""
        return torch.add(self.origin, self.chord, alpha=x).add_(self.across, alpha=y)

    def place(self, theta: Tensor) -> tuple[float, float, float]:
        """Return the position to which a model is projected, and its distance from the plane, in chords."""
        offset = theta - self.origin
        x, y = (_dot(offset, axis) / self.unit**2 for axis in (self.chord, self.across))
        return x, y, _length(theta - self.at(x, y)) / self.unit


@dataclass(frozen=True)
class LearnedCurve:
    """A learned curve from a model, or the geodesic on a learned surface, and the chord beside it."""

    origin: Tensor
    offsets: Tensor
    embedding: Embedding

    @cached_property
    def path(self) -> Path:
        """The way to the local model: a curve's own, or a surface's geodesic."""
        rows = self.offsets.double()
        return self.embedding.path((rows @ rows.T).numpy())

    def curve(self, t: float) -> Tensor:
        """Return γ(t)."""
        return self.at(self.path.at(t))

    def at(self, spot: Spot) -> Tensor:
        """Return the model at a position of the embedding's domain."""
        theta = self.origin.clone()
        for weight, offset in zip(self.embedding.weights(spot), self.offsets, strict=True):
            theta.add_(offset, alpha=weight)
        return theta

    def chord(self, share: float) -> Tensor:
        """Return the point at this fraction of the chord."""
        return torch.add(self.origin, self.offsets[-1], alpha=share)


Sample = list[tuple[Any, Any, int]]
"""Examples in batches: inputs, targets, count."""


def draw_sample(data: Data, most: int, seed: int) -> Sample:
    """Draw at most ``most`` examples; the seed decides which."""
    chosen = draw_subset(most, np.arange(len(data)), derive(seed, Purpose.LANDSCAPE))
    parts = torch.split(torch.from_numpy(chosen), BATCH)
    return [(*data.batch(indices), len(indices)) for indices in parts]


def sample_size(sample: Sample) -> int:
    """Return the number of examples."""
    return sum(count for _, _, count in sample)


class LossProbe:
    """Computes the task's mean loss of any model, in evaluation mode; calls ``on_loss`` after each."""

    def __init__(self, task: Task, seed: int, on_loss: Callable[[], None]) -> None:
        self._task = task
        self._model = FlatModel(task.build_model(seed))
        self._model.module.eval()
        self._on_loss = on_loss

    @property
    def has_statistics(self) -> bool:
        """Whether the model has more than parameters, such as BatchNorm's statistics."""
        return any(part.numel() for part in self._model.read_statistics())

    def loss(self, theta: Tensor, statistics: Statistics, sample: Sample) -> float | None:
        """Return the mean loss, or None if it is not finite."""
        self._model.load(theta, statistics)
        total = 0.0
        with torch.no_grad():
            for inputs, targets, count in sample:
                total += self._task.loss(self._model.outputs(inputs), targets).item() * count
        self._on_loss()
        mean = total / sample_size(sample)
        return mean if isfinite(mean) else None


def square_around(places: Sequence[tuple[float, float]], margin: float = 0.3) -> tuple[float, float, float]:
    """Return the left edge, the lower edge and the side of a square around positions, with a margin."""
    axes = list(zip(*places, strict=True))
    side = max(max(axis) - min(axis) for axis in axes) * (1.0 + 2.0 * margin)
    left, low = ((min(axis) + max(axis) - side) / 2.0 for axis in axes)
    return left, low, side


def _dot(one: Tensor, other: Tensor) -> float:
    return torch.dot(one.double(), other.double()).item()


def _length(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
