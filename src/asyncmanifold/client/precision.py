"""Mixed precision: forward passes in half precision, weights and gradients in single."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncmanifold.vectors import FlatModel

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
START = 2.0**16
PATIENCE = 2000
"""Sound steps until the scale doubles."""


class LossScale:
    """Multiplies the loss so that fp16's small gradients do not become 0; a step that overflows is left out.

    The scale halves with every overflow and doubles after many sound steps, as in ``torch.amp.GradScaler``,
    which works on optimisers of torch only. It starts anew with every job, which decides its result alone.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start with the first scale."""
        self.factor, self._sound_steps = START, 0

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return loss * self.factor

    def unscale(self, model: FlatModel) -> bool:
        """Divide the model's gradients by the scale; return False, without gradients, if they overflowed."""
        gradients = [gradient.div_(self.factor) for gradient in model.gradients]
        if all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            self._sound_steps += 1
            if self._sound_steps % PATIENCE == 0:
                self.factor *= 2.0
            return True
        self.factor, self._sound_steps = self.factor / 2.0, 0
        model.clear_gradients()
        return False
