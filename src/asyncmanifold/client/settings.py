"""Settings of local training."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

from asyncmanifold.checks import check
from asyncmanifold.client.local_optimizers import OptimizerChoice, check_optimizer, plain_name
from asyncmanifold.errors import InputError
from asyncmanifold.privacy.example_privacy import ExamplePrivacy


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains: FedProx's objective ℓ(w) + μ/2 ‖w − Θ^t‖², by any optimiser of torch.

    Arguments:
        point_epochs: epochs at the end point (the paper's K₁).
        curve_epochs: epochs along the curve (K − K₁); methods without a curve have none.
        batch_size: examples per batch.
        optimizer: ``"adam"`` or ``"sgd"``, which have a faster way; the name of any class of ``torch.optim``;
            a table of its name and arguments, such as ``{"name": "AdamW", "weight_decay": 0.01}``; or, from
            Python, a function that takes a list of tensors and returns their optimiser.
        local_lr: the learning rate (the paper's η_l).
        proximal: the paper's μ.
        momentum: of ``"sgd"``, in [0, 1).
        gradient_clip: the greatest norm of a step's gradient, proximal term included; longer ones are scaled
            down.
        accumulate: batches per step of the optimiser; their gradients are averaged over all examples.
        local_schedule: how the learning rate falls within a job: not at all (``"constant"``), along a line
            (``"linear"``) or along half a cosine (``"cosine"``).
        warm_up: the share of a job's steps in which the learning rate first rises, in [0, 1).
        final_rate: where the learning rate falls to, as a share of ``local_lr``.
        precision: of the forward pass: ``"float32"``, or mixed with ``"bf16"`` or ``"fp16"`` (whose loss is
            scaled); weights and gradients stay float32.
        compile: compile the model by ``torch.compile``, which takes up to minutes before the first step.
        channels_last: store images in torch's channels-last format, which makes most convolutions faster on a
            CPU; results are the same up to rounding.
        example_privacy: train by DP-SGD, so that no single example shows (docs/privacy.md).

    >>> from asyncmanifold import LocalTraining
    >>> LocalTraining(point_epochs=1, local_lr=0.01).batch_size
    32
    >>> LocalTraining(optimizer={"name": "AdamW", "weight_decy": 0.01})
    Traceback (most recent call last):
    asyncmanifold.errors.InputError: optimizer 'AdamW' has no argument 'weight_decy' (allowed: betas, eps, \
weight_decay, amsgrad, maximize, foreach, capturable, differentiable, fused)
    """

    point_epochs: int = 2
    curve_epochs: int = 2
    batch_size: int = 32
    optimizer: OptimizerChoice = "adam"
    local_lr: float = 1e-3
    proximal: float = 1e-3
    momentum: float = 0.0
    gradient_clip: float | None = None
    accumulate: int = 1
    local_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warm_up: float = 0.0
    final_rate: float = 0.0
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    compile: bool = False
    channels_last: bool = False
    example_privacy: ExamplePrivacy | None = None

    def __post_init__(self) -> None:
        check(self, point_epochs="at least 1", curve_epochs="at least 0", batch_size="at least 1")
        check(self, local_lr="above 0 and finite", proximal="at least 0 and finite", momentum="in [0, 1)")
        check(self, gradient_clip="above 0", accumulate="at least 1", warm_up="in [0, 1)")
        check(self, local_schedule="'constant', 'linear' or 'cosine'", final_rate="between 0 and 1")
        check(self, precision="'float32', 'bf16' or 'fp16'")
        if self.example_privacy is not None and (self.accumulate > 1 or self.precision != "float32"):
            raise InputError("LocalTraining(example_privacy=…) needs accumulate=1 and precision='float32'")
        check_optimizer(self.optimizer, self.local_lr)
        if self.momentum and plain_name(self.optimizer) is None:
            raise InputError(
                f"LocalTraining(momentum={self.momentum}) is only for optimizer 'sgd': "
                f"give it as an argument of the optimizer"
            )

    def rate_factor(self, step: int, steps: int) -> float:
        """Return the factor of the learning rate at a step, counted from 0, of a job of so many steps.

        >>> from asyncmanifold import LocalTraining
        >>> training = LocalTraining(local_schedule="linear", warm_up=0.2, final_rate=0.5)
        >>> [round(training.rate_factor(step, 10), 3) for step in range(10)]
        [0.5, 1.0, 1.0, 0.938, 0.875, 0.812, 0.75, 0.688, 0.625, 0.562]
        """
        rising = self.warm_up * steps
        if step + 1 < rising:
            return (step + 1) / rising
        passed = max(0.0, (step - rising) / (steps - rising))
        if self.local_schedule == "linear":
            return 1.0 - (1.0 - self.final_rate) * passed
        if self.local_schedule == "cosine":
            return self.final_rate + (1.0 - self.final_rate) * 0.5 * (1.0 + cos(pi * passed))
        return 1.0
