"""Laws of Bézier curves, and of the step whose chord has a given length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncmanifold.geometry import EMBEDDINGS, Bezier, Embedding, Point
from asyncmanifold.geometry.bezier import bernstein, chord_parameter, power_basis, squared_chord
from reference import chord_lengths, curve_point, elevate, first_crossing

degrees = st.integers(1, 5)
places = st.floats(0.0, 1.0)
seeds = st.integers(0, 2**32 - 1)

SHAPES = {
    "generic": lambda offsets: offsets,
    "collinear": lambda offsets: np.outer(offsets[:, 0], offsets[0]),
    "there and back": lambda offsets: np.outer([*range(len(offsets), 1, -1), 0.5], offsets[0]),
    "interior at the base": lambda offsets: np.concatenate([0.0 * offsets[:-1], offsets[-1:]]),
    "all points coincide": lambda offsets: np.tile(offsets[-1], (len(offsets), 1)),
    "evenly spaced": lambda offsets: np.outer(np.arange(1, len(offsets) + 1), offsets[-1]),
    "overshoots its end": lambda offsets: np.concatenate([offsets[:-1], 0.05 * offsets[-1:]]),
    "long interior": lambda offsets: np.concatenate([1e4 * offsets[:-1], offsets[-1:]]),
    "of a lower degree": lambda offsets: elevate(offsets[:-1]) if len(offsets) > 1 else offsets,
    "on a small grid": lambda offsets: np.sign(offsets) + np.round(offsets),
    "tiny": lambda offsets: 1e-15 * offsets,
    "huge": lambda offsets: 1e15 * offsets,
}


@st.composite
def curves(draw, shapes=tuple(SHAPES)):
    """The free offsets of a curve of degree 1 … 5, an array (degree, dimension)."""
    random = np.random.default_rng(draw(seeds))
    offsets = random.standard_normal((draw(degrees), draw(st.integers(1, 6))))
    return SHAPES[draw(st.sampled_from(shapes))](offsets)


def chord(offsets, t):
    return float(np.linalg.norm(curve_point(offsets, t)))


def parameter(offsets, fraction):
    return chord_parameter(offsets @ offsets.T, fraction)


# --- the basis ----------------------------------------------------------------------------------------


@given(degrees, places)
def test_the_weights_are_a_partition_of_unity(degree, t):
    weights = bernstein(degree, t)
    assert len(weights) == degree + 1
    assert min(weights) >= 0.0
    assert sum(weights) == pytest.approx(1.0, abs=1e-14)


@given(degrees)
def test_a_curve_begins_at_its_first_and_ends_at_its_last_point(degree):
    assert bernstein(degree, 0.0) == [1.0] + [0.0] * degree
    assert bernstein(degree, 1.0) == [0.0] * degree + [1.0]


@given(degrees, places)
def test_the_weights_seen_from_the_other_end_are_the_same(degree, t):
    assert bernstein(degree, 1.0 - t) == pytest.approx(bernstein(degree, t)[::-1], abs=1e-14)


@given(curves(), places)
def test_the_weights_trace_the_curve_of_repeated_interpolation(offsets, t):
    expected = curve_point(offsets, t)
    by_weights = np.array(bernstein(len(offsets), t)[1:]) @ offsets
    np.testing.assert_allclose(by_weights, expected, rtol=0.0, atol=1e-13 * np.abs(offsets).max())


@given(curves(["generic"]), places, seeds)
def test_moving_the_control_points_by_an_affine_map_moves_the_curve(offsets, t, seed):
    random = np.random.default_rng(seed)
    points = np.concatenate([random.standard_normal((1, offsets.shape[1])), offsets])
    matrix, shift = random.standard_normal((4, offsets.shape[1])), random.standard_normal(4)
    weights = np.array(bernstein(len(offsets), t))
    np.testing.assert_allclose(
        weights @ (points @ matrix.T + shift), matrix @ (weights @ points) + shift, atol=1e-12
    )


@given(curves(), places)
def test_degree_elevation_leaves_the_curve_unchanged(offsets, t):
    elevated = elevate(offsets)
    assert elevated.shape == (len(offsets) + 1, offsets.shape[1])
    np.testing.assert_allclose(
        curve_point(elevated, t), curve_point(offsets, t), rtol=0.0, atol=1e-13 * np.abs(offsets).max()
    )


@given(curves(["generic"]), places)
def test_the_power_basis_evaluates_the_same_curve(offsets, t):
    powers = t ** np.arange(1, len(offsets) + 1)
    np.testing.assert_allclose(
        powers @ power_basis(len(offsets)) @ offsets, curve_point(offsets, t), atol=1e-11
    )


@given(curves(["generic", "collinear", "overshoots its end"]), places)
def test_the_squared_chord_is_the_polynomial_it_says(offsets, t):
    coefficients = squared_chord(offsets @ offsets.T)
    assert len(coefficients) == 2 * len(offsets) + 1
    value = sum(a * t**m for m, a in enumerate(coefficients))
    assert value == pytest.approx(chord(offsets, t) ** 2, abs=1e-9)


def test_the_squared_chord_of_a_parabola_by_hand():
    """v_1 = (1, 0), v_2 = (0, 1): γ(t) = (2t − 2t², t²), ‖γ‖² = 4t² − 8t³ + 5t⁴."""
    assert squared_chord(np.eye(2)) == [0.0, 0.0, 4.0, -8.0, 5.0]


# --- the chord condition ------------------------------------------------------------------------------


@settings(max_examples=300)
@given(curves(), places)
def test_the_chord_has_the_asked_fraction_of_the_whole(offsets, fraction):
    t = parameter(offsets, fraction)
    whole = np.linalg.norm(offsets[-1])
    assert 0.0 <= t <= 1.0
    assert abs(chord(offsets, t) - fraction * whole) <= 1e-6 * whole


@settings(max_examples=300)
@given(curves(), places)
def test_no_earlier_place_has_the_asked_chord(offsets, fraction):
    """Up to t* the curve stays within the asked distance; a touch may miss it by rounding."""
    t = parameter(offsets, fraction)
    whole = np.linalg.norm(offsets[-1])
    earlier = chord_lengths(offsets, np.linspace(0.0, t, 2_001))
    assert earlier.max() <= (fraction + 1e-6) * whole


@given(
    curves(["generic", "overshoots its end", "there and back"]), st.sampled_from([0.0, 0.1, 0.37, 0.8, 1.0])
)
def test_a_scan_and_bisection_find_the_same_place(offsets, fraction):
    t, expected = parameter(offsets, fraction), first_crossing(offsets, fraction)
    # The scan may step over a pair of crossings closer than its mesh: then the earlier one is right.
    whole = np.linalg.norm(offsets[-1])
    assert t == pytest.approx(expected, abs=1e-7) or (
        t < expected and abs(chord(offsets, t) - fraction * whole) < 1e-6 * whole
    )


@given(curves(), st.floats(1e-6, 1e6), places)
def test_the_place_does_not_depend_on_the_unit_of_length(offsets, unit, fraction):
    first, second = parameter(offsets, fraction), parameter(unit * offsets, fraction)
    whole = np.linalg.norm(offsets[-1])
    assert abs(chord(offsets, first) - chord(offsets, second)) <= 1e-6 * whole


@given(places, st.floats(0.0, 1e6))
def test_on_a_line_the_place_is_the_fraction(fraction, length):
    assert chord_parameter(np.array([[length**2]]), fraction) == fraction


@given(curves())
def test_a_fraction_of_nothing_stays_at_the_start(offsets):
    assert parameter(offsets, 0.0) == 0.0


@given(curves(["generic"]), places)
def test_a_curve_that_returns_to_its_start_stays_there(offsets, fraction):
    closed = np.concatenate([offsets, 0.0 * offsets[:1]])
    assert parameter(closed, fraction) == 0.0


@given(places, st.integers(2, 5))
def test_with_the_interior_at_the_base_the_step_is_that_of_a_line(fraction, degree):
    """γ(t) = t^n v_n, so the chord has the length s where t = s^(1/n)."""
    offsets = np.zeros((degree, 3))
    offsets[-1] = 1.0, -2.0, 2.0
    assert parameter(offsets, fraction) == pytest.approx(fraction ** (1.0 / degree), abs=1e-12)


@given(places, st.integers(2, 5))
def test_evenly_spaced_points_on_the_chord_are_a_line(fraction, degree):
    offsets = np.outer(np.arange(1, degree + 1) / degree, [3.0, 4.0])
    assert parameter(offsets, fraction) == pytest.approx(fraction, abs=1e-7)


def test_the_whole_chord_ends_at_one_unless_the_curve_was_there_before():
    straight = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert parameter(straight, 1.0) == pytest.approx(1.0, abs=1e-12)
    # v_1 = 2, v_2 = 1: γ(t) = 4t − 3t² is 1 at t = 1/3, overshoots to 4/3, and is 1 again at t = 1.
    there_and_back = np.array([[2.0, 0.0], [1.0, 0.0]])
    assert parameter(there_and_back, 1.0) == pytest.approx(1.0 / 3.0, abs=1e-12)


def test_a_curve_that_crosses_three_times_gives_the_first_place():
    """v = (1, −1, 1): γ(t) = 3t − 9t² + 7t³ is 0.2 near t = 0.089, 0.409 and 0.788.

    0.2655 − 0.0704903 + 0.0048521 = 0.1998618 at t = 0.0885, and 0.2658 − 0.0706496 + 0.0048686 =
    0.2000190 at t = 0.0886.
    """
    offsets = np.array([[1.0], [-1.0], [1.0]])
    t = parameter(offsets, 0.2)
    assert 0.0885 < t < 0.0886
    assert chord(offsets, t) == pytest.approx(0.2, abs=1e-12)


def test_a_near_touch_is_met_on_the_way_up_or_not_at_all():
    """v = (3, −2, 1): γ(t) = 9t − 24t² + 16t³ rises to 1 at t = 1/4, falls to 0 at 3/4, ends at 1."""
    touching = np.array([[3.0], [-2.0], [1.0]])
    assert parameter(touching, 0.9999) == pytest.approx(0.25, abs=0.01)
    assert parameter(touching, 0.9999) < 0.25
    missing = np.array([[3.0], [-2.0], [1.001]])
    assert parameter(missing, 1.0) == pytest.approx(1.0, abs=1e-9)


# --- embeddings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("embedding", [Point(), *(Bezier(degree) for degree in range(1, 6))])
def test_an_embedding_starts_at_the_base_and_ends_at_the_local_model(embedding):
    assert embedding.weights(0.0) == [0.0] * embedding.points
    assert embedding.weights(1.0) == [0.0] * (embedding.points - 1) + [1.0]


@given(degrees, places)
def test_an_embedding_leaves_the_rest_of_the_weight_to_the_base(degree, t):
    weights = Bezier(degree).weights(t)
    assert len(weights) == degree
    assert 1.0 - sum(weights) == pytest.approx((1.0 - t) ** degree, abs=1e-14)


@given(places)
def test_a_point_steps_by_the_fraction_itself(fraction):
    assert Point().points == 1
    assert Point().weights(fraction) == [fraction]
    assert Point().parameter(np.array([[7.0]]), fraction) == fraction


def test_only_a_curve_has_a_phase_of_its_own():
    assert not Point().is_curve
    assert Bezier(2).is_curve


def test_every_embedding_can_be_made_from_its_name():
    assert all(isinstance(kind(), Embedding) and kind().points >= 1 for kind in EMBEDDINGS.values())


@pytest.mark.parametrize("degree", [0, -1])
def test_a_degree_below_one_is_refused_by_name(degree):
    with pytest.raises(ValueError, match=rf"Bezier\(degree={degree}\) must be at least 1"):
        Bezier(degree)


def test_an_unknown_start_of_the_interior_is_refused_by_name():
    starts = "'base', 'chord' or 'trajectory'"
    with pytest.raises(ValueError, match=rf"Bezier\(interior_start='middle'\) must be {starts}"):
        Bezier(2, interior_start="middle")
    with pytest.raises(ValueError, match=r"Bezier\(step='length'\) must be 'chord' or 'parameter'"):
        Bezier(2, step="length")
