"""How much privacy releases cost: ε at a given δ, computed by Google's dp-accounting.

No amplification by sampling is ever claimed for clients: which client arrives when is decided by its speed,
and is no random sample. Batches of example-level training are drawn at random, and are accounted so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any

from asyncmanifold.errors import InputError


@dataclass(frozen=True, order=True)
class GaussianRelease:
    """A sum to which Gaussian noise was added before anybody saw it.

    Arguments:
        noise: the noise's standard deviation as a multiple of the sum's sensitivity.
        sampling: the probability with which each contribution was drawn into the sum; 1 without sampling.
    """

    noise: float
    sampling: float = 1.0


def total_epsilon(releases: Mapping[GaussianRelease, int], delta: float) -> float:
    """Return the ε at ``delta`` of so many releases of each kind, chosen one after another.

    T releases with noise σ and no sampling are one release with noise σ/√T (Dong, Roth and Su 2019, corollary
    3.3), whose ε is exact (Balle and Wang 2018). With sampling ε is an upper bound from the privacy loss
    distribution.

    >>> from asyncmanifold.privacy.accounting import GaussianRelease, total_epsilon
    >>> round(total_epsilon({GaussianRelease(4.0): 1}, delta=1e-5), 3)
    0.925
    >>> round(total_epsilon({GaussianRelease(4.0): 100}, delta=1e-5), 3)
    13.207
    """
    made = tuple(sorted((release, count) for release, count in releases.items() if count > 0))
    return _epsilon(made, delta) if made else 0.0


@lru_cache(maxsize=4096)
def _epsilon(releases: tuple[tuple[GaussianRelease, int], ...], delta: float) -> float:
    library = accounting_library()
    plain = sum(count / release.noise**2 for release, count in releases if release.sampling == 1.0)
    sampled = [(release, count) for release, count in releases if release.sampling < 1.0]
    if not sampled:
        return float(library.get_epsilon_gaussian(1.0 / sqrt(plain), delta))
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for release, count in sampled:
        event = library.PoissonSampledDpEvent(release.sampling, library.GaussianDpEvent(release.noise))
        accountant.compose(event, count)
    if plain:
        accountant.compose(library.GaussianDpEvent(1.0 / sqrt(plain)))
    return float(accountant.get_epsilon(delta))


def accounting_library() -> Any:
    """Return dp-accounting; an ``InputError`` says how to install it."""
    try:
        import dp_accounting
    except ImportError as error:
        raise InputError(
            "privacy accounting needs the extra 'privacy': pip install 'asyncmanifold[privacy]'"
        ) from error
    return dp_accounting
