"""Settings of local training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncmanifold.checks import check


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains: FedProx's objective ℓ(w) + μ/2 ‖w − Θ^t‖², by Adam or SGD.

    Arguments:
        point_epochs: epochs at the end point (the paper's K₁).
        curve_epochs: epochs along the curve (K − K₁); methods without a curve have none.
        batch_size: examples per step.
        optimizer: ``"adam"`` or ``"sgd"``.
        local_lr: the learning rate (the paper's η_l).
        proximal: the paper's μ.
        momentum: SGD's momentum, in [0, 1).
        channels_last: store images in torch's channels-last format, which makes most convolutions faster on a
            CPU; results are the same up to rounding.

    >>> from asyncmanifold import LocalTraining
    >>> LocalTraining(point_epochs=1, local_lr=0.01).batch_size
    32
    """

    point_epochs: int = 2
    curve_epochs: int = 2
    batch_size: int = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    local_lr: float = 1e-3
    proximal: float = 1e-3
    momentum: float = 0.0
    channels_last: bool = False

    def __post_init__(self) -> None:
        check(self, point_epochs="at least 1", curve_epochs="at least 0", batch_size="at least 1")
        check(self, optimizer="'adam' or 'sgd'", local_lr="above 0 and finite")
        check(self, proximal="at least 0 and finite", momentum="in [0, 1)")
