"""Find where a distance along a curve first reaches a given value."""

from __future__ import annotations

from collections.abc import Callable

SCAN = 32
"""Points at which a curve is evaluated to find the first that is far enough."""
SECANTS = 26
"""The most secant steps within the interval that holds the crossing; a handful usually suffices."""
CLOSE = 1e-6
"""The relative error allowed in a distance; single precision is hardly more exact."""


def first_crossing(distance: Callable[[float], float], whole: float, fraction: float) -> float:
    """Return the smallest t in [0, 1] with distance(t) = fraction · whole: a scan, then secants.

    ``distance`` is 0 at t = 0 and ``whole`` at t = 1.

    >>> first_crossing(lambda t: t * t, 1.0, 0.25)
    0.5
    """
    target = fraction * whole
    if target <= 0.0:
        return 0.0

    def surplus(t: float) -> float:
        return distance(t) - target

    low, below = 0.0, -target
    for k in range(1, SCAN + 1):
        high, above = k / SCAN, whole - target if k == SCAN else surplus(k / SCAN)
        if above >= 0.0:
            return _refine_crossing(surplus, (low, below), (high, above), CLOSE * target)
        low, below = high, above
    return 1.0


def _refine_crossing(
    function: Callable[[float], float], low: tuple[float, float], high: tuple[float, float], close: float
) -> float:
    """Return where a function that rises from below 0 at ``low`` to ``high`` is within ``close`` of 0.

    Secants with the Illinois rule: the value at an end that is kept twice is halved, so that both ends move.
    """
    (left, below), (right, above) = low, high
    kept = 0
    for _ in range(SECANTS if above > close else 0):
        place = right - above * (right - left) / (above - below)
        value = function(place)
        if abs(value) <= close:
            return place
        if value > 0.0:
            right, above, below = place, value, below * (0.5 if kept < 0 else 1.0)
            kept = -1
        else:
            left, below, above = place, value, above * (0.5 if kept > 0 else 1.0)
            kept = 1
    return right
