"""Every method against numbers worked out by hand, and against the slow reference on long vectors.

The hand-sized cases share one situation unless they say otherwise: the client started from version 2,
Θ^t = (1, 2), and the server is now at version 5, Θ^τ = (4, 6). So the staleness is 3, the drift
d = (3, 4), and ‖d‖ = 5.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncmanifold import (
    METHODS,
    AdaptiveEpochs,
    Averaging,
    Bezier,
    Buffer,
    Constant,
    CyclicRate,
    DecayingRate,
    DelayCompensation,
    Distance,
    FixedRate,
    Hinge,
    Method,
    OrthoDC,
    Polynomial,
    Position,
    ServerState,
    Tangent,
    Update,
    absorb,
)
from asyncmanifold.server.step import flush
from asyncmanifold.vectors import Statistics
from reference import ReferenceServer, next_epochs


def server(theta=(4.0, 6.0), version=5, updates=20, **rest):
    return ServerState(theta=torch.tensor(theta), version=version, updates=updates, **rest)


def update(*offsets, version=2):
    return Update(client=0, version=version, offsets=torch.tensor(offsets), statistics=Statistics.none())


def moved(method, *offsets, weight, state=None, base=(1.0, 2.0), version=2):
    """Return the new model as a list, and what the step says about itself."""
    received = update(*offsets, version=version)
    after, step = absorb(method, state or server(), received, base=torch.tensor(base), weight=weight)
    return after.theta.tolist(), step


def exactly(numbers):
    return pytest.approx(numbers, rel=1e-6, abs=1e-6)


# --- FedAsync -----------------------------------------------------------------------------------------


def test_fedasync_mixes_the_models():
    """The local model is (1, 2) + (2, −4) = (3, −2); ¾ (4, 6) + ¼ (3, −2) = (3.75, 4)."""
    theta, step = moved(METHODS["fedasync"], (2.0, -4.0), weight=0.25)
    assert theta == exactly([3.75, 4.0])
    assert step.staleness == 3
    assert step.drift_norm == exactly(5.0)
    assert step.update_norm == exactly(4.472136)  # √(4 + 16)
    assert step.end_norm == exactly(8.062258)  # ‖(2, −4) − (3, 4)‖ = √(1 + 64)
    assert step.cosines == exactly([-0.4472136])  # (6 − 16) / (√20 · 5)
    assert step.step_norm == exactly(2.015564)  # ¼ · √65
    assert step.t == step.fraction == exactly(0.25)


def test_fedasync_as_published_mixes_all_clients_alike():
    """α = 0.6 whatever the weight: 0.4 (4, 6) + 0.6 (3, −2) = (1.6 + 1.8, 2.4 − 1.2)."""
    method = replace(METHODS["fedasync"], weighting="none", global_lr=0.6)
    theta, _ = moved(method, (2.0, -4.0), weight=0.01)
    assert theta == exactly([3.4, 1.2])


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [
        # α = 0.6 · 1
        (Constant(), [3.4, 1.2]),
        # α = 0.6 / √(1 + 3) = 0.3: 0.7 (4, 6) + 0.3 (3, −2)
        (Polynomial(0.5), [3.7, 3.6]),
        # α = 0.6 / (1 + 3) = 0.15: 0.85 (4, 6) + 0.15 (3, −2)
        (Polynomial(1.0), [3.85, 4.8]),
        # within the delay: α = 0.6
        (Hinge(10.0, 4), [3.4, 1.2]),
        (Hinge(10.0, 3), [3.4, 1.2]),
        # α = 0.6 / (4 (3 − 2) + 1) = 0.12: 0.88 (4, 6) + 0.12 (3, −2)
        (Hinge(4.0, 2), [3.88, 5.04]),
        # α = 0.6 / (0.5 (3 − 1) + 1) = 0.3
        (Hinge(0.5, 1), [3.7, 3.6]),
    ],
    ids=str,
)
def test_fedasync_with_each_staleness_function(staleness, expected):
    method = replace(METHODS["fedasync"], weighting="none", global_lr=0.6, staleness=staleness)
    assert moved(method, (2.0, -4.0), weight=0.5)[0] == exactly(expected)


def test_the_staleness_functions_by_hand():
    assert [Polynomial(0.5).factor(n) for n in (0, 3, 8, 99)] == exactly([1.0, 0.5, 0.3333333, 0.1])
    # 1 up to 4, then 1/(10 · 1 + 1), 1/(10 · 6 + 1)
    assert [Hinge(10.0, 4).factor(n) for n in (0, 4, 5, 10)] == exactly([1.0, 1.0, 0.0909091, 0.0163934])
    assert [Constant().factor(n) for n in (0, 7)] == [1.0, 1.0]


def test_a_step_never_goes_beyond_the_local_model():
    """0.5 · 3 would be 1.5; at most 1: the local model (3, −2) itself."""
    theta, step = moved(replace(METHODS["fedasync"], global_lr=3.0), (2.0, -4.0), weight=0.5)
    assert step.fraction == 1.0
    assert theta == exactly([3.0, -2.0])


# --- AsyncSGD, FedOrtho, FedGS ------------------------------------------------------------------------


def test_asyncsgd_adds_the_offset():
    """(4, 6) + ¼ (2, −4)."""
    theta, step = moved(METHODS["asyncsgd"], (2.0, -4.0), weight=0.25)
    assert theta == exactly([4.5, 5.0])
    assert step.projected == [False]


@pytest.mark.parametrize("name", ["fedortho", "fedgs"])
def test_an_update_that_points_back_loses_its_part_along_the_drift(name):
    """⟨v, d⟩/⟨d, d⟩ = −10/25; v' = (2, −4) + 0.4 (3, 4) = (3.2, −2.4); (4, 6) + ¼ v'."""
    theta, step = moved(METHODS[name], (2.0, -4.0), weight=0.25)
    assert theta == exactly([4.8, 5.4])
    assert step.projected == [True]
    assert step.end_norm == exactly(4.0)


def test_fedortho_projects_also_what_points_ahead():
    """⟨v, d⟩/⟨d, d⟩ = 10/25; v' = (2, 1) − 0.4 (3, 4) = (0.8, −0.6); (4, 6) + ¼ v'."""
    theta, step = moved(METHODS["fedortho"], (2.0, 1.0), weight=0.25)
    assert theta == exactly([4.2, 5.85])
    assert step.projected == [True]


def test_orthomean_makes_long_steps_by_distance_and_returns_their_weighted_mean():
    """Steps of ¼ · 3 S v', with S = ‖v'‖/‖d‖, or 1 without drift: Θ = (6, 0), (6, 2), (6, 5).

    (4, 4) loses its part along the drift (6, 0), and S = 4/6. Returned: (6, 0); then 8/9 of the way to
    (6, 2), (6, 16/9); then 8/10 of the way to (6, 5).
    """
    state = ServerState(torch.zeros(2))
    start, means = state.theta, []
    for version, offset in ((0, [8.0, 0.0]), (0, [4.0, 4.0]), (2, [0.0, 4.0])):
        base = start if version == 0 else state.theta
        update = Update(0, version, torch.tensor([offset]))
        state, _ = absorb(METHODS["orthomean"], state, update, base=base, weight=0.25)
        means.append(state.returned()[0].tolist())
    assert state.theta.tolist() == exactly([6.0, 5.0])
    assert means[0] == exactly([6.0, 0.0])
    assert means[1] == exactly([6.0, 16 / 9])
    assert means[2] == exactly([6.0, 196 / 45])


def test_fedgs_leaves_what_points_ahead():
    """cos = 10/(√5 · 5) = 0.894 > 0: (4, 6) + ¼ (2, 1)."""
    theta, step = moved(METHODS["fedgs"], (2.0, 1.0), weight=0.25)
    assert theta == exactly([4.5, 6.25])
    assert step.projected == [False]
    assert step.cosines == exactly([0.8944272])


@pytest.mark.parametrize(("threshold", "expected"), [(0.89, [4.5, 6.25]), (0.90, [4.2, 5.85])])
def test_the_threshold_is_a_cosine(threshold, expected):
    """The same update, with cos = 0.894, on both sides of the threshold."""
    assert moved(Method(correction=OrthoDC(threshold)), (2.0, 1.0), weight=0.25)[0] == exactly(expected)


@pytest.mark.parametrize(
    ("threshold", "offset", "expected"),
    [
        # cos = 1 ≤ 1: v' = (6, 8) − 2 (3, 4) = 0
        (1.0, (6.0, 8.0), [4.0, 6.0]),
        # cos = −1 ≤ −1: v' = (−6, −8) + 2 (3, 4) = 0
        (-1.0, (-6.0, -8.0), [4.0, 6.0]),
        # cos = −0.6 (⟨v, d⟩ = −15, ‖v‖ = 5) ≤ −0.6: v' = (−5, 0) + 0.6 (3, 4) = (−3.2, 2.4)
        (-0.6, (-5.0, 0.0), [3.2, 6.6]),
    ],
)
def test_a_cosine_at_the_threshold_is_projected(threshold, offset, expected):
    theta, step = moved(Method(correction=OrthoDC(threshold)), offset, weight=0.25)
    assert step.projected == [True]
    assert theta == exactly(expected)


# --- DC-ASGD ------------------------------------------------------------------------------------------


def test_dcasgd_over_two_updates():
    """λ₀ = 2, m = 0.95, ε = 1e-7; Θ = (4, 6).

    First v = (0.2, −0.4), d = (0.5, −0.25):
      MeanSquare = 0.05 (0.04, 0.16) = (0.002, 0.008)
      λ = 2/√(MeanSquare + ε) = (44.720242, 22.360540)
      λ v² d = (44.720242 · 0.04 · 0.5, 22.360540 · 0.16 · −0.25) = (0.8944048, −0.8944216)
      v' = (−0.6944048, 0.4944216), Θ = (4, 6) + ½ v' = (3.6527976, 6.2472108)
    Then v = (−0.1, 0.3), from (3.75, 6.5), so d = (−0.0972024, −0.2527892):
      MeanSquare = 0.95 (0.002, 0.008) + 0.05 (0.01, 0.09) = (0.0024, 0.0121)
      λ = (40.823979, 18.181743)
      λ v² d = (40.823979 · 0.01 · −0.0972024, 18.181743 · 0.09 · −0.2527892)
             = (−0.0396819, −0.4136533)
      v' = (−0.0603181, 0.7136533), Θ = (3.6226385, 6.6040375)
    """
    method = METHODS["dcasgd"]
    state, step = absorb(method, server(), update((0.2, -0.4)), base=torch.tensor([3.5, 6.25]), weight=0.5)
    assert state.theta.tolist() == exactly([3.6527976, 6.2472108])
    assert state.memory["correction"]["mean_square"].tolist() == exactly([0.002, 0.008])
    assert step.end_norm == exactly(0.8524381)  # √(0.6944048² + 0.4944216²)
    assert step.update_norm == exactly(0.4472136)
    state, _ = absorb(method, state, update((-0.1, 0.3)), base=torch.tensor([3.75, 6.5]), weight=0.5)
    assert state.theta.tolist() == exactly([3.6226385, 6.6040375])
    assert state.memory["correction"]["mean_square"].tolist() == exactly([0.0024, 0.0121])


def test_dcasgd_with_a_constant_strength():
    """λ = 0.5: v' = (0.2, −0.4) − 0.5 (0.04, 0.16) (3, 4) = (0.14, −0.72); Θ = (4, 6) + ½ v'."""
    method = Method(correction=DelayCompensation(0.5, adaptive=False))
    assert moved(method, (0.2, -0.4), weight=0.5)[0] == exactly([4.07, 5.64])


# --- FedBuff ------------------------------------------------------------------------------------------


def test_fedbuff_moves_once_for_ten_updates():
    """Offsets (i, 1) of weight 0.1 for i = 0 … 9 sum to 0.1 (45, 10) = (4.5, 1)."""
    state = server()
    for i in range(10):
        assert state.theta.tolist() == [4.0, 6.0]
        assert state.version == 5
        state, _ = absorb(
            METHODS["fedbuff"], state, update((float(i), 1.0)), base=torch.tensor([1.0, 2.0]), weight=0.1
        )
    assert state.theta.tolist() == exactly([8.5, 7.0])
    assert (state.version, state.updates, dict(state.memory)) == (6, 30, {})


def test_fedbuff_as_published_averages_over_its_size():
    """K = 2, 1/√(1 + staleness): ½ (½ (2, −4) + 1 (6, 8)) = (3.5, 3); staleness 3, then 0."""
    method = replace(METHODS["fedbuff"], buffer=Buffer(2), weighting="none", staleness=Polynomial(0.5))
    state, first = absorb(method, server(), update((2.0, -4.0)), base=torch.tensor([1.0, 2.0]), weight=0.9)
    state, second = absorb(method, state, update((6.0, 8.0), version=5), base=state.theta, weight=0.1)
    assert (first.fraction, second.fraction) == exactly((0.25, 0.5))
    assert state.theta.tolist() == exactly([7.5, 9.0])


def test_what_a_buffer_still_holds_can_be_flushed():
    """Two of ten: (4, 6) + 0.1 (2, −4) + 0.3 (1, 1) = (4.5, 5.9)."""
    state = server()
    for offset, weight in (((2.0, -4.0), 0.1), ((1.0, 1.0), 0.3)):
        state, _ = absorb(
            METHODS["fedbuff"], state, update(offset), base=torch.tensor([1.0, 2.0]), weight=weight
        )
    state = flush(METHODS["fedbuff"], state)
    assert state.theta.tolist() == exactly([4.5, 5.9])
    assert (state.version, dict(state.memory)) == (6, {})


# --- AsyncFedED ---------------------------------------------------------------------------------------


def test_asyncfeded_shortens_an_update_that_is_small_beside_the_drift():
    """S = 2.5/5; s = 0.5 · 0.25; (4, 6) + 0.125 (−2, 1.5)."""
    theta, step = moved(METHODS["asyncfeded"], (-2.0, 1.5), weight=0.25)
    assert step.penalty == exactly(0.5)
    assert theta == exactly([3.75, 6.1875])


def test_asyncfeded_lengthens_an_update_that_is_large_beside_the_drift():
    """S = 10/5; s = 2 · 0.25; (4, 6) + 0.5 (−8, 6)."""
    theta, step = moved(METHODS["asyncfeded"], (-8.0, 6.0), weight=0.25)
    assert step.penalty == exactly(2.0)
    assert theta == exactly([0.0, 9.0])


def test_asyncfeded_does_not_scale_while_it_warms_up():
    """The tenth update is the last one with S = 1: (4, 6) + 0.25 (−2, 1.5)."""
    theta, step = moved(METHODS["asyncfeded"], (-2.0, 1.5), weight=0.25, state=server(updates=9))
    assert step.penalty == 1.0
    assert theta == exactly([3.5, 6.375])
    _, step = moved(METHODS["asyncfeded"], (-2.0, 1.5), weight=0.25, state=server(updates=10))
    assert step.penalty == exactly(0.5)


def test_the_penalty_by_hand():
    assert Distance(1.0).scale(2.5, 5.0, 0) == 0.5
    assert Distance(0.5).scale(2.5, 5.0, 0) == 0.75  # 1 + ½ (½ − 1)
    assert Distance(0.5).scale(20.0, 5.0, 0) == 2.5  # 1 + ½ (4 − 1)
    assert Distance(1.0, highest=3.0).scale(20.0, 5.0, 0) == 3.0
    assert Distance(1.0, lowest=0.2).scale(0.5, 5.0, 0) == 0.2
    assert Distance(1.0).scale(2.5, 0.0, 0) == 1.0


def test_in_the_warm_up_the_penalty_is_that_of_the_usual_drift():
    """γ counts as γ̄ = 4: S = 1/4, with half the decay 1 + ½ (¼ − 1) = 0.625; afterwards S = 2.5/5."""
    staler = replace(METHODS["asyncfeded"], adaptive_epochs=AdaptiveEpochs(4.0))
    early, late = server(updates=9), server(updates=10)
    theta, step = moved(staler, (-2.0, 1.5), weight=0.25, state=early)
    assert step.penalty == exactly(0.25)
    assert theta == exactly([4.0 - 2.0 / 16.0, 6.0 + 1.5 / 16.0])
    assert moved(staler, (-2.0, 1.5), weight=0.25, state=late)[1].penalty == exactly(0.5)
    half = replace(staler, penalty=Distance(0.5, warmup=10))
    assert moved(half, (-2.0, 1.5), weight=0.25, state=early)[1].penalty == exactly(0.625)


def test_asyncfeded_adapts_the_epochs():
    """γ̄ = 1, κ = 1, K = 5."""
    epochs = METHODS["asyncfeded"].adaptive_epochs
    assert epochs.next(5, 0.0, 2.0, updates=20) == 6  # γ = 0: + ⌊1⌋
    assert epochs.next(5, 1.0, 2.0, updates=20) == 5  # γ = ½: + ⌊0.5⌋
    assert epochs.next(5, 2.2, 2.0, updates=20) == 4  # γ = 1.1: + ⌊−0.1⌋
    assert epochs.next(5, 5.0, 2.0, updates=20) == 3  # γ = 2.5: + ⌊−1.5⌋
    assert epochs.next(5, 100.0, 2.0, updates=20) == 1  # γ = 50: never below 1
    assert epochs.next(10, 0.0, 2.0, updates=20) == 10  # never above 10
    assert epochs.next(5, 100.0, 2.0, updates=9) == 5  # warming up: γ counts as γ̄


def test_the_gain_and_target_of_adaptive_epochs():
    """γ̄ = 3, κ = 0.5, γ = 1: K + ⌊(3 − 1) · 0.5⌋ = K + 1; γ = 6: K + ⌊−1.5⌋ = K − 2."""
    epochs = AdaptiveEpochs(3.0, gain=0.5, adapt_after=0)
    assert epochs.next(4, 2.0, 2.0, updates=0) == 5
    assert epochs.next(4, 12.0, 2.0, updates=0) == 2


def test_epochs_rounded_to_the_nearest_grow_at_the_papers_settings():
    """γ̄ = κ = 1: γ = 0.4 gives 0.6, rounded to 1, 0.5 gives 0.5, to 1, 0.6 gives 0.4, to 0, 1.6 gives −1."""
    epochs = AdaptiveEpochs(1.0, epoch_rounding="nearest", adapt_after=0)
    assert [epochs.next(5, ratio, 1.0, updates=0) for ratio in (0.4, 0.5, 0.6, 1.0, 1.6)] == [6, 6, 5, 5, 4]
    down = AdaptiveEpochs(1.0, adapt_after=0)
    assert [down.next(5, ratio, 1.0, updates=0) for ratio in (0.4, 0.5, 0.6, 1.0, 1.6)] == [5, 5, 5, 5, 4]


@given(
    st.integers(1, 10),
    st.integers(0, 2**32 - 1),
    st.integers(0, 20),
    st.floats(0.1, 3.0),
    st.floats(0.0, 5.0),
    st.booleans(),
)
def test_adaptive_epochs_agree_with_the_reference(epochs, seed, updates, target, gain, nearest):
    drift, offset = np.random.default_rng(seed).standard_normal((2, 3))
    rule = AdaptiveEpochs(target, gain=gain, epoch_rounding="nearest" if nearest else "down")
    lengths = float(np.linalg.norm(drift)), float(np.linalg.norm(offset))
    expected = next_epochs(epochs, drift, offset, updates, target, gain, nearest=nearest)
    assert rule.next(epochs, *lengths, updates) == expected


# --- AsyncBezier --------------------------------------------------------------------------------------
#
# In three dimensions, d = (3, 4, 0). In each case v'_1 has length 6, v'_2 has length 16, and they are
# orthogonal, so γ(½) − Θ = v'_1/2 + v'_2/4 has length √(3² + 4²) = 5, which is 5/16 = 0.3125 of ‖v'_2‖.
# ‖γ(t) − Θ‖² = 144 t² (1 − t)² + 256 t⁴ rises up to t = ½, so ½ is the smallest such t.

BASE, NOW = (1.0, 2.0, -1.0), (4.0, 6.0, -1.0)


@pytest.mark.parametrize(
    ("first", "last", "projected", "expected"),
    [
        # Both point back. ⟨v_1, d⟩ = 12.6 − 17.6 = −5, v'_1 = v_1 + 0.2 d = (4.8, −3.6, 0);
        # ⟨v_2, d⟩ = −25, v'_2 = v_2 + d = (0, 0, 16). The step is (2.4, −1.8, 0) + (0, 0, 4).
        ((4.2, -4.4, 0.0), (-3.0, -4.0, 16.0), [True, True], [6.4, 4.2, 3.0]),
        # v_1 as before; v_2 points ahead and stays. The step is (2.4, −1.8, 0) + (2.4, 3.2, 0).
        ((4.2, -4.4, 0.0), (9.6, 12.8, 0.0), [True, False], [8.8, 7.4, -1.0]),
        # v_1 points ahead and stays; v'_2 = (0, 0, 16). The step is (1.8, 2.4, 0) + (0, 0, 4).
        ((3.6, 4.8, 0.0), (-3.0, -4.0, 16.0), [False, True], [5.8, 8.4, 3.0]),
        # Both point ahead: ⟨v_1, d⟩ = 18, ⟨v_2, d⟩ = 64. The step is (3, 0, 0) + (0, 4, 0).
        ((6.0, 0.0, 0.0), (0.0, 16.0, 0.0), [False, False], [7.0, 10.0, -1.0]),
    ],
)
def test_asyncbezier_steps_along_the_curve(first, last, projected, expected):
    theta, step = moved(METHODS["asyncbezier"], first, last, weight=0.3125, state=server(NOW), base=BASE)
    assert step.projected == projected
    assert step.t == exactly(0.5)
    assert step.end_norm == exactly(16.0)
    assert step.step_norm == exactly(5.0)
    assert step.penalty == 1.0
    assert theta == exactly(expected)


def test_asyncbezier_ed_scales_the_step_by_distance():
    """S = ‖v'_2‖/‖d‖ = 16/5 = 3.2, so a weight of 0.09765625 gives s = 0.3125 and t* = ½ again."""
    theta, step = moved(
        METHODS["asyncbezier-ed"],
        (4.2, -4.4, 0.0),
        (-3.0, -4.0, 16.0),
        weight=0.09765625,
        state=server(NOW),
        base=BASE,
    )
    assert step.penalty == exactly(3.2)
    assert step.fraction == exactly(0.3125)
    assert step.t == exactly(0.5)
    assert theta == exactly([6.4, 4.2, 3.0])


