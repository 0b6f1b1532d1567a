"""Settings of a run: its length, evaluations, seed and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from asyncmanifold.checks import check


@dataclass(frozen=True, kw_only=True)
class Run:
    """The length of a run, its evaluations, its seed and its checkpoints.

    Arguments:
        updates: the number of accepted client updates, including those that a buffer holds back.
        evaluate_every: updates between two evaluations.
        target: a score; the first update that reaches it is reported (the paper's T_e: 1 − e).
        seed: the seed of all random numbers of the run.
        checkpoint_seconds: wall time between two checkpoints.

    >>> from asyncmanifold import Run
    >>> Run(updates=50, target=0.9).evaluate_every
    10
    """

    updates: int = 300
    evaluate_every: int = 10
    target: float | None = None
    seed: int = 0
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        check(self, updates="at least 1", evaluate_every="at least 1", seed="at least 0")
        check(self, checkpoint_seconds="at least 0")
