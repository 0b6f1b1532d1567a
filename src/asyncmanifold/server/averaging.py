"""Averaged models: the returned model is a mean of the server's models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.geometry.server_manifold import mean_on_manifold
from asyncmanifold.geometry.spaces import FLAT, Space
from asyncmanifold.server.protocol import ServerState
from asyncmanifold.server.stages import Memory, Part


@dataclass(frozen=True)
class AveragedModel(Part):
    """Returns the mean of the server's models. Subclasses override ``share``, or ``include``.

    >>> from dataclasses import dataclass
    >>> from asyncmanifold import AveragedModel, Method
    >>> @dataclass(frozen=True)
    ... class Halves(AveragedModel):
    ...     def share(self, count):
    ...         return 0.5
    >>> Method(averaging=Halves()).averaging.share(7)
    0.5
    """

    @property
    def memory_size(self) -> str:
        """What the mean takes, for P parameters."""
        return "P"

    def include(self, memory: Memory, state: ServerState, space: Space = FLAT) -> Memory:
        """Return the memory with the state's model added: the mean, and how many models it is made of."""
        count = memory.get("count", 0) + 1
        theta, floats = state.theta.clone(), state.statistics.floats
        if count > 1:
            share = self.share(count)
            floats = torch.lerp(memory["floats"], floats, share)
            if space.is_flat:
                theta = torch.lerp(memory["theta"], theta, share, out=theta)
            else:
                theta = space.repaired(space.geodesic(memory["theta"], theta, share))
        return {"theta": theta, "floats": floats, "integers": state.statistics.integers, "count": count}

    def share(self, count: int) -> float:
        """Return the weight of the latest of so many models; on manifolds the mean moves along a geodesic."""
        return 1.0 / count


@dataclass(frozen=True)
class ExponentialAveraging(AveragedModel):
    """The returned model is the mean of all models with weights that halve every ``half_life`` versions.

    Arguments:
        half_life: in versions, above 0.

    >>> from asyncmanifold import ExponentialAveraging
    >>> ExponentialAveraging(1.0).share(2)  # of the weights 1 and 1/2
    0.6666666666666666
    """

    half_life: float = 20.0

    def __post_init__(self) -> None:
        check(self, half_life="above 0 and finite")

    def share(self, count: int) -> float:
        """Return the weight of the latest model: the weights 1, q, q² … of all models add up to 1."""
        q = 0.5 ** (1.0 / self.half_life)
        return float((1.0 - q) / (1.0 - q**count))


@dataclass(frozen=True)
class TailAveraging(AveragedModel):
    """The returned model is a mean of about the last ``tail_share`` of all models, at any time.

    Without knowing how long the run is: model t has a weight of about t^k, k = 1/tail_share − 1
    (polynomial-decay averaging, Shamir and Zhang 2013).

    Arguments:
        tail_share: above 0; 1 is the mean of all models.

    >>> from asyncmanifold import TailAveraging
    >>> [TailAveraging(0.25).share(count) for count in (1, 5, 13)]  # 4/(count + 3)
    [1.0, 0.5, 0.25]
    """

    tail_share: float = 0.25

    def __post_init__(self) -> None:
        check(self, tail_share="above 0 and finite")
        check(self, tail_share="between 0 and 1")

    def share(self, count: int) -> float:
        """Return (k + 1)/(count + k)."""
        power = 1.0 / self.tail_share - 1.0
        return (power + 1.0) / (count + power)


@dataclass(frozen=True)
class Averaging(AveragedModel):
    """The returned model is the mean of late models (stochastic weight averaging).

    On manifolds it is the Karcher mean, the point with the least sum of squared distances.

    Arguments:
        average_from: the first version that is averaged.
        average_every: versions from one averaged model to the next.
        curve_degree: take the mean along the Bézier curve of this degree that lies closest to the averaged
            models (the paper's ι_ξ); this keeps all of them in memory.
        curve_dimension: 2 for a surface instead of a curve, with that degree along both of its axes.

    >>> from dataclasses import replace
    >>> from asyncmanifold import METHODS, Averaging
    >>> replace(METHODS["asyncsgd"], averaging=Averaging(100, 2)).averaging
    Averaging(average_from=100, average_every=2, curve_degree=None, curve_dimension=1)
    """

    average_from: int
    average_every: int = 1
    curve_degree: int | None = None
    curve_dimension: int = 1

    def __post_init__(self) -> None:
        check(self, average_from="at least 0", average_every="at least 1", curve_degree="at least 1")
        check(self, curve_dimension="between 1 and 2")

    @property
    def memory_size(self) -> str:
        """What the mean takes, and with a curve the averaged models too."""
        return super().memory_size if self.curve_degree is None else "P + P per averaged model"

    def include(self, memory: Memory, state: ServerState, space: Space = FLAT) -> Memory:
        """Return the memory with the state's model added, if its version is one to average."""
        past = state.version - self.average_from
        if past < 0 or past % self.average_every:
            return memory
        kept = self._kept_models(memory, state.theta, space)
        entries = super().include(memory, state)  # as in flat space
        if kept is None:
            return entries
        if entries["count"] > 1:
            entries["theta"] = self._mean_model(entries["theta"], kept, space)
        return {**entries, "models": kept}

    def _kept_models(self, memory: Memory, theta: Tensor, space: Space) -> Tensor | None:
        """Return one row per averaged model with what its mean needs: all of it, its curved part, or None."""
        if self.curve_degree is None and space.is_flat:
            return None
        row = (theta if self.curve_degree is not None else space.curved_part(theta))[None]
        return torch.cat([memory["models"], row]) if "models" in memory else row.clone()

    def _mean_model(self, mean: Tensor, kept: Tensor, space: Space) -> Tensor:
        if self.curve_degree is None:
            return space.with_mean(mean, kept)
        centre = kept.mean(0)
        if not space.is_flat:
            centre = space.with_mean(centre, torch.stack([space.curved_part(model) for model in kept]))
        ways = torch.stack([space.log(centre, model) for model in kept])
        gram = space.gram(centre, list(ways))
        shares = torch.from_numpy(mean_on_manifold(gram, self.curve_degree, self.curve_dimension)).to(ways)
        return space.exp(centre, (shares[None] @ ways)[0])


AVERAGINGS: dict[str, type[AveragedModel]] = {
    "averaging": Averaging,
    "exponential": ExponentialAveraging,
    "tail": TailAveraging,
}