def test_asyncbezier_on_a_straight_curve():
    """Without drift, v_1 = (1, 0), v_2 = (4, 0): γ(½) = ½ + 1 = 1.5 = 0.375 · 4; (4, 6) + (1.5, 0)."""
    theta, step = moved(METHODS["asyncbezier"], (1.0, 0.0), (4.0, 0.0), weight=0.375, version=5)
    assert step.t == exactly(0.5)
    assert step.cosines == [0.0, 0.0]
    assert theta == exactly([5.5, 6.0])


def test_a_step_by_the_curves_own_parameter():
    """γ(½) − Θ = v_1/2 + v_2/4 = (3, 0, 0) + (0, 4, 0), though its chord is 5/16 of ‖v_2‖ and not ½."""
    method = Method(embedding=Bezier(2, step="parameter"))
    theta, step = moved(method, (6.0, 0.0, 0.0), (0.0, 16.0, 0.0), weight=0.5, state=server(NOW), base=BASE)
    assert step.t == step.fraction == 0.5
    assert step.step_norm == exactly(5.0)
    assert theta == exactly([7.0, 10.0, -1.0])


@pytest.mark.parametrize(
    ("last", "projected", "expected"),
    [
        # ⟨v_1, d⟩ = −75 and ⟨v_2, d⟩ = 25, together −50 over 2 · 25: both lose −d.
        # γ(½) − Θ = (−6, −8, 6)/2 + (6, 8, 16)/4 = (−1.5, −2, 7).
        ((3.0, 4.0, 16.0), True, [2.5, 4.0, 6.0]),
        # ⟨v_2, d⟩ = 100: together ahead, and v_1 stays though it points back on its own.
        # γ(½) − Θ = (−9, −12, 6)/2 + (12, 16, 0)/4 = (−1.5, −2, 3).
        ((12.0, 16.0, 0.0), False, [2.5, 4.0, 2.0]),
    ],
)
def test_orthodc_over_the_free_points_together(last, projected, expected):
    method = Method(embedding=Bezier(2, step="parameter"), correction=OrthoDC(0.0, jointly=True))
    theta, step = moved(method, (-9.0, -12.0, 6.0), last, weight=0.5, state=server(NOW), base=BASE)
    assert step.projected == [projected, projected]
    assert theta == exactly(expected)


