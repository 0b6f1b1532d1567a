"""A Bézier curve or surface through a server's late models, and the mean on it (the paper's ι_ξ, section 3).

ξ* = argmin_ξ Σ_t min_{x ∈ ι_ξ(𝓢)} d(Θ^t, x): the curve or surface that late models lie closest to. Distances,
places and the mean are functions of the models' Gram matrix; the result is a combination of the models.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from asyncmanifold.geometry.bezier import Floats, bernstein

ROUNDS = 30
PLACES = {1: 257, 2: 33}
"""Points along each axis of the domain among which the nearest to a model is searched, by its dimension."""
CLOSEST = 1e-9
"""A distance, relative to the models' spread, below which a model counts as lying on the curve."""
NEIGHBOURS = [(0, 1), (1, 0), (1, 1), (1, -1), (1, 2), (2, 1), (1, -2), (2, -1)]
"""Ways on from a point of a surface's grid; with these a length is at most 3 % too long."""


def mean_on_manifold(gram: Floats, degree: int, dimension: int = 1) -> Floats:
    """Return the coefficients of the mean on the curve or surface that the models lie closest to.

    It has ``degree`` along each of its ``dimension`` axes, 1 or 2. ``gram`` holds the inner products of the
    models, in order of time, relative to any point. Each model is taken at its nearest place there, and the
    mean is Karcher's: the place with the least sum of squared distances within the curve or surface. If there
    are no more models than control points, it is their plain mean.
    """
    count = len(gram)
    if count <= (degree + 1) ** dimension:
        return np.full(count, 1.0 / count)
    models = _coordinates(gram)
    axis = np.linspace(0.0, 1.0, PLACES[dimension])
    grid = np.array(list(product(axis, repeat=dimension)))
    fit, points, nearest = _fit_to_models(models, degree, _first_places(models, dimension), grid)
    if dimension == 1:
        lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
        middle = np.array([[np.interp(lengths[nearest].mean(), lengths, axis)]])
    else:
        distances = _distances_within(points, len(axis), nearest)
        middle = grid[[(distances**2).sum(axis=0).argmin()]]
    return np.asarray(_basis(degree, middle)[0] @ fit)


def _coordinates(gram: Floats) -> Floats:
    """Return points with these inner products, in as few dimensions as they need, the widest last."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-12 * max(values[-1], 1e-300)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def _first_places(models: Floats, dimension: int) -> Floats:
    """Return places to begin with: by time along a curve, on a surface by the models' widest directions."""
    if dimension == 1:
        return np.linspace(0.0, 1.0, len(models))[:, None]
    wide = models - models.mean(axis=0)
    wide = wide @ np.linalg.svd(wide, full_matrices=False)[2].T[:, :dimension]
    wide = np.pad(wide, ((0, 0), (0, dimension - wide.shape[1])))  # models may lie on a line
    extent = np.ptp(wide, axis=0)
    return np.asarray((wide - wide.min(axis=0)) / np.where(extent > 0.0, extent, 1.0))


def _fit_to_models(
    models: Floats, degree: int, places: Floats, grid: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the matrix that maps models to control points, the grid's points, and which is next to a model.

    Squared distances are divided by the last round's distances, so that the sum of plain distances is
    minimised.
    """
    weights, on_grid = np.ones(len(models)), _basis(degree, grid)
    for _ in range(ROUNDS):
        fit = _fit_control_points(_basis(degree, places), weights)
        points = on_grid @ fit @ models
        distances = np.linalg.norm(models[:, None] - points[None], axis=2)
        nearest = distances.argmin(axis=1)
        places = grid[nearest]
        weights = 1.0 / np.maximum(distances.min(axis=1), CLOSEST * (1.0 + np.abs(models).max()))
    return fit, points, nearest


def _basis(degree: int, places: Floats) -> Floats:
    """Return the weights of all control points at places (m, d): products of Bernstein polynomials."""
    weights = np.ones((len(places), 1))
    for axis in places.T:
        along = np.array([bernstein(degree, float(t)) for t in axis])
        weights = (weights[:, :, None] * along[:, None, :]).reshape(len(places), -1)
    return weights


def _fit_control_points(basis: Floats, weights: Floats) -> Floats:
    """Return the matrix that maps models to control points: weighted least squares at known positions."""
    weighted = basis * weights[:, None]
    solution = np.linalg.lstsq(weighted.T @ basis, weighted.T, rcond=None)[0]
    return solution.astype(np.float64)


def _distances_within(points: Floats, side: int, sources: Floats) -> Floats:
    """Return the lengths of the shortest ways from some points of a surface's square grid to all of them."""
    from scipy.sparse import csr_array  # takes a while to load
    from scipy.sparse.csgraph import dijkstra

    numbers = np.arange(side * side).reshape(side, side)
    pairs = []
    for down, right in NEIGHBOURS:
        here = numbers[: side - down, max(0, -right) : side - max(0, right)]
        there = numbers[down:, max(0, right) : side + min(0, right)]
        pairs.append(np.stack([here.ravel(), there.ravel()]))
    one, other = np.concatenate(pairs, axis=1)
    lengths = np.linalg.norm(points[one] - points[other], axis=1)
    # an edge of length 0 would be no edge
    graph = csr_array((np.maximum(lengths, 1e-300), (one, other)), shape=(len(points), len(points)))
    return np.asarray(dijkstra(graph, directed=False, indices=sources))
