"""The theorem's constants and its bound, corrected and as printed (docs/theory.md derives them)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from asyncmanifold.theory.findings import Constants, KnownConstants, MeasuredConstants, Setting

LAMBDA_MIN = 1.0
"""λ_min of ι_ω, which takes control points to the local model: a Bézier curve's end point is one of them."""


@dataclass(frozen=True)
class Theorem:
    """The theorem with these constants; its results are None if its assumptions do not hold with them."""

    known: KnownConstants
    setting: Setting
    measured: MeasuredConstants

    def corrected_constants(self, local_lr: float) -> Constants | None:
        """Return the constants of the corrected theorem; β is 1, since Q and R take the penalty in.

        With k = ½ + K (½ + R² η_g/2Q):  C₁ = k L,  C₂ = S L K² G²,  C₃ = k L K₁ σ₁²,
        C₄ = (K − K₁) G² [k L + η_l K² (L²/(n + 1) + κ G²/2)].
        """
        if not self.measured.is_sound:
            return None
        known, setting = self.known, self.setting
        k = _second_order(setting, self.measured.stretch**2 / self.measured.quality)
        smoothness, square = known.smoothness, known.gradient_bound**2
        off_curve = smoothness**2 / (setting.degree + 1) + 0.5 * known.curvature * square
        return Constants(
            c1=k * smoothness,
            c2=self.measured.staleness * smoothness * setting.steps**2 * square,
            c3=k * smoothness * setting.point_steps * known.variance,
            c4=setting.curve_steps * square * (k * smoothness + local_lr * setting.steps**2 * off_curve),
            beta=1.0,
        )

    def corrected_bound(self, *, length: int, local_lr: float, decrease: float) -> float | None:
        """Return the bound on the mean of E‖grad L(Θ^t)‖² over t < T.

        1/λ_min [D / (T Q β η_g η_l (1 − η_l C₁)) + η_l (C₂ + C₃ + C₄) / (1 − η_l C₁)] + (M − 1) G² / T, where
        D is the decrease of the loss from Θ^0 to Θ^T.
        """
        c = self.corrected_constants(local_lr)
        if c is None or (kept := 1.0 - local_lr * c.c1) <= 0.0:
            return None
        descent = decrease / (length * self.measured.quality * c.beta * self.setting.global_lr * local_lr)
        error = local_lr * (c.c2 + c.c3 + c.c4)
        in_flight = (self.setting.clients - 1) * self.known.gradient_bound**2 / length
        return (descent + error) / (kept * LAMBDA_MIN) + in_flight

    def printed_constants(self) -> Constants | None:
        """Return the constants as the paper prints them, with L_Φ = L_Θ, L_ι = 1 and curvature C = 0."""
        if not (self.measured.is_sound and self.measured.staleness > 0.0):
            return None
        alpha = self.setting.decay
        smoothness, steps, global_lr = self.known.smoothness, self.setting.steps, self.setting.global_lr
        beta = 1.0 + alpha * (1.0 / self.measured.staleness - 1.0)
        spread = smoothness * steps**2 * self.known.gradient_bound**2
        fresh = (1.0 - alpha) * global_lr * self.measured.staleness * spread
        reduction = steps * smoothness * (1.0 / 6.0 + global_lr * beta / (4.0 * self.measured.quality))
        return Constants(
            c1=0.5 * smoothness - reduction,
            c2=(fresh + alpha * spread) / beta,
            c3=steps * smoothness * self.known.variance,
            c4=0.0,
            beta=beta,
        )

    def printed_bound(self, *, length: int, local_lr: float, decrease: float) -> float | None:
        """Return the bound as the paper prints it: equation (27) of its proof, times λ_min."""
        c = self.printed_constants()
        if c is None or (kept := 1.0 - local_lr * c.c1) <= 0.0:
            return None
        offered = 2.0 * length * self.measured.quality * local_lr * self.setting.global_lr * c.beta
        return LAMBDA_MIN * (decrease / offered + 0.5 * local_lr * (c.c2 + 2.0 * c.c3)) / kept


def local_rate(known: KnownConstants, setting: Setting, length: int) -> float:
    """Return η_l = 1/max(2 C₁, √T), with the C₁ of an ideal correction (Q = R = 1)."""
    return 1.0 / max(2.0 * _second_order(setting, 1.0) * known.smoothness, sqrt(length))


def _second_order(setting: Setting, ratio: float) -> float:
    """Return k for a ratio R²/Q."""
    return 0.5 + setting.steps * (0.5 + 0.5 * setting.global_lr * ratio)