def test_the_joint_threshold_is_a_cosine_of_the_long_vectors():
    """⟨(v_1, v_2), (d, d)⟩ = −50, over ‖(v_1, v_2)‖ = √(261 + 281) = 23.28 and ‖(d, d)‖ = √50: −0.3037."""
    for threshold, projected in ((-0.3, True), (-0.31, False)):
        method = Method(embedding=Bezier(2), correction=OrthoDC(threshold, jointly=True))
        _, step = moved(
            method, (-9.0, -12.0, 6.0), (3.0, 4.0, 16.0), weight=0.5, state=server(NOW), base=BASE
        )
        assert step.projected == [projected, projected]


def test_a_cubic_curve_with_position_correction():
    """Θ^τ − Θ^t = (3, 4); the free points lie at Θ^τ + (8, 0), (0, 0), (0, 64) after v − d.

    γ(½) − Θ = 3/8 (8, 0) + 3/8 (0, 0) + 1/8 (0, 64) = (3, 8), of length √73 = 8.5440037, which is
    0.13350006 of 64. Up to t = ½, ‖γ − Θ‖² = 576 t² (1 − t)⁴ + 4096 t⁶ passes 73 only there: its
    first part is largest at t = 1/3, with 576 · 16/729 = 12.64, and the second is at most 64.
    """
    method = Method(embedding=Bezier(3), correction=Position())
    theta, step = moved(method, (11.0, 4.0), (3.0, 4.0), (3.0, 68.0), weight=0.13350006)
    assert step.t == pytest.approx(0.5, abs=1e-6)
    assert theta == pytest.approx([7.0, 14.0], abs=1e-4)


