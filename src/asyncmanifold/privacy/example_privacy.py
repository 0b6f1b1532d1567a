"""Example-level privacy: a client trains by DP-SGD, so that no single example shows in what it sends."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.privacy.accounting import GaussianRelease, total_epsilon
from asyncmanifold.privacy.protection import Protection


@dataclass(frozen=True)
class ExamplePrivacy(Protection):
    """Clips every example's gradient to C and adds N(0, σ²C²) to their sum (Abadi et al. 2016, algorithm 1).

    A step draws each example with probability ``sampling``, whatever the client's amount of data, and divides
    the sum by ``batch_size``; an epoch is 1/``sampling`` steps. So nothing but the noised sums depends on the
    data. Each step is one release. On a curve it trains all control points with the one noised gradient,
    times factors that do not depend on data, at no further cost.

    Arguments:
        sampling: the probability with which an example is part of a step, in (0, 1).

    >>> from asyncmanifold import ExamplePrivacy, LocalTraining
    >>> part = ExamplePrivacy(clip_norm=1.0, noise_multiplier=1.1, sampling=0.01)
    >>> part.steps_per_epoch, round(part.epsilon(100), 2)
    (100, 0.55)
    >>> LocalTraining(batch_size=20, example_privacy=part).example_privacy.sampling
    0.01
    """

    relation: str = "add-or-remove-one"  # type: ignore[assignment]
    sampling: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, relation="'add-or-remove-one'", sampling="above 0 and below 1")

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has."""
        return ceil(1.0 / self.sampling)

    def epsilon(self, releases: int) -> float:
        return total_epsilon({GaussianRelease(self.noise_multiplier, self.sampling): releases}, self.delta)

    def check_model(self, module: nn.Module) -> None:
        """Refuse a model in which the examples of a batch depend on each other."""
        for name, part in module.named_modules():
            if isinstance(part, _BatchNorm):
                raise InputError(
                    f"example_privacy: layer {name or 'of the model'} is BatchNorm, which mixes the examples "
                    "of a batch: use GroupNorm or LayerNorm"
                )
