"""The mean along a curve through late models."""

import geoopt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncmanifold import Averaging, ServerState
from asyncmanifold.geometry.maps import maps_of
from asyncmanifold.geometry.server_curve import mean_along_curve
from asyncmanifold.geometry.spaces import FLAT, Piece, Space


def mean_of(points, degree):
    models = np.array(points, dtype=float)
    centred = models - models.mean(0)
    return models.mean(0) + mean_along_curve(centred @ centred.T, degree) @ centred


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
    assert mean_along_curve(np.eye(2), 2).tolist() == [0.5, 0.5]


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


def test_wrong_degrees_are_refused():
    with pytest.raises(ValueError, match=r"Averaging\(curve_degree=0\) must be at least 1"):
        Averaging(0, curve_degree=0)