@pytest.mark.parametrize("factor", [-0.3, -0.7, -1.0, -2.0, -3.0])
@pytest.mark.parametrize("drift", [(1.0, 1.0), (1.0, 2.0), (0.1, 0.7)])
def test_a_threshold_of_minus_1_projects_what_points_straight_back(drift, factor):
    """Whatever the rounding: nothing of it is left."""
    method = replace(METHODS["fedgs"], correction=OrthoDC(-1.0))
    state, offset = server(theta=drift), tuple(factor * d for d in drift)
    theta, step = moved(method, offset, weight=1.0, state=state, base=(0.0, 0.0))
    assert step.projected == [True]
    assert theta == pytest.approx(list(drift), abs=1e-6)


# --- FedAvg -------------------------------------------------------------------------------------------


ROUND = [((2.0, 0.0), 0.5), ((0.0, 10.0), 0.3), ((-5.0, 5.0), 0.2)]


def fedavg_round(clients, **changes):
    method = replace(METHODS["fedavg"], **changes)
    state = server()
    for offset, weight in clients:
        state, _ = absorb(method, state, update(offset, version=5), base=state.theta, weight=weight)
        assert state.theta.tolist() == [4.0, 6.0]
        assert state.version == 5
    state = flush(method, state)
    assert (state.version, dict(state.memory)) == (6, {})
    return state.theta.tolist()


