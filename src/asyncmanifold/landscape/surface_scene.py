"""The loss on a learned surface itself, drawn on its domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.geometry.paths import Spot
from asyncmanifold.geometry.surfaces import Surface
from asyncmanifold.landscape.numbers import Mark, Scene, Stop
from asyncmanifold.landscape.plane import LearnedCurve, square_around

LossOf = Callable[[Tensor], float | None]
"""The loss of a model, or None if it is not finite."""
STEPS = 40
"""The number of segments of the drawn geodesic."""
MARGIN = 0.05
"""The empty border around the domain, as a share of its width."""


@dataclass(frozen=True)
class DomainMap:
    """Positions in a plane domain, moved, turned and scaled so that its start is (0, 0) and its end ω (1,
    0)."""

    surface: Surface

    @classmethod
    def of(cls, embedding: Embedding) -> DomainMap | None:
        """Return the map of a surface on a domain of two dimensions; None for anything else."""
        if isinstance(embedding, Surface) and embedding.surface_dimension == 2:
            return cls(embedding)
        return None

    def place(self, spot: Spot) -> tuple[float, float]:
        """Return where a position of the domain is drawn."""
        along = self._axes[0]
        x, y = self._axes @ (np.array(spot) - self.surface.domain.start) / (along @ along)
        return float(x), float(y)

    def spot(self, x: float, y: float) -> Spot | None:
        """Return the position that is drawn at a place; None outside of the domain."""
        domain = self.surface.domain
        position = domain.start + x * self._axes[0] + y * self._axes[1]
        return tuple(position.tolist()) if domain.depth(position[:, None]) >= -1e-9 else None

    def square(self, grid: int) -> tuple[list[float], list[float]]:
        """Return the coordinates of a square grid around the domain."""
        left, low, side = square_around([(0.0, -0.5), (1.0, 0.5)], MARGIN)  # where disc and square are
        steps = [side * i / (grid - 1) for i in range(grid)]
        return [left + step for step in steps], [low + step for step in steps]

    @property
    def _axes(self) -> Floats:
        along = self.surface.domain.end - self.surface.domain.start
        return np.array([along, [-along[1], along[0]]])


def measure_surface(
    drawn: DomainMap, learned: LearnedCurve, loss: LossOf, *, t: float, data: str, grid: int
) -> Scene:
    """Return the losses on the domain and along both ways across it; ``t`` is where the step ended."""

    def straight(share: float) -> Tensor:
        spot = drawn.spot(share, 0.0)
        return learned.at(drawn.surface.end if spot is None else spot)

    xs, ys = drawn.square(grid)
    spots = [[drawn.spot(x, y) for x in xs] for y in ys]
    ts = [k / STEPS for k in range(STEPS + 1)]
    ends = {"Θ^t": (0.0, learned.origin), "C": (1.0, learned.at(drawn.surface.end))}
    share = drawn.place(learned.path.at(t))[0]
    return Scene(
        view="surface",
        data=data,
        unit=1.0,
        xs=xs,
        ys=ys,
        losses=[[None if spot is None else loss(learned.at(spot)) for spot in row] for row in spots],
        marks=[Mark(name, x, 0.0, 0.0, loss(theta)) for name, (x, theta) in ends.items()],
        curve=[drawn.place(learned.path.at(t)) for t in ts],
        off_plane=0.0,
        ts=ts,
        curve_losses=[loss(learned.curve(t)) for t in ts],
        chord_losses=[loss(straight(t)) for t in ts],
        stop=Stop(t, share, loss(learned.curve(t)), loss(straight(share))),
    )


def count_losses(drawn: DomainMap, grid: int) -> int:
    """Return how many losses ``measure_surface`` takes."""
    xs, ys = drawn.square(grid)
    inside = sum(drawn.spot(x, y) is not None for x in xs for y in ys)
    return inside + 2 * (STEPS + 1) + 4
