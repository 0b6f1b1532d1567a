"""Evaluation metrics: accuracy, updates until a target is reached, and fairness over clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor


class Metric(Protocol):
    """A score accumulated over batches; torchmetrics' classes have the same methods."""

    def update(self, outputs: Any, targets: Any) -> None:
        """Add a batch."""
        ...

    def compute(self) -> Any:
        """Return the score over all batches so far."""
        ...


class Accuracy:
    """The share of examples whose largest output is the target class."""

    higher_is_better = True
    plot_upper_bound = 1.0
    """The highest accuracy there is, under torchmetrics' name."""

    def __init__(self) -> None:
        self._right = 0
        self._all = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of class scores (last dimension) and class numbers."""
        outputs = getattr(outputs, "logits", outputs)  # Hugging Face's models return them under this name
        self._right += int((outputs.argmax(dim=-1) == targets).sum())
        self._all += targets.numel()

    def compute(self) -> float:
        """Return the accuracy so far."""
        return self._right / self._all if self._all else 0.0


def gini(scores: Sequence[float]) -> float | None:
    """Return the Gini coefficient 1/(2N²X̄) Σ_i Σ_j |x_i − x_j| (paper, appendix B.4).

    None if it is undefined: no scores, or a mean that is not above 0.

    >>> gini([1.0, 3.0])
    0.25
    """
    values = np.sort(np.asarray(scores, dtype=np.float64))
    if values.size == 0 or values.mean() <= 0.0:
        return None
    ranks = 2.0 * np.arange(1, values.size + 1) - values.size - 1.0
    return float(np.dot(ranks, values) / (values.size**2 * values.mean()))


def theil(scores: Sequence[float]) -> float | None:
    """Return the Theil index 1/(N X̄) Σ_i x_i log(x_i / X̄), with 0 log 0 = 0 (paper, appendix B.4).

    None if it is undefined: no scores, a negative score, or a mean that is not above 0.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.size == 0 or values.mean() <= 0.0 or values.min() < 0.0:
        return None
    ratio = values / values.mean()
    return float(np.mean(ratio * np.log(np.where(ratio > 0.0, ratio, 1.0))))


def reaches(score: float, target: float, *, lower_is_better: bool = False) -> bool:
    """Return whether a score is as good as a target."""
    return score <= target if lower_is_better else score >= target


def first_reaching(
    target: float, scores: Iterable[tuple[float, float]], *, lower_is_better: bool = False
) -> float | None:
    """Return the place of the first (place, score) whose score is as good as ``target``."""
    found = (place for place, score in scores if reaches(score, target, lower_is_better=lower_is_better))
    return next(found, None)