def test_fedavg_moves_by_the_weighted_mean_of_a_round():
    """0.5 (2, 0) + 0.3 (0, 10) + 0.2 (−5, 5) = (1 − 1, 3 + 1)."""
    assert fedavg_round(ROUND) == exactly([4.0, 10.0])


def test_fedavg_without_one_client_is_the_mean_of_the_others():
    """(0.5 (2, 0) + 0.3 (0, 10)) / 0.8 = (1.25, 3.75)."""
    assert fedavg_round(ROUND[:2]) == exactly([5.25, 9.75])


def test_fedavg_without_weights_is_the_plain_mean():
    """((2, 0) + (0, 10) + (−5, 5)) / 3 = (−1, 5)."""
    assert fedavg_round(ROUND, weighting="none") == exactly([3.0, 11.0])


def test_fedavg_may_go_beyond_the_mean():
    """η_g = 2: twice 0.8 (1, 0) + 0.2 (0, 1) = (1.6, 0.4); no client's part is cut on its own."""
    assert fedavg_round([((1.0, 0.0), 0.8), ((0.0, 1.0), 0.2)], global_lr=2.0) == exactly([5.6, 6.4])


# --- averaging ----------------------------------------------------------------------------------------


def test_averaging_by_hand():
    """From version 7 on every second model: 7 and 9, not 5, 6, 8.

    Each update adds (1, 2): the models are (6, 10) at version 7 and (8, 14) at 9, their mean (7, 12).
    """
    method = replace(METHODS["asyncsgd"], averaging=Averaging(7, 2))
    state, base = server(), torch.tensor([1.0, 2.0])
    for _ in range(5):
        state, _ = absorb(method, state, update((2.0, 4.0)), base=base, weight=0.5)
    assert state.version == 10
    assert state.theta.tolist() == exactly([9.0, 16.0])
    assert state.returned()[0].tolist() == exactly([7.0, 12.0])


