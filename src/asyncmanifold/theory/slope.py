"""A log–log slope over several seeds, with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from statistics import mean, stdev

import numpy as np

QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t at 97.5 % for 1 … 30 degrees of freedom; the last, slightly large, is used for all above."""


def log_slope(lengths: Sequence[int], rows: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the slope of log value against log length, and the ends of its 95 % interval.

    Least squares for each row, then a t-interval. A row holds one seed's values, length by length. Rows are
    independent, so the mean of their slopes has Student's distribution, however the values of one row are
    correlated.
    """
    places = [log(length) for length in lengths]
    slopes = [float(np.polyfit(places, [log(value) for value in row], 1)[0]) for row in rows]
    middle, freedom = mean(slopes), len(slopes) - 1
    margin = QUANTILES[min(freedom, len(QUANTILES)) - 1] * stdev(slopes) / sqrt(len(slopes))
    return middle, middle - margin, middle + margin
