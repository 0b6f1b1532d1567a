"""Bézier curves: the basis, and the step that matches a chord.

A curve of degree n has control points p_0 … p_n. Everywhere in this package p_0 is the model that the
curve starts from and stays fixed, so a curve is given by n *offsets* v_k = p_k − p_0, k = 1 … n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import comb
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Where = TypeVar("Where")


def bernstein(degree: int, t: float) -> list[float]:
    """Return the weights of all ``degree + 1`` control points at ``t``; they sum to 1.

    b_k(t) = C(n, k) t^k (1 − t)^(n − k)

    >>> bernstein(2, 0.5)
    [0.25, 0.5, 0.25]
    """
    return [comb(degree, k) * t**k * (1.0 - t) ** (degree - k) for k in range(degree + 1)]


def de_casteljau(
    controls: Sequence[Where], t: float, geodesic: Callable[[Where, Where, float], Where]
) -> Where:
    """Return the point at ``t`` on a Bézier curve, by repeated geodesics between neighbouring control points.

    >>> de_casteljau([0.0, 4.0, 0.0], 0.5, lambda a, b, t: a + t * (b - a))
    2.0
    """
    points = list(controls)
    while len(points) > 1:
        points = [geodesic(a, b, t) for a, b in pairwise(points)]
    return points[0]


@lru_cache
def power_basis(degree: int) -> Floats:
    """Return M with γ(t) − p_0 = Σ_k t^k Σ_j M[k−1, j−1] v_j, for k, j = 1 … degree."""
    matrix = np.zeros((degree, degree))
    for k in range(1, degree + 1):
        for j in range(1, k + 1):
            matrix[k - 1, j - 1] = comb(degree, k) * comb(k, j) * (-1) ** (k - j)
    return matrix


def squared_chord(gram: Floats) -> list[float]:
    """Return the coefficients a_0 … a_2n of ‖γ(t) − p_0‖² = Σ_m a_m t^m, from the offsets' Gram matrix."""
    degree = len(gram)
    basis = power_basis(degree)
    products = basis @ gram @ basis.T
    coefficients = np.zeros(2 * degree + 1)
    for k in range(degree):
        coefficients[k + 2 : k + 2 + degree] += products[k]
    return [float(value) for value in coefficients]


def chord_parameter(gram: Floats, fraction: float) -> float:
    """Return the smallest t in [0, 1] with ‖γ(t) − p_0‖ = fraction · ‖v_n‖.

    The step of AsyncBezier (the paper's scaling condition, read as a chord). ‖γ(t) − p_0‖² is a
    polynomial in t that is 0 at t = 0 and ‖v_n‖² at t = 1, so for a fraction in [0, 1] a root exists.
    Between two neighbouring critical points the polynomial is monotone: the first such piece that
    reaches the target holds the smallest root, and bisection finds it to the last bit.
    """
    if len(gram) == 1:
        return fraction
    target = fraction**2 * float(gram[-1, -1])
    if target <= 0.0:
        return 0.0
    coefficients = squared_chord(gram)
    slope = [m * a for m, a in enumerate(coefficients)][:1:-1]  # highest power first, divided by t
    critical = sorted(float(root.real) for root in np.roots(slope))
    low = 0.0
    for high in [t for t in critical if 0.0 < t < 1.0] + [1.0]:
        if _polynomial(coefficients, high) >= target:
            return _bisect(coefficients, target, low, high)
        low = high
    return 1.0  # only rounding leads here: the polynomial is ‖v_n‖² ≥ target at 1


def _polynomial(coefficients: list[float], t: float) -> float:
    value = 0.0
    for coefficient in reversed(coefficients):
        value = value * t + coefficient
    return value


def _bisect(coefficients: list[float], target: float, low: float, high: float) -> float:
    """Return the t in [low, high] where the rising polynomial first reaches ``target``."""
    while low < (middle := 0.5 * (low + high)) < high:
        if _polynomial(coefficients, middle) >= target:
            high = middle
        else:
            low = middle
    return high
