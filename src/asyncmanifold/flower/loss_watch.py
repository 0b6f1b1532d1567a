"""Notices that the loss grows, and says what to do about it."""

from __future__ import annotations

from collections import deque
from statistics import median

LEAST_LOSSES = 8
GROWN = 2.0
ADVICE = "stop the run and lower global_lr (or local_lr), for example to half"


class LossWatch:
    """Compares the median loss of the last updates with the lowest that such a median has been.

    >>> from asyncmanifold.flower.loss_watch import LossWatch
    >>> watch = LossWatch()
    >>> [watch.notice(loss, nodes=2) is None for loss in [1.0] * 8 + [3.0] * 4]
    [True, True, True, True, True, True, True, True, True, True, True, False]
    """

    def __init__(self) -> None:
        self._losses: deque[float] = deque()
        self._lowest = float("inf")
        self._warned_at = 0.0

    def notice(self, loss: float | None, nodes: int) -> str | None:
        """Take an update's loss; return a warning when it has doubled, and again when it doubles again.

        A loss that the node keeps to itself says nothing.
        """
        if loss is None:
            return None
        window = max(LEAST_LOSSES, 2 * min(nodes, 50))
        self._losses.append(loss)
        while len(self._losses) > window:
            self._losses.popleft()
        if len(self._losses) < window:
            return None
        now = median(self._losses)
        self._lowest = min(self._lowest, now)
        if now <= GROWN * max(self._lowest, self._warned_at, 1e-6):
            return None
        self._warned_at = now
        return f"the loss grows: {now:.4g} in the last {window} updates, it was {self._lowest:.4g}: {ADVICE}"