# --- the reference ------------------------------------------------------------------------------------

SIZE = 100_000

PLAIN = {
    "fedasync": {"correction": "position"},
    "asyncsgd": {"correction": "tangent"},
    "fedortho": {"correction": "orthodc", "threshold": 1.0},
    "orthomean": {
        "correction": "orthodc",
        "threshold": 1.0,
        "decay": 1.0,
        "tail_power": 7,
        "global_lr": 3.0,
    },
    "fedgs": {"correction": "orthodc", "threshold": 0.0},
    "dcasgd": {"correction": "delay-compensation", "strength": 2.0, "momentum": 0.95, "epsilon": 1e-7},
    "fedbuff": {"correction": "tangent", "buffer_size": 10},
    "asyncfeded": {"correction": "tangent", "decay": 1.0, "warmup": 10},
    "asyncbezier": {"correction": "orthodc", "threshold": 0.0},
    "asyncbezier-ed": {"correction": "orthodc", "threshold": 0.0, "decay": 1.0},
    "fedavg": {"correction": "tangent", "barrier": True},
}
"""The methods in plain words, as the design's table has them."""

COMPOSED = {
    "fedasync-polynomial": (
        Method(correction=Position(), weighting="none", global_lr=0.5, staleness=Polynomial(0.5)),
        {
            "correction": "position",
            "weighting": "none",
            "global_lr": 0.5,
            "staleness": lambda n: (1 + n) ** -0.5,
        },
    ),
    "fedasync-hinge": (
        Method(correction=Position(), weighting="none", global_lr=0.5, staleness=Hinge(0.5, 2)),
        {
            "correction": "position",
            "weighting": "none",
            "global_lr": 0.5,
            "staleness": lambda n: 1.0 if n <= 2 else 1.0 / (0.5 * (n - 2) + 1.0),
        },
    ),
    "fedbuff-published": (
        Method(buffer=Buffer(3), weighting="none", global_lr=1.5),
        {"buffer_size": 3, "weighting": "none", "global_lr": 1.5},
    ),
    "asyncfeded-half": (
        Method(penalty=Distance(0.5, warmup=2, highest=2.0)),
        {"decay": 0.5, "warmup": 2, "highest": 2.0},
    ),
    "asyncfeded-usual-drift-3": (
        Method(penalty=Distance(0.5, warmup=2), adaptive_epochs=AdaptiveEpochs(3.0)),
        {"decay": 0.5, "warmup": 2, "target": 3.0},
    ),
    "dcasgd-constant": (
        Method(correction=DelayCompensation(0.5, adaptive=False)),
        {"correction": "delay-compensation", "strength": 0.5, "adaptive": False},
    ),
    "cubic-position": (
        Method(embedding=Bezier(3), correction=Position()),
        {"correction": "position"},
    ),
    "quartic-compensated": (
        Method(embedding=Bezier(4), correction=DelayCompensation(1.0, mean_square_momentum=0.5)),
        {"correction": "delay-compensation", "strength": 1.0, "momentum": 0.5},
    ),
    "quadratic-buffered-averaged": (
        Method(embedding=Bezier(2), correction=OrthoDC(0.3), buffer=Buffer(2), averaging=Averaging(3, 2)),
        {
            "correction": "orthodc",
            "threshold": 0.3,
            "buffer_size": 2,
            "average_from": 3,
            "average_every": 2,
        },
    ),
    "cubic-joint": (
        Method(embedding=Bezier(3), correction=OrthoDC(0.1, jointly=True)),
        {"correction": "orthodc", "threshold": 0.1, "jointly": True},
    ),
    "quadratic-by-parameter": (
        Method(embedding=Bezier(2, step="parameter"), correction=OrthoDC(0.0), global_lr=2.0),
        {"correction": "orthodc", "step": "parameter", "global_lr": 2.0},
    ),
    "tangent-averaged": (
        Method(correction=Tangent(), averaging=Averaging(4)),
        {"correction": "tangent", "average_from": 4},
    ),
}

