"""A Bézier curve through a server's late models, and the mean along it (the paper's ι_ξ, section 3).

ξ* = argmin_ξ Σ_t min_{x ∈ ι_ξ} d(Θ^t, x): the curve that late models lie closest to. Distances, places and
the mean are functions of the models' Gram matrix; the result is a combination of the models.
"""

from __future__ import annotations

import numpy as np

from asyncmanifold.geometry.bezier import Floats, bernstein

ROUNDS = 30
PLACES = 257
"""Points on the curve among which the nearest to a model is searched."""
CLOSEST = 1e-9
"""A distance, relative to the models' spread, below which a model counts as lying on the curve."""


def mean_along_curve(gram: Floats, degree: int) -> Floats:
    """Return the coefficients of the mean along the curve of ``degree`` that the models lie closest to.

    ``gram`` holds the inner products of the models, in order of time, relative to any point. The mean is
    taken by arc length. If there are no more models than control points, it is their plain mean. Squared
    distances are divided by the last round's distances, so that the sum of plain distances is minimised.
    """
    count = len(gram)
    if count <= degree + 1:
        return np.full(count, 1.0 / count)
    models = _coordinates(gram)
    places, fit = np.linspace(0.0, 1.0, count), np.zeros((degree + 1, count))
    weights = np.ones(count)
    grid = np.linspace(0.0, 1.0, PLACES)
    for _ in range(ROUNDS):
        fit = _fit_control_points(_basis(degree, places), weights)
        curve = _basis(degree, grid) @ fit @ models
        distances = np.linalg.norm(models[:, None] - curve[None], axis=2)
        places = grid[distances.argmin(axis=1)]
        nearest = distances.min(axis=1)
        weights = 1.0 / np.maximum(nearest, CLOSEST * (1.0 + np.abs(models).max()))
    lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])
    middle = np.interp(np.interp(places, grid, lengths).mean(), lengths, grid)
    return np.asarray(_basis(degree, np.array([middle]))[0] @ fit)


def _coordinates(gram: Floats) -> Floats:
    """Return points with these inner products, in as few dimensions as they need."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-12 * max(values[-1], 1e-300)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def _basis(degree: int, places: Floats) -> Floats:
    return np.array([bernstein(degree, float(t)) for t in places])


def _fit_control_points(basis: Floats, weights: Floats) -> Floats:
    """Return the matrix that maps models to control points: weighted least squares at known positions."""
    weighted = basis * weights[:, None]
    solution = np.linalg.lstsq(weighted.T @ basis, weighted.T, rcond=None)[0]
    return solution.astype(np.float64)
