"""A curve fitted to the way that the end point took in the point phase, at the cost of a few additions."""

from __future__ import annotations

from math import comb

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.geometry.bezier import bernstein


class Trajectory:
    """Gathers the end points after every step, and fits a Bézier curve to them by least squares.

    After step j of J the end point v_j belongs to t = j/J. With γ(t) = t C + Σ_k b_k(t) D_k, where C is the
    last end point and D_k how far control point k lies off the chord, the D_k minimise Σ_j ‖γ(j/J) − v_j‖².
    J is not known before the last step, so Σ_j j^p v_j is kept for every power p that a b_k has.
    """

    def __init__(self, degree: int, size: int, device: torch.device) -> None:
        self._degree = degree
        self._sums = torch.zeros(degree, size, device=device)
        self._count = 0

    def reset(self) -> None:
        """Forget what was gathered."""
        self._sums.zero_()
        self._count = 0

    def include(self, offset: Tensor) -> None:
        """Take note of the end point after a step."""
        self._count += 1
        for power, total in enumerate(self._sums, 1):
            total.add_(offset, alpha=float(self._count) ** power)

    def fit(self, offsets: Tensor) -> None:
        """Set the interior control points, given the end point in the last row."""
        degree, steps = self._degree, self._count
        times = np.arange(1, steps + 1) / steps
        basis = np.array([bernstein(degree, t)[1:degree] for t in times])
        solve = np.linalg.pinv(basis.T @ basis)  # too few steps leave the control points on the chord
        powers = np.array(
            [[_coefficient(degree, k, p) for p in range(1, degree + 1)] for k in range(1, degree)]
        )
        shares = solve @ (powers / float(steps) ** np.arange(1, degree + 1))
        chord = np.arange(1, degree) / degree - solve @ basis.T @ times
        for offset, of_sums, of_end in zip(offsets[:-1], shares.tolist(), chord.tolist(), strict=True):
            torch.mul(offsets[-1], of_end, out=offset)
            for share, total in zip(of_sums, self._sums, strict=True):
                offset.add_(total, alpha=share)


def _coefficient(degree: int, k: int, power: int) -> float:
    """Return the coefficient of t^power in the Bernstein polynomial b_k."""
    return 0.0 if power < k else float((-1) ** (power - k) * comb(degree, power) * comb(power, k))
