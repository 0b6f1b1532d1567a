"""The mean on a curve or surface through late models."""

import geoopt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncmanifold import Averaging, ServerState
from asyncmanifold.geometry.maps import maps_of
from asyncmanifold.geometry.server_manifold import PLACES, mean_on_manifold
from asyncmanifold.geometry.spaces import FLAT, Piece, Space


def mean_of(points, degree, dimension=1):
    models = np.array(points, dtype=float)
    centred = models - models.mean(0)
    return models.mean(0) + mean_on_manifold(centred @ centred.T, degree, dimension) @ centred


def test_models_on_a_line_have_their_plain_mean():
    points = [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0], [5.0, 10.0]]
    assert mean_of(points, 1) == pytest.approx([2.0, 4.0], abs=0.03)


def test_the_mean_lies_on_the_parabola_and_not_inside_it():
    """(x, x²) for x = −2 … 2 is a quadratic Bézier curve; by symmetry the mean along it is (0, 0)."""
    xs = np.linspace(-2.0, 2.0, 9)
    points = np.stack([xs, xs**2], axis=1)
    assert mean_of(points, 2) == pytest.approx([0.0, 0.0], abs=0.03)
    assert points.mean(0)[1] == pytest.approx(5.0 / 3.0)


def test_an_outlier_hardly_moves_the_curve():
    """Distances are summed, not their squares."""
    points = [[x, 0.0] for x in np.linspace(-1.0, 1.0, 11)]
    points[5] = [0.0, 3.0]
    assert abs(mean_of(points, 1)[1]) < 0.1
    assert np.mean(points, axis=0)[1] == pytest.approx(3.0 / 11.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 3))
def test_turning_and_moving_the_models_turns_and_moves_the_mean(seed, degree):
    random = np.random.default_rng(seed)
    points = random.standard_normal((8, 4)).cumsum(0)
    turn, _ = np.linalg.qr(random.standard_normal((4, 4)))
    moved = mean_of(points @ turn + 3.0, degree)
    assert moved == pytest.approx(mean_of(points, degree) @ turn + 3.0, abs=1e-4)


def test_few_models_have_their_plain_mean():
    assert mean_on_manifold(np.eye(2), 2).tolist() == [0.5, 0.5]
    assert mean_on_manifold(np.eye(4), 1, 2).tolist() == [0.25] * 4


def averaged(rows, averaging, space=FLAT):
    memory = {}
    for version, row in enumerate(rows):
        state = ServerState(torch.tensor(row, dtype=torch.float32), version=version)
        memory = averaging.include(memory, state, space)
    return memory


def test_an_average_along_a_curve_is_that_of_all_models():
    xs = np.linspace(-2.0, 2.0, 9)
    average = averaged(np.stack([xs, xs**2], axis=1), Averaging(0, curve_degree=2))
    assert average["theta"].tolist() == pytest.approx([0.0, 0.0], abs=0.03)
    assert average["models"].shape == (9, 2)


def test_on_the_circle_the_average_along_a_geodesic_is_its_middle():
    angles = np.linspace(0.2, 1.0, 9)
    space = Space([Piece(0, 2, (2,), maps_of(geoopt.Sphere(), torch.tensor([1.0, 0.0])))])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for averaging in (Averaging(0), Averaging(0, curve_degree=1)):
        average = averaged(rows, averaging, space)
        assert average["theta"].tolist() == pytest.approx([np.cos(0.6), np.sin(0.6)], abs=3e-3)


STEP = 1.0 / (PLACES[2] - 1)
"""Of a surface's grid."""


def test_models_on_a_plane_have_their_plain_mean():
    """Within the grid's distance, whichever way the plane lies."""
    random = np.random.default_rng(0)
    points = random.uniform(-1.0, 1.0, (40, 2)) @ random.standard_normal((2, 5))
    reach = np.abs(points).max()
    assert mean_of(points, 1, 2) == pytest.approx(points.mean(0), abs=2 * STEP * reach)


def bowl(side):
    """(x, y, (x² + y²)/2) has degree 2 in both axes; by symmetry the mean on it is its lowest point."""
    axis = np.linspace(-1.0, 1.0, side)
    x, y = (values.ravel() for values in np.meshgrid(axis, axis))
    return np.stack([x, y, (x**2 + y**2) / 2.0], axis=1)


def test_the_mean_lies_on_a_bowl_and_not_inside_it():
    assert bowl(5).mean(0)[2] == pytest.approx(0.5)
    assert mean_of(bowl(5), 2, 2) == pytest.approx([0.0, 0.0, 0.0], abs=3 * STEP)


def test_the_mean_on_a_cylinder_is_by_distances_within_it():
    """Unrolled, a parabola times a line is flat: the mean is that of arc length and height."""
    xs = np.linspace(0.0, 1.0, 7)
    along, height = (values.ravel() for values in np.meshgrid(xs, np.linspace(0.0, 1.0, 5)))
    fine = np.linspace(0.0, 1.0, 4001)
    length = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(fine), np.diff(fine**2)))])
    middle = np.interp(np.interp(xs, fine, length).mean(), length, fine)
    mean = mean_of(np.stack([along, along**2, height], axis=1), 2, 2)
    assert mean == pytest.approx([middle, middle**2, 0.5], abs=2 * STEP)
    assert middle > 0.54  # beyond the middle of the parameters


def test_models_on_a_line_have_their_plain_mean_on_a_surface_too():
    points = [[x, 2.0 * x] for x in np.linspace(0.0, 1.0, 6)]
    assert mean_of(points, 1, 2) == pytest.approx([0.5, 1.0], abs=2 * STEP)


def test_an_average_on_a_surface_is_that_of_all_models():
    average = averaged(bowl(4), Averaging(0, 1, 2, 2))
    assert average["theta"].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=3 * STEP)


def test_wrong_degrees_are_refused():
    with pytest.raises(ValueError, match=r"Averaging\(curve_dimension=3\) must be between 1 and 2"):
        Averaging(0, curve_degree=2, curve_dimension=3)
    with pytest.raises(ValueError, match=r"Averaging\(curve_degree=0\) must be at least 1"):
        Averaging(0, curve_degree=0)
