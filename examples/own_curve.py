"""Invent an embedding: two straight pieces with a knot, in place of a Bézier curve."""

from dataclasses import dataclass
from typing import Any

from own_correction import make_task

from asyncmanifold import Bezier, Embedding, Method, OrthoDC, Run, simulate


@dataclass(frozen=True)
class Polyline(Embedding):
    """A straight line to a knot, and another one from there to the local model."""

    @property
    def points(self) -> int:
        return 2  # the knot and the local model

    def weights(self, t: float) -> list[float]:
        return [2.0 * t, 0.0] if t <= 0.5 else [2.0 - 2.0 * t, 2.0 * t - 1.0]

    def interior_shares(self) -> list[float]:
        return [0.5]  # the knot starts in the middle of the chord

    def at(self, controls: Any, t: float, geodesic: Any) -> Any:  # for parameters on manifolds
        start, knot, end = controls
        return geodesic(start, knot, 2.0 * t) if t <= 0.5 else geodesic(knot, end, 2.0 * t - 1.0)


if __name__ == "__main__":
    for embedding in (Polyline(), Bezier(2)):
        method = Method(embedding=embedding, correction=OrthoDC(0.0), global_lr=2.0)
        result = simulate(make_task(), method, run=Run(updates=60))
        print(f"{embedding}: accuracy {result.summary['final']:.3f}")
