"""Where one rule must become another: limits and special cases."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncmanifold import (
    METHODS,
    Averaging,
    Bezier,
    Buffer,
    Constant,
    Correction,
    DelayCompensation,
    Distance,
    Hinge,
    Method,
    OrthoDC,
    Point,
    Polynomial,
    Position,
    ServerState,
    Tangent,
    Update,
    absorb,
)
from asyncmanifold.server.penalties import Penalty
from asyncmanifold.server.step import flush
from asyncmanifold.vectors import Statistics

seeds = st.integers(0, 2**32 - 1)
stalenesses = st.integers(0, 4)
few = settings(max_examples=15)

CORRECTIONS = [Position(), Tangent(), OrthoDC(0.0), OrthoDC(1.0), DelayCompensation()]


def vector(random, *shape):
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32))


def run(method, seed, *, staleness=2, updates=4, size=40):
    """Return the final state and all steps of a few random updates, each ``staleness`` versions old."""
    random = np.random.default_rng(seed)
    statistics = Statistics(vector(random, 3), torch.tensor([0]))
    state = ServerState(vector(random, size), statistics, version=10, updates=20)
    steps = []
    for number in range(updates):
        base = state.theta - vector(random, size) if staleness else state.theta
        received = Update(
            client=number,
            version=state.version - staleness,
            offsets=vector(random, method.embedding.points, size),
            statistics=Statistics(vector(random, 3), torch.tensor([number])),
        )
        state, step = absorb(method, state, received, base=base, weight=float(random.uniform(0.1, 0.6)))
        steps.append(step)
    return flush(method, state), steps


def assert_same_bits(first, second, seed, **options):
    """Both methods end at the same model, the same statistics, and say the same about every step."""
    state, steps = run(first, seed, **options)
    other, other_steps = run(second, seed, **options)
    assert torch.equal(state.theta, other.theta)
    assert torch.equal(state.statistics.floats, other.statistics.floats)
    assert torch.equal(state.statistics.integers, other.statistics.integers)
    assert steps == other_steps


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].embedding == Point()])
@few
@given(seed=seeds, staleness=stalenesses)
def test_a_curve_of_degree_one_is_a_point(name, seed, staleness):
    method = METHODS[name]
    assert_same_bits(replace(method, embedding=Bezier(1)), method, seed, staleness=staleness)


@pytest.mark.parametrize("correction", CORRECTIONS, ids=str)
@pytest.mark.parametrize("embedding", [Point(), Bezier(2)], ids=str)
@few
@given(seed=seeds, staleness=stalenesses)
def test_a_buffer_of_one_is_no_buffer(correction, embedding, seed, staleness):
    method = Method(embedding=embedding, correction=correction)
    buffered = replace(method, buffer=Buffer(1))
    assert_same_bits(buffered, method, seed, staleness=staleness)
    assert_same_bits(
        replace(buffered, weighting="none"),
        replace(method, weighting="none"),
        seed,
        staleness=staleness,
    )


@pytest.mark.parametrize("embedding", [Point(), Bezier(3)], ids=str)
@few
@given(seed=seeds, staleness=stalenesses)
def test_a_decay_of_nothing_is_no_penalty(embedding, seed, staleness):
    method = Method(embedding=embedding, correction=OrthoDC(0.0), penalty=Penalty())
    assert_same_bits(replace(method, penalty=Distance(0.0)), method, seed, staleness=staleness)


@few
@given(seeds, stalenesses)
def test_a_penalty_that_is_warming_up_is_no_penalty(seed, staleness):
    method = Method(penalty=Penalty())
    assert_same_bits(replace(method, penalty=Distance(1.0, warmup=100)), method, seed, staleness=staleness)


@pytest.mark.parametrize("limit", [Polynomial(0.0), Hinge(3.0, 4), Hinge(10.0, 100)], ids=str)
@few
@given(seed=seeds, staleness=stalenesses)
def test_a_staleness_function_at_its_limit_is_constant(limit, seed, staleness):
    method = Method(correction=Position(), staleness=Constant())
    assert_same_bits(replace(method, staleness=limit), method, seed, staleness=staleness)


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("embedding", [Point(), Bezier(2)], ids=str)
@few
@given(seed=seeds, staleness=stalenesses)
def test_delay_compensation_of_no_strength_is_tangent(adaptive, embedding, seed, staleness):
    method = Method(embedding=embedding, correction=Tangent())
    compensated = replace(method, correction=DelayCompensation(0.0, adaptive=adaptive))
    assert_same_bits(compensated, method, seed, staleness=staleness)


@pytest.mark.parametrize("correction", CORRECTIONS, ids=str)
@pytest.mark.parametrize("embedding", [Point(), Bezier(2), Bezier(3)], ids=str)
@few
@given(seed=seeds)
def test_without_drift_every_correction_is_the_identity(correction, embedding, seed):
    method = Method(embedding=embedding, correction=correction)
    state, steps = run(method, seed, staleness=0)
    tangent, tangent_steps = run(replace(method, correction=Tangent()), seed, staleness=0)
    assert torch.equal(state.theta, tangent.theta)
    assert [step.t for step in steps] == [step.t for step in tangent_steps]
    assert not any(any(step.projected) for step in steps)


@few
@given(seeds)
def test_a_base_that_equals_the_model_is_no_drift(seed):
    """An old version that happens to have the same numbers corrects nothing either."""
    random = np.random.default_rng(seed)
    state = ServerState(vector(random, 20), version=3)
    offsets = vector(random, 2, 20)
    for method in (METHODS["asyncbezier"], METHODS["asyncbezier-ed"]):
        models = [
            absorb(
                method,
                state,
                Update(0, version, offsets, state.statistics),
                base=state.theta.clone(),
                weight=0.4,
            )[0].theta
            for version in (1, 3)
        ]
        assert torch.equal(*models)


# --- OrthoDC ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class After(Correction):
    """First one correction, then the part of the result along the drift is taken away."""

    first: Correction

    def coefficients(self, gram):
        matrix = self.first.coefficients(gram)
        along = matrix @ gram[:, -1]  # ⟨v'_k, d⟩
        matrix[:, -1] -= along / gram[-1, -1]
        return matrix


@pytest.mark.parametrize("embedding", [Point(), Bezier(2), Bezier(4)], ids=str)
@few
@given(seed=seeds, staleness=st.integers(1, 4))
def test_what_is_always_projected_does_not_depend_on_position_or_tangent(embedding, seed, staleness):
    """v and v − d differ along the drift alone: both leave the same, and it is OrthoDC(1)."""
    models, places = [], []
    for correction in (OrthoDC(1.0), After(Position()), After(Tangent())):
        method = Method(embedding=embedding, correction=correction)
        state, steps = run(method, seed, staleness=staleness, updates=1)
        models.append(state.theta)
        places.append(steps[0].t)
    for model, place in zip(models[1:], places[1:], strict=True):
        torch.testing.assert_close(model, models[0], rtol=1e-5, atol=1e-5)
        assert place == pytest.approx(places[0], abs=1e-4)


@few
@given(seed=seeds, threshold=st.floats(-1.0, 1.0), staleness=stalenesses)
def test_one_free_point_is_projected_jointly_as_alone(seed, threshold, staleness):
    alone, jointly = (OrthoDC(threshold, jointly=joint) for joint in (False, True))
    assert_same_bits(Method(correction=jointly), Method(correction=alone), seed, staleness=staleness)


@few
@given(seed=seeds, staleness=stalenesses)
def test_a_straight_line_is_the_same_by_chord_and_by_parameter(seed, staleness):
    by_chord, by_parameter = (Method(embedding=Bezier(1, step=step)) for step in ("chord", "parameter"))
    assert_same_bits(by_parameter, by_chord, seed, staleness=staleness)


@few
@given(seeds, st.integers(1, 4))
def test_always_projecting_leaves_a_step_across_the_drift(seed, staleness):
    random = np.random.default_rng(seed)
    state = ServerState(vector(random, 30), version=5)
    drift = vector(random, 30)
    received = Update(0, 5 - staleness, vector(random, 1, 30), state.statistics)
    after, step = absorb(METHODS["fedortho"], state, received, base=state.theta - drift, weight=1.0)
    cosine = torch.nn.functional.cosine_similarity(after.theta - state.theta, drift, dim=0)
    assert step.projected == [True]
    assert abs(cosine) < 1e-5


@pytest.mark.parametrize("embedding", [Point(), Bezier(2), Bezier(4)], ids=str)
@few
@given(seed=seeds, staleness=stalenesses)
def test_the_lowest_threshold_leaves_all_that_does_not_point_straight_back(embedding, seed, staleness):
    method = Method(embedding=embedding, correction=Tangent())
    lowest = replace(method, correction=OrthoDC(-1.0))
    assert_same_bits(lowest, method, seed, staleness=staleness)


@few
@given(seeds, st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
def test_a_higher_threshold_projects_whatever_a_lower_one_does(seed, a, b):
    low, high = sorted((a, b))
    _, few = run(Method(embedding=Bezier(4), correction=OrthoDC(low)), seed, updates=1, size=3)
    _, many = run(Method(embedding=Bezier(4), correction=OrthoDC(high)), seed, updates=1, size=3)
    pairs = zip(few[0].projected, many[0].projected, strict=True)
    assert all(more for less, more in pairs if less)


# --- mixing and averaging -----------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [Constant(), Polynomial(0.5), Polynomial(2.0), Hinge(0.5, 1)], ids=str)
@pytest.mark.parametrize("buffer", [None, Buffer(3)])
def test_equal_staleness_mixes_equally_however_often_it_repeats(staleness, buffer):
    method = Method(weighting="none", global_lr=0.9, staleness=staleness, buffer=buffer)
    _, steps = run(method, seed=1, staleness=3, updates=20)
    assert {step.fraction for step in steps} == {steps[0].fraction}
    assert steps[0].fraction > 0.0


@pytest.mark.parametrize("name", METHODS)
@few
@given(seed=seeds)
def test_the_average_of_one_model_is_that_model(name, seed):
    """A run of one move, from version 10 to 11."""
    for averaging in (Averaging(11), Averaging(1, 5)):
        method = replace(METHODS[name], averaging=averaging)
        sizes = [getattr(method.buffer, name, 1) for name in ("buffer_size", "calibrated_size", "port_size")]
        updates = 4 if method.synchronous else max(sizes)
        state, _ = run(method, seed, updates=updates)
        assert state.version == 11
        assert state.memory["averaging"]["count"] == 1
        assert torch.equal(state.returned()[0], state.theta)
        assert torch.equal(state.returned()[1].floats, state.statistics.floats)


@few
@given(seeds)
def test_averaging_that_has_not_begun_returns_the_model(seed):
    state, _ = run(Method(averaging=Averaging(1_000)), seed)
    assert "averaging" not in state.memory
    assert state.returned()[0] is state.theta


@few
@given(seeds)
def test_averaging_does_not_change_the_run(seed):
    assert_same_bits(Method(averaging=Averaging(0)), Method(), seed)


@pytest.mark.parametrize("residual", [1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("threshold", [1.0, 0.99999])
def test_what_projection_leaves_is_exact_though_it_nearly_cancels(residual, threshold):
    """An interior control point that is almost the drift reversed: against double precision."""
    random = np.random.default_rng(5)
    base, drift, across, end = (random.standard_normal(5_000) for _ in range(4))
    theta = (base + 0.1 * drift).astype(np.float32)
    base = base.astype(np.float32)
    exact = theta.astype(np.float64) - base
    across -= across @ exact / (exact @ exact) * exact
    interior = (-exact + residual * np.linalg.norm(exact) / np.linalg.norm(across) * across).astype(
        np.float32
    )
    offsets = np.stack([interior, 0.01 * residual * end.astype(np.float32)])
    state = ServerState(torch.from_numpy(theta), version=1)
    update = Update(0, 0, torch.from_numpy(offsets))
    method = Method(embedding=Bezier(2, step="parameter"), correction=OrthoDC(threshold))
    after, step = absorb(method, state, update, base=torch.from_numpy(base), weight=0.5)
    left = offsets.astype(np.float64) - np.outer(offsets @ exact / (exact @ exact), exact)
    expected = 0.5 * left[0] + 0.25 * left[1]
    moved = after.theta.double().numpy() - theta
    assert step.step_norm == pytest.approx(np.linalg.norm(expected), rel=2e-3)
    assert np.linalg.norm(moved - expected) < 2e-3 * np.linalg.norm(expected) + 1e-7 * np.linalg.norm(theta)