SINCE_2021 = {
    *("fadas", "port", "fedfa", "ca2fl", "ace", "aced"),
    *("delay-adaptive", "rescaled", "ringmaster", "generalized-asyncsgd", "fedcompass"),
}
"""Tested in tests/test_state_of_the_art.py, test_caches.py and test_delays.py."""

BOTH = {name: (METHODS[name], plain) for name, plain in PLAIN.items()} | COMPOSED


def test_every_method_has_its_plain_words():
    with_references_of_their_own = {"asyncdisc", "ringleader", *SINCE_2021}  # test_surfaces, test_ringleader
    assert set(PLAIN) | with_references_of_their_own == set(METHODS)


def offsets_beside_a_trend(random, points, trend):
    """Return control points some of which follow a common trend, and some of which oppose it."""
    along = random.uniform(-1.5, 1.5, size=(points, 1)) * trend
    return (along + 0.05 * random.standard_normal((points, len(trend)))).astype(np.float32)


@pytest.mark.parametrize("name", BOTH)
def test_a_method_agrees_with_the_reference_on_long_vectors(name):
    method, plain = BOTH[name]
    random = np.random.default_rng(11)
    start, trend = 0.05 * random.standard_normal((2, SIZE)).astype(np.float32)
    state = ServerState(theta=torch.from_numpy(start.copy()))
    versions = [state.theta]
    slow = ReferenceServer(start.astype(np.float64), **plain)
    seen = set()
    for number in range(1, 13):
        offsets = offsets_beside_a_trend(random, method.embedding.points, trend)
        version = max(0, state.version - int(random.integers(0, 6)))
        weight = float(random.uniform(0.1, 0.5))
        received = Update(0, version, torch.from_numpy(offsets), Statistics.none())
        state, step = absorb(method, state, received, base=versions[version], weight=weight)
        slow.absorb(offsets.astype(np.float64), version, weight)
        assert step.penalty == pytest.approx(slow.penalty, rel=1e-5)
        assert step.fraction == pytest.approx(slow.fraction, rel=1e-5)
        assert step.t == pytest.approx(slow.t, rel=1e-4)
        seen.add(step.staleness)
        if method.synchronous and number % 4 == 0:
            state = flush(method, state)
            slow.flush()
        if state.version == len(versions):
            versions.append(state.theta)
    state = flush(method, state)
    slow.flush()
    assert len(seen) > 1
    assert state.version == slow.version
    for fast, exact in ((state.theta, slow.theta), (state.returned()[0], slow.returned())):
        error = np.linalg.norm(fast.double().numpy() - exact)
        assert error < 1e-5 * np.linalg.norm(exact - start)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (FixedRate(), [0.5, 0.75, 0.875, 0.9375]),
        # Factors 1, 1/2, 1/3, 1/4 of η_g w = 1/2: what is left is 1/2, then times 3/4, 5/6, 7/8.
        (DecayingRate(1, 1.0), [0.5, 0.625, 0.6875, 0.7265625]),
        # Factors 1, 0, 1, 0.
        (CyclicRate(2, 0.0), [0.5, 0.5, 0.75, 0.75]),
    ],
)
def test_schedules_of_the_global_rate_by_hand(schedule, expected):
    """Every update leads to 1, with a step of half the way times the schedule's factor."""
    method, state = Method(rate_schedule=schedule, global_lr=2.0), ServerState(torch.zeros(1))
    for place in expected:
        update = Update(0, state.version, (1.0 - state.theta)[None])
        state, _ = absorb(method, state, update, base=state.theta, weight=0.25)
        assert state.theta.item() == pytest.approx(place)


