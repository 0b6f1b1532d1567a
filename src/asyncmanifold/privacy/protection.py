"""What a part that adds noise promises each client, and where it stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncmanifold.checks import check
from asyncmanifold.privacy.accounting import GaussianRelease, accounting_library, total_epsilon

Relation = Literal["replace-one", "add-or-remove-one"]


@dataclass(frozen=True)
class Protection:
    """The privacy of one client: a Gaussian mechanism, counted at every release.

    Arguments:
        clip_norm: C, to which a client's contribution is clipped.
        noise_multiplier: σ; the noise has the standard deviation σC in every entry.
        relation: which data must look alike: a client's data and any other data (``"replace-one"``, where two
            contributions differ by up to 2C), or a client's data and none (``"add-or-remove-one"``, where
            they differ by up to C). At the same noise, the first has about twice the ε.
        delta: the δ at which ε is stated.
        max_releases: how many releases a client takes part in at most.
        max_epsilon: the ε that no client may exceed.
    """

    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    relation: Relation = "replace-one"
    delta: float = 1e-5
    max_releases: int | None = None
    max_epsilon: float | None = None

    def __post_init__(self) -> None:
        # A clip norm far from 1 could let float32 lose the noise, or all but the noise.
        check(self, clip_norm="between 1e-6 and 1e6", noise_multiplier="between 1e-3 and 1e6")
        check(self, delta="above 0 and below 1", max_releases="at least 1", max_epsilon="above 0 and finite")
        check(self, relation="'replace-one' or 'add-or-remove-one'")
        accounting_library()

    @property
    def least_clients(self) -> int:
        """How many clients a run needs to go on."""
        return 1

    def epsilon(self, releases: int) -> float:
        """Return a client's ε after so many releases.

        >>> from asyncmanifold.privacy.protection import Protection
        >>> round(Protection(noise_multiplier=4.0, relation="add-or-remove-one").epsilon(1), 3)
        0.925
        >>> round(Protection(noise_multiplier=8.0, relation="replace-one").epsilon(1), 3)
        0.925
        """
        return total_epsilon({sensed_release(self.noise_multiplier, self.relation): releases}, self.delta)

    def allows(self, releases: int) -> bool:
        """Return whether a client may have so many releases in all."""
        if self.max_releases is not None and releases > self.max_releases:
            return False
        return self.max_epsilon is None or self.epsilon(releases) <= self.max_epsilon


def sensed_release(noise_multiplier: float, relation: str) -> GaussianRelease:
    """Return the release of a contribution clipped to C, with noise σC, under a neighbouring relation."""
    return GaussianRelease(noise_multiplier / (2.0 if relation == "replace-one" else 1.0))
