"""The scores of a run's evaluations, and the best model among those evaluated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from asyncmanifold.server.protocol import ServerState
from asyncmanifold.vectors import Statistics

COLLAPSE = 0.5
"""A model with less than this share of the best score is ruined."""
LOWER_COLLAPSE = 10.0
"""The same for scores of which less is better: more than this multiple."""


@dataclass(frozen=True)
class BestModel:
    """The best model among those evaluated."""

    score: float
    update: int
    theta: Tensor
    statistics: Statistics


class BestSoFar:
    """Which metric counts, and the best model by it."""

    def __init__(self, names: Sequence[str], lower_is_better: Collection[str]) -> None:
        """The first of ``names`` counts; without any, the first of the first evaluation."""
        self.names = list(names)
        self.lower_is_better = lower_is_better
        self.best: BestModel | None = None

    def include(self, scores: Mapping[str, float | None], state: ServerState) -> None:
        """Keep the model that ``state`` would return if it is the best."""
        self.names = self.names or list(scores)
        score = scores[self.names[0]]
        if score is None or not isfinite(score):
            return
        if self.best is None or self.is_better(score, self.best.score):
            theta, statistics = state.returned()
            self.best = BestModel(score, state.updates, theta.clone(), statistics)

    def is_better(self, score: float, than: float) -> bool:
        """Compare two values of the metric that counts."""
        return score < than if self.names[0] in self.lower_is_better else score > than

    def explain_collapse(self, scores: Mapping[str, float | None], state: ServerState) -> str | None:
        """Return what shows that a model is ruined; None if nothing does."""
        theta, statistics = state.returned()
        if not (torch.isfinite(theta).all() and torch.isfinite(statistics.floats).all()):
            return "the model is not finite"
        name = self.names[0]
        score = scores[name]
        if score is None or not isfinite(score):
            return f"{name} is not finite"
        best = self.best.score if self.best is not None else 0.0
        ratio = LOWER_COLLAPSE if name in self.lower_is_better else COLLAPSE
        if best > 0.0 and self.is_better(best * ratio, score):
            return f"{name} was {best:.4g} and is {score:.4g}"
        return None

    def pack(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {"metrics": self.names, "best": None if self.best is None else vars(self.best)}

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore what ``pack`` returned."""
        best = packed["best"]
        self.names = packed["metrics"]
        if best is not None:
            self.best = BestModel(**{**best, "statistics": Statistics(*best["statistics"])})


def replace_non_finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return the scores with None for those that are not finite, which JSON cannot represent."""
    return {name: value if isfinite(value) else None for name, value in scores.items()}