def test_a_cycle_ends_where_models_are_averaged():
    """With cycles of 3, versions 3 and 6 are made by the lowest rate, and are those averaged."""
    method = Method(rate_schedule=CyclicRate(3, 0.1), averaging=Averaging(3, 3), global_lr=1.0)
    state, models, fractions = ServerState(torch.zeros(1)), {}, {}
    for _ in range(6):
        update = Update(0, state.version, torch.ones(1, 1))
        state, step = absorb(method, state, update, base=state.theta, weight=0.5)
        models[state.version], fractions[state.version] = state.theta.item(), step.fraction
    assert [fractions[version] for version in (3, 6)] == pytest.approx([0.05, 0.05])
    assert min(fractions.values()) == pytest.approx(0.05)
    assert state.returned()[0].item() == pytest.approx((models[3] + models[6]) / 2)


def test_a_zero_offset_is_not_projected():
    """It has no direction, so none that conflicts with the drift."""
    state = ServerState(torch.tensor([1.0, 0.0]), version=1)
    offsets = torch.tensor([[0.0, 0.0], [-1.0, 1.0]])
    method = Method(embedding=Bezier(2), correction=OrthoDC(0.0))
    _, step = absorb(method, state, Update(0, 0, offsets), base=torch.zeros(2), weight=0.5)
    assert step.projected == [False, True]


def test_a_zero_offset_is_projected_as_a_part_of_the_long_vector():
    """(0, 0, −1, 1) has −1/2 of (1, 0, 1, 0) in it: what is left is (1/2, 0, −1/2, 1)."""
    correction, rows = OrthoDC(0.0, jointly=True), np.array([[0.0, 0.0], [-1.0, 1.0], [1.0, 0.0]])
    gram = rows @ rows.T
    assert correction.projected(gram) == [True, True]
    np.testing.assert_allclose(correction.coefficients(gram) @ rows, [[0.5, 0.0], [-0.5, 1.0]])
    nothing = np.diag([0.0, 0.0, 1.0])
    assert correction.projected(nothing) == [False, False]
