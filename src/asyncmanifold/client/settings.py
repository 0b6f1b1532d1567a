"""How clients train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncmanifold.errors import InputError


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
        momentum: of SGD, in [0, 1).
        channels_last: lay images out with their channels last, which makes most convolutions faster on a CPU;
            the same up to rounding.

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
        if self.point_epochs < 1:
            raise InputError(f"LocalTraining(point_epochs={self.point_epochs}) must be at least 1")
        if self.curve_epochs < 0:
            raise InputError(f"LocalTraining(curve_epochs={self.curve_epochs}) must be at least 0")
        if self.batch_size < 1:
            raise InputError(f"LocalTraining(batch_size={self.batch_size}) must be at least 1")
        if self.optimizer not in ("adam", "sgd"):
            raise InputError(f"LocalTraining(optimizer={self.optimizer!r}) must be 'adam' or 'sgd'")
        if not 0.0 < self.local_lr < float("inf"):
            raise InputError(f"LocalTraining(local_lr={self.local_lr}) must be above 0 and finite")
        if not 0.0 <= self.proximal < float("inf"):
            raise InputError(f"LocalTraining(proximal={self.proximal}) must be at least 0 and finite")
        if not 0.0 <= self.momentum < 1.0:
            raise InputError(f"LocalTraining(momentum={self.momentum}) must be in [0, 1)")
