"""How long a run is and what is recorded of it."""

from __future__ import annotations

from dataclasses import dataclass

from asyncmanifold.checks import check


@dataclass(frozen=True, kw_only=True)
class Run:
    """How long a run is and what is recorded of it.

    Arguments:
        updates: accepted client updates, whether or not a buffer holds them back.
        evaluate_every: updates between two evaluations.
        target: the score whose first reaching is reported (the paper's T_e: 1 − e).
        seed: what all random numbers of the run are derived from.
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
