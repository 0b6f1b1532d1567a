"""Accuracy, the first update to reach a target, and fairness over clients."""

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncmanifold.metrics import Accuracy, first_reaching, gini, theil

scores_of_clients = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)


def naive_gini(scores):
    """1/(2N²X̄) Σ_i Σ_j |x_i − x_j|, term by term."""
    count, mean = len(scores), sum(scores) / len(scores)
    return sum(abs(a - b) for a in scores for b in scores) / (2 * count**2 * mean)


def naive_theil(scores):
    """1/(N X̄) Σ_i x_i log(x_i / X̄), term by term."""
    count, mean = len(scores), sum(scores) / len(scores)
    return sum(x * log(x / mean) for x in scores) / (count * mean)


def test_gini_by_hand():
    # |1 − 3| counted twice is 4; 4 / (2 · 2² · 2) = 1/4.
    assert gini([1.0, 3.0]) == pytest.approx(0.25, abs=1e-15)
    # Differences 1, 3, 2 counted twice are 12; 12 / (2 · 3² · 7/3) = 12/42.
    assert gini([4.0, 1.0, 2.0]) == pytest.approx(0.2857142857142857, abs=1e-15)
    # One client has everything: 1 counted six times; 6 / (2 · 4² · 1/4) = 3/4.
    assert gini([0.0, 0.0, 1.0, 0.0]) == pytest.approx(0.75, abs=1e-15)


def test_theil_by_hand():
    # Mean 2: (1 · log 0.5 + 3 · log 1.5) / 4 = (−0.6931471806 + 1.2163953243) / 4.
    assert theil([1.0, 3.0]) == pytest.approx(0.1308120359, abs=1e-10)
    # Mean 7/3: (log 3/7 + 2 log 6/7 + 4 log 12/7) / 7
    #   = (−0.8472978604 − 0.3083013596 + 2.1559860032) / 7.
    assert theil([4.0, 1.0, 2.0]) == pytest.approx(0.1429123976, abs=1e-10)
    # One client has everything: 0 log 0 counts as 0, and 1/(4 · 1/4) · 1 · log 4 = 1.3862943611.
    assert theil([0.0, 0.0, 1.0, 0.0]) == pytest.approx(1.3862943611, abs=1e-10)


@given(scores_of_clients)
def test_gini_is_the_mean_difference_of_all_pairs(scores):
    assert gini(scores) == pytest.approx(naive_gini(scores), rel=1e-9, abs=1e-12)


@given(scores_of_clients)
def test_theil_is_the_sum_over_clients(scores):
    assert theil(scores) == pytest.approx(naive_theil(scores), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("index", [gini, theil])
@given(scores=scores_of_clients, unit=st.floats(1e-3, 1e3))
def test_inequality_does_not_depend_on_the_unit(index, scores, unit):
    assert index([unit * x for x in scores]) == pytest.approx(index(scores), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("index", [gini, theil])
@given(scores=scores_of_clients, random=st.randoms(use_true_random=False))
def test_inequality_does_not_depend_on_the_order_of_clients(index, scores, random):
    shuffled = random.sample(scores, len(scores))
    assert index(shuffled) == pytest.approx(index(scores), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("index", [gini, theil])
@given(scores=scores_of_clients)
def test_every_client_counted_twice_changes_nothing(index, scores):
    assert index(scores + scores) == pytest.approx(index(scores), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("index", [gini, theil])
@given(score=st.floats(1e-3, 1e3), count=st.integers(1, 50))
def test_equal_scores_have_no_inequality(index, score, count):
    assert index([score] * count) == pytest.approx(0.0, abs=1e-14)


@given(scores_of_clients)
def test_gini_and_theil_stay_in_their_ranges(scores):
    count = len(scores)
    assert -1e-12 <= gini(scores) <= 1.0 - 1.0 / count + 1e-12
    assert -1e-12 <= theil(scores) <= log(count) + 1e-12


@pytest.mark.parametrize("index", [gini, theil])
def test_taking_from_the_poor_raises_inequality(index):
    assert index([1.0, 2.0, 3.0]) < index([0.5, 2.0, 3.5])


@pytest.mark.parametrize("index", [gini, theil])
@pytest.mark.parametrize("scores", [[], [0.0], [0.0, 0.0], [-1.0, 0.5]])
def test_without_a_positive_mean_there_is_no_inequality_to_state(index, scores):
    assert index(scores) is None


def test_theil_has_no_value_for_a_negative_score():
    assert theil([-1.0, 5.0]) is None


@pytest.mark.parametrize("index", [gini, theil])
def test_inequality_takes_arrays_and_leaves_them_as_they_are(index):
    scores = np.array([3.0, 1.0, 2.0])
    assert isinstance(index(scores), float)
    assert scores.tolist() == [3.0, 1.0, 2.0]


def test_accuracy_counts_examples_over_all_batches():
    accuracy = Accuracy()
    accuracy.update(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 1]))
    accuracy.update(torch.tensor([[0.3, 0.7]]), torch.tensor([1]))
    assert accuracy.compute() == 0.75


def test_accuracy_takes_a_class_for_every_place_of_a_sequence():
    outputs = torch.zeros(2, 3, 4)
    outputs[..., 2] = 1.0
    accuracy = Accuracy()
    accuracy.update(outputs, torch.tensor([[2, 2, 0], [1, 2, 3]]))
    assert accuracy.compute() == 0.5


def test_accuracy_of_nothing_is_zero():
    assert Accuracy().compute() == 0.0


def test_first_reaching_gives_the_first_place_at_or_above_the_target():
    scores = [(0, 0.1), (10, 0.5), (20, 0.4), (30, 0.9)]
    assert first_reaching(0.5, scores) == 10
    assert first_reaching(0.45, scores) == 10
    assert first_reaching(0.51, scores) == 30
    assert first_reaching(0.0, scores) == 0


def test_a_target_that_is_never_reached_has_no_place():
    assert first_reaching(0.95, [(0, 0.1), (10, 0.94)]) is None
    assert first_reaching(0.5, []) is None


def test_a_score_that_is_not_a_number_reaches_no_target():
    assert first_reaching(0.5, [(0, float("nan")), (10, 0.6)]) == 10
