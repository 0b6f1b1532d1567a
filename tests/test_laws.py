"""What every server rule must keep: laws over all methods and all parts they are made of."""

from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncmanifold import (
    METHODS,
    AdaptiveEpochs,
    Averaging,
    Barrier,
    Bezier,
    Buffer,
    CalibratedBuffer,
    DelayAdaptive,
    DelayCompensation,
    Distance,
    EveryClient,
    ExponentialAveraging,
    Hinge,
    Method,
    OrthoDC,
    Patch,
    Point,
    Polynomial,
    Rejected,
    ServerAdam,
    ServerMomentum,
    ServerState,
    ServerYogi,
    SlidingWindow,
    SpeedRescaled,
    TailAveraging,
    Update,
    absorb,
)
from asyncmanifold.files import load_tree, save_tree
from asyncmanifold.server.adaptive_optimizers import SERVER_OPTIMIZERS
from asyncmanifold.server.corrections import CORRECTIONS
from asyncmanifold.server.delays import STALENESS
from asyncmanifold.server.methods import COMPARED
from asyncmanifold.server.penalties import PENALTIES, Penalty
from asyncmanifold.server.rates import RATE_SCHEDULES
from asyncmanifold.server.step import flush
from asyncmanifold.server.step_windows import BUFFERS
from asyncmanifold.session.packing import rebuild
from asyncmanifold.vectors import Statistics

PARTS = {
    "embedding": [Point(), *(Bezier(degree) for degree in range(1, 5)), Bezier(2, step="parameter")],
    "correction": [
        *(kind() for kind in CORRECTIONS.values()),
        OrthoDC(-1.0),
        OrthoDC(0.4),
        OrthoDC(1.0),
        OrthoDC(0.0, jointly=True),
        DelayCompensation(0.5, adaptive=False),
    ],
    "penalty": [
        Penalty(),
        *(kind() for kind in PENALTIES.values()),
        Distance(0.5, warmup=2, lowest=0.1, highest=2.0),
    ],
    "staleness": [*(kind() for kind in STALENESS.values()), Polynomial(2.0), Hinge(1.0, 1)],
    "buffer": [
        None,
        *(kind() for kind in BUFFERS.values()),
        Buffer(1),
        Buffer(3),
        CalibratedBuffer(calibrated_size=2),
    ],
    "server_optimizer": [None, *(kind() for kind in SERVER_OPTIMIZERS.values())],
    "averaging": [None, Averaging(0), Averaging(12, 2), ExponentialAveraging(3.0), TailAveraging()],
    "rate_schedule": [kind() for kind in RATE_SCHEDULES.values()],
    "weighting": ["examples", "none"],
    "global_lr": [1.0, 0.3, 4.0],
}
"""Every choice a method is made of; a new part of a registry is taken in by itself."""

choices = {key: st.sampled_from(parts) for key, parts in PARTS.items()}

SURFACES = {"embedding": [Patch(1, step="parameter")]}
"""Not drawn together with every other part, since a geodesic takes a hundred times as long as an update."""

DRAWN_WITH_OTHERS = [
    *(Buffer(), EveryClient(), CalibratedBuffer(), SlidingWindow()),
    *(ServerMomentum(), ServerAdam(), ServerYogi()),
    *(DelayAdaptive(), SpeedRescaled()),
]
"""Parts so much like another one that they need no rule of their own."""

RULES = {name: st.just(method) for name, method in METHODS.items()} | {
    f"{key}={part}": st.builds(Method, **(choices | {key: st.just(part)}))
    for some in (PARTS, SURFACES)
    for key in ("embedding", "correction", "penalty", "staleness", "buffer", "server_optimizer")
    for part in some.get(key, [])
    if part not in DRAWN_WITH_OTHERS
}
"""The named methods as they are, and each part together with any others."""

MADE_OF_PARTS = set(METHODS) - set(COMPARED)
"""Methods that are nothing but parts, and those are drawn or rules of their own."""

every_rule = pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in MADE_OF_PARTS], ids=str)
every_method = pytest.mark.parametrize("name", METHODS)

SHAPES = {
    "generic": lambda offsets, drift: offsets,
    "zero": lambda offsets, drift: 0.0 * offsets,
    "along the drift": lambda offsets, drift: np.outer(offsets[:, 0], drift),
    "straight back": lambda offsets, drift: np.tile(-drift, (len(offsets), 1)),
    "the drift itself": lambda offsets, drift: np.tile(drift, (len(offsets), 1)),
    "all points coincide": lambda offsets, drift: np.tile(offsets[-1], (len(offsets), 1)),
    "interior at the base": lambda offsets, drift: np.concatenate([0.0 * offsets[:-1], offsets[-1:]]),
    "end at the base": lambda offsets, drift: np.concatenate([offsets[:-1], 0.0 * offsets[-1:]]),
    "tiny": lambda offsets, drift: 1e-12 * offsets,
    "huge": lambda offsets, drift: 1e6 * offsets,
}


@dataclass
class Case:
    """A rule, a server in the middle of a run, and an update that arrives."""

    method: Method
    state: ServerState
    update: Update
    base: torch.Tensor
    weight: float

    def absorb(self):
        return absorb(self.method, self.state, self.update, base=self.base, weight=self.weight)


def floats(values):
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


@st.composite
def cases(draw, rule, shapes=tuple(SHAPES), history=True):
    """Draw a case; with history, the server has just absorbed up to three other updates."""
    method = draw(RULES[rule])
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([1, 2, 3, 17, 200]))
    buffer_sizes = draw(st.sampled_from([(0, 0), (3, 1), (2, 0)]))

    def make_update(theta, version, staleness, shape):
        drift = random.standard_normal(size) if staleness else np.zeros(size)
        offsets = SHAPES[shape](random.standard_normal((method.embedding.points, size)), drift)
        statistics = Statistics(
            floats(random.standard_normal(buffer_sizes[0])),
            torch.from_numpy(random.integers(-9, 9, buffer_sizes[1])),
        )
        base = theta - floats(drift) if staleness else theta
        return Update(0, version - staleness, floats(offsets), statistics), base

    state = ServerState(
        theta=floats(random.standard_normal(size)),
        statistics=Statistics(
            floats(random.standard_normal(buffer_sizes[0])), torch.zeros(buffer_sizes[1], dtype=torch.int64)
        ),
        version=10,
        updates=draw(st.sampled_from([0, 10, 25])),
    )
    for _ in range(draw(st.integers(0, 3)) if history else 0):
        update, base = make_update(state.theta, state.version, int(random.integers(0, 4)), "generic")
        state, _ = absorb(method, state, update, base=base, weight=0.2)
    staleness = draw(st.integers(0, 6))
    update, base = make_update(state.theta, state.version, staleness, draw(st.sampled_from(shapes)))
    return Case(method, state, update, base, weight=draw(st.floats(0.01, 1.0)))


def copied(value):
    """Return a deep copy of tensors in tuples and dataclasses."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, Statistics):
        return Statistics(*(tensor.clone() for tensor in value))
    if isinstance(value, dict):
        return {key: copied(entry) for key, entry in value.items()}
    if is_dataclass(value):
        return replace(value, **{field.name: copied(getattr(value, field.name)) for field in fields(value)})
    return value


def same(a, b):
    """Return whether two values are equal to the last bit, with equal types and shapes."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, Statistics):
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return a == b


def close(a, b, unit, tolerance=1e-4):
    return torch.linalg.vector_norm(a - b) <= tolerance * unit


# --- one update ---------------------------------------------------------------------------------------


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_an_update_leaves_its_inputs_as_they_are(rule, data):
    case = data.draw(cases(rule))
    state, update, base = copied(case.state), copied(case.update), case.base.clone()
    after, _ = case.absorb()
    flush(case.method, after)
    assert same(case.state, state)
    assert same(case.update, update)
    assert same(case.base, base)


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_the_model_keeps_its_form_and_stays_finite(rule, data):
    case = data.draw(cases(rule))
    after, step = case.absorb()
    for state in (after, flush(case.method, after)):
        for tensor in (state.theta, state.returned()[0]):
            assert tensor.shape == case.state.theta.shape
            assert tensor.dtype == torch.float32
            assert torch.isfinite(tensor).all()
        for statistics in (state.statistics, state.returned()[1]):
            assert [(t.shape, t.dtype) for t in statistics] == [
                (t.shape, t.dtype) for t in case.state.statistics
            ]
    assert step.fraction >= 0.0
    if case.method.buffer is None or not case.method.buffer.is_mean:  # a mean may be extrapolated
        assert step.fraction <= 1.0
        assert 0.0 <= step.t <= 1.0


def holds_steps(method, state):
    memory = state.memory.get("buffer", {})
    return method.buffer is not None and method.buffer.release(memory) is not None


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_the_version_counts_moves_and_updates_counts_updates(rule, data):
    case = data.draw(cases(rule))
    before, buffer = case.state, case.method.buffer
    after, step = case.absorb()
    held = 1 + before.memory.get("buffer", {}).get("count", 0)
    sizes = [getattr(buffer, name, 1) for name in ("buffer_size", "calibrated_size", "port_size")]
    if not case.method.synchronous and held >= max(sizes):
        assert after.version == before.version + 1
        assert not holds_steps(case.method, after)
    else:
        assert after.version == before.version
        assert after.memory["buffer"]["count"] == held
        assert after.theta is before.theta
        assert same(after.statistics, before.statistics)
    assert after.updates == before.updates + 1
    assert (step.version, step.base_version) == (after.version, case.update.version)
    assert step.staleness == before.version - case.update.version


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_a_flush_moves_once_if_anything_is_held(rule, data):
    case = data.draw(cases(rule))
    after, _ = case.absorb()
    flushed = flush(case.method, after)
    assert flushed.version == after.version + holds_steps(case.method, after)
    assert flushed.updates == after.updates
    assert not holds_steps(case.method, flushed)
    assert same(flush(case.method, flushed), flushed)


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_the_same_update_gives_the_same_bits(rule, data):
    case = data.draw(cases(rule))
    spare = torch.full_like(case.state.theta, torch.nan)
    first, step = case.absorb()
    second, step_again = absorb(
        case.method, case.state, case.update, base=case.base, weight=case.weight, out=spare
    )
    assert same(first, second)
    assert step == step_again
    assert second.theta is (case.state.theta if second.version == case.state.version else spare)


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_no_offset_and_no_drift_is_a_fixed_point(rule, data):
    case = data.draw(cases(rule, shapes=["zero"], history=False))
    # An adaptive optimizer divides rounding errors by their own length, so there must be none.
    case.base = case.state.theta if case.method.optimizer_takes_rate else case.state.theta.clone()
    after, step = case.absorb()
    assert torch.equal(flush(case.method, after).theta, case.state.theta)
    assert step.step_norm == step.drift_norm == step.update_norm == 0.0


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_a_step_has_the_length_that_it_says(rule, data):
    """‖γ(t*) − Θ‖ = s ‖v'_n‖, measured on the model itself; or t* = s where the step is by parameter."""
    case = data.draw(cases(rule, shapes=["generic", "interior at the base"], history=False))
    case.method = replace(case.method, buffer=None, server_optimizer=None)
    after, step = case.absorb()
    moved = torch.linalg.vector_norm((after.theta - case.state.theta).double()).item()
    longest = torch.linalg.vector_norm(case.update.offsets.double(), dim=1).max().item() + step.drift_norm
    assume(step.end_norm > 0.05 * longest)  # what is left of a larger vector is known less exactly
    assert moved == pytest.approx(step.step_norm, rel=1e-4, abs=1e-5 * longest)
    if getattr(case.method.embedding, "step", "chord") == "parameter":
        assert step.t == step.fraction
        return
    assert step.step_norm == pytest.approx(step.fraction * step.end_norm, rel=1e-5, abs=1e-5 * longest)


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_permuting_the_coordinates_commutes_with_the_rule(rule, data):
    case = data.draw(cases(rule, shapes=["generic", "interior at the base"]))
    after, step = case.absorb()
    threshold = getattr(case.method.correction, "threshold", None)
    if threshold is not None:  # a rule may jump where a cosine meets the threshold
        assume(all(abs(cosine - threshold) > 1e-4 for cosine in step.cosines))
        assume(case.state.theta.numel() > 1)
    order = torch.from_numpy(np.random.default_rng(0).permutation(case.state.theta.numel()))
    permuted = Case(
        case.method,
        permuted_state(case.state, order),
        replace(case.update, offsets=case.update.offsets[:, order]),
        case.base[order],
        case.weight,
    )
    result, _ = permuted.absorb()
    unit = 1.0 + step.end_norm + step.drift_norm
    assert close(flush(case.method, result).theta, flush(case.method, after).theta[order], unit)


def permuted_memory(memory, order):
    """Permute every tensor of the model's size; model statistics stay as they are."""

    def permuted(name, value):
        if isinstance(value, dict):
            return permuted_memory(value, order)
        is_vector = isinstance(value, torch.Tensor) and name not in ("floats", "integers")
        return value[order] if is_vector else value

    return {name: permuted(name, value) for name, value in memory.items()}


def permuted_state(state, order):
    return replace(
        state,
        theta=state.theta[order],
        memory={stage: permuted_memory(memory, order) for stage, memory in state.memory.items()},
    )


@every_rule
@settings(max_examples=8)
@given(data=st.data())
def test_moving_the_origin_moves_the_model_with_it(rule, data):
    """Only differences of models count: Θ and its base shifted alike give a shifted result."""
    case = data.draw(cases(rule, shapes=["generic"], history=False))
    threshold = getattr(case.method.correction, "threshold", None)
    after, step = case.absorb()
    if threshold is not None:
        assume(all(abs(cosine - threshold) > 1e-4 for cosine in step.cosines))
        assume(case.state.theta.numel() > 1)
    shift = torch.linspace(-1.0, 1.0, case.state.theta.numel())
    shifted, _ = Case(
        case.method,
        replace(case.state, theta=case.state.theta + shift),
        case.update,
        case.base + shift,
        case.weight,
    ).absorb()
    unit = 1.0 + step.end_norm + step.drift_norm
    assert close(flush(case.method, shifted).theta, flush(case.method, after).theta + shift, unit)


# --- statistics of the model -----------------------------------------------------------------------------


@every_method
@settings(max_examples=20)
@given(data=st.data())
def test_float_buffers_mix_by_the_step_fraction_and_whole_numbers_are_copied(name, data):
    case = data.draw(cases(name, shapes=["generic"], history=False))
    case.method = replace(case.method, buffer=None)
    after, step = case.absorb()
    assume(step.fraction > 0.0)  # else the update has no part in the model, nor in its statistics
    expected = case.state.statistics.floats + step.fraction * (
        case.update.statistics.floats - case.state.statistics.floats
    )
    torch.testing.assert_close(after.statistics.floats, expected, rtol=1e-5, atol=1e-6)
    counted, known = case.update.statistics.integers, case.state.statistics.integers
    assert torch.equal(after.statistics.integers, torch.where(counted >= known, counted, known))


@pytest.mark.parametrize("buffer", [Buffer(4), Barrier()])
@pytest.mark.parametrize("global_lr", [0.5, 1.0, 8.0])
@given(seed=st.integers(0, 2**32 - 1))
def test_a_buffered_method_keeps_float_buffers_a_convex_combination(buffer, global_lr, seed):
    random = np.random.default_rng(seed)
    method = Method(buffer=buffer, global_lr=global_lr)
    received = floats(random.standard_normal((4, 6)))
    state = ServerState(
        theta=torch.zeros(3), statistics=Statistics(floats(random.standard_normal(6)), torch.tensor([0]))
    )
    lowest = torch.minimum(state.statistics.floats, received.amin(dim=0))
    highest = torch.maximum(state.statistics.floats, received.amax(dim=0))
    for number, values in enumerate(received):
        update = Update(number, 0, torch.ones(1, 3), Statistics(values, torch.tensor([number + 1])))
        state, _ = absorb(method, state, update, base=state.theta, weight=float(random.uniform(0.05, 0.5)))
    state = flush(method, state)
    assert (state.statistics.floats >= lowest - 1e-5).all()
    assert (state.statistics.floats <= highest + 1e-5).all()
    assert state.statistics.integers.tolist() == [4]


def test_buffers_of_a_full_buffer_by_hand():
    """Two clients of weight ¼ and ½ send 8 and 2: ¼ of the old 4 stays, 1 + ¼ · 8 + ½ · 2 = 4.

    A synchronous round divides by ¾ instead: (¼ · 8 + ½ · 2) / ¾ = 4. The old value 40 tells them apart:
    ¼ · 40 + 3 = 13 and still 4.
    """
    for buffer, old, expected in (
        (Buffer(2), 4.0, 4.0),
        (Buffer(2), 40.0, 13.0),
        (Barrier(), 40.0, 4.0),
    ):
        method = Method(buffer=buffer)
        state = ServerState(torch.zeros(1), Statistics(torch.tensor([old]), torch.tensor([5])))
        for value, weight in ((8.0, 0.25), (2.0, 0.5)):
            update = Update(0, 0, torch.ones(1, 1), Statistics(torch.tensor([value]), torch.tensor([7])))
            state, _ = absorb(method, state, update, base=state.theta, weight=weight)
        state = flush(method, state)
        assert state.statistics.floats.tolist() == pytest.approx([expected], rel=1e-6)
        assert state.statistics.integers.tolist() == [7]


def test_an_average_holds_the_mean_of_float_buffers_and_the_last_whole_numbers():
    """Steps of ½ from 0 towards 8: 4, then 6, then 7; their mean is 17/3."""
    method = Method(averaging=Averaging(0))
    state = ServerState(torch.zeros(1), Statistics(torch.tensor([0.0]), torch.tensor([0])))
    for count in (1, 2, 3):
        update = Update(
            0, state.version, torch.ones(1, 1), Statistics(torch.tensor([8.0]), torch.tensor([count]))
        )
        state, _ = absorb(method, state, update, base=state.theta, weight=0.5)
    statistics = state.returned()[1]
    assert state.statistics.floats.tolist() == pytest.approx([7.0])
    assert statistics.floats.tolist() == pytest.approx([5.6666667])
    assert statistics.integers.tolist() == [3]


# --- files --------------------------------------------------------------------------------------------


@every_rule
@settings(max_examples=4)
@given(data=st.data())
def test_a_state_goes_to_a_file_and_back(rule, data, tmp_path_factory):
    case = data.draw(cases(rule))
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    after, _ = case.absorb()
    for state in (case.state, after):
        save_tree(path, vars(state))
        assert same(rebuild(ServerState, load_tree(path)), state)
    save_tree(path, vars(case.state))
    case.state = rebuild(ServerState, load_tree(path))
    assert same(case.absorb()[0], after)


@pytest.mark.parametrize("shared", [True, False])
def test_a_state_with_everything_set_goes_to_a_file_and_back(shared, tmp_path):
    random = torch.Generator().manual_seed(3)
    statistics = Statistics(torch.randn(2, generator=random), torch.tensor([2**40, -1]))
    theta = torch.randn(5, generator=random)

    def copy(tensor):
        return tensor if shared else tensor.clone()

    state = ServerState(
        theta=theta,
        statistics=statistics,
        version=7,
        updates=31,
        memory={
            "correction": {"mean_square": torch.rand(5, generator=random)},
            "buffer": {"step": torch.randn(5, generator=random), "count": 3, "weight": 0.1 + 0.2},
            "averaging": {"theta": copy(theta), "floats": copy(statistics.floats), "count": 4},
            "gates.0": {"seen": {7: {"last": copy(theta), "words": ["a", None, True]}, 12: {}}},
        },
    )
    save_tree(tmp_path / "state.safetensors", vars(state))
    loaded = rebuild(ServerState, load_tree(tmp_path / "state.safetensors"))
    assert same(loaded, state)
    # What is one tensor in several places is one again, and is written once.
    assert (loaded.memory["averaging"]["theta"] is loaded.theta) == shared


# --- what is not absorbed -----------------------------------------------------------------------------


def with_entry(tensor, value):
    tensor = tensor.clone()
    tensor.view(-1)[-1] = value
    return tensor


def with_statistics(update, **changes):
    return replace(update, statistics=update.statistics._replace(**changes))


FAULTS = {
    "nan": (
        lambda u: replace(u, offsets=with_entry(u.offsets, torch.nan)),
        "offsets have non-finite values",
    ),
    "inf": (
        lambda u: replace(u, offsets=with_entry(u.offsets, torch.inf)),
        "offsets have non-finite values",
    ),
    "nan in the first point": (
        lambda u: replace(u, offsets=with_entry(u.offsets.flip(0), torch.nan).flip(0)),
        "offsets have non-finite values",
    ),
    "overflow": (
        lambda u: replace(u, offsets=with_entry(u.offsets, 1e30)),
        "offsets have non-finite values or overflow",
    ),
    "one entry too few": (
        lambda u: replace(u, offsets=u.offsets[:, 1:]),
        r"offsets have shape \(\d, 3\), not \(\d, 4\)",
    ),
    "one point too many": (
        lambda u: replace(u, offsets=torch.cat([u.offsets, u.offsets[:1]])),
        r"offsets have shape \(\d, 4\), not \(\d, 4\)",
    ),
    "no points": (
        lambda u: replace(u, offsets=u.offsets[:0]),
        r"offsets have shape \(0, 4\), not",
    ),
    "flat": (
        lambda u: replace(u, offsets=u.offsets[0]),
        r"offsets have shape \(4,\), not",
    ),
    "float64": (
        lambda u: replace(u, offsets=u.offsets.double()),
        "offsets are torch.float64, not torch.float32",
    ),
    "float16": (
        lambda u: replace(u, offsets=u.offsets.half()),
        "offsets are torch.float16, not torch.float32",
    ),
    "future": (
        lambda u: replace(u, version=9),
        "base version 9 is in the future, the model is at 8",
    ),
    "negative": (lambda u: replace(u, version=-1), "base version -1 is unknown"),
    "too stale": (lambda u: replace(u, version=2), "staleness 6 is above the limit 5"),
    "too long": (
        lambda u: replace(u, offsets=with_entry(u.offsets, 500.0)),
        r"norm 500\.\d* is above the bound 100",
    ),
    "too long in the first point": (
        lambda u: replace(u, offsets=with_entry(u.offsets.flip(0), 500.0).flip(0)),
        r"norm 500\.\d* is above the bound 100",
    ),
    "nan in statistics": (
        lambda u: with_statistics(u, floats=with_entry(u.statistics.floats, torch.nan)),
        "statistics have non-finite values",
    ),
    "inf in statistics": (
        lambda u: with_statistics(u, floats=with_entry(u.statistics.floats, -torch.inf)),
        "statistics have non-finite values",
    ),
    "short float statistics": (
        lambda u: with_statistics(u, floats=u.statistics.floats[:1]),
        r"statistics.floats have shape \(1,\), not \(2,\)",
    ),
    "long integer statistics": (
        lambda u: with_statistics(u, integers=torch.zeros(3, dtype=torch.int64)),
        r"statistics.integers have shape \(3,\), not \(1,\)",
    ),
    "float64 statistics": (
        lambda u: with_statistics(u, floats=u.statistics.floats.double()),
        "statistics.floats are torch.float64, not torch.float32",
    ),
    "float integers": (
        lambda u: with_statistics(u, integers=u.statistics.integers.float()),
        "statistics.integers are torch.float32, not torch.int64",
    ),
}


def guarded(name):
    """Return a method with all its limits, a server, an acceptable update, and its base."""
    method = replace(METHODS[name], max_staleness=5, norm_bound=100.0)
    random = torch.Generator().manual_seed(5)

    def statistics():
        return Statistics(torch.randn(2, generator=random), torch.tensor([1]))

    def update():
        offsets = torch.randn(method.embedding.points, 4, generator=random)
        return Update(client=1, version=5, offsets=offsets, statistics=statistics())

    state = ServerState(torch.randn(4, generator=random), statistics(), version=7, updates=20)
    base = state.theta - torch.randn(4, generator=random)
    for _ in range(2):
        state, _ = absorb(method, state, update(), base=base, weight=0.3)
    return method, replace(state, version=8), update(), base


@every_method
def test_a_good_update_is_accepted(name):
    method, state, update, base = guarded(name)
    after, step = absorb(method, state, update, base=base, weight=0.3)
    assert after.updates == state.updates + 1
    assert step.fraction > 0.0


@every_method
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_update_is_rejected_by_name_and_changes_nothing(name, fault):
    method, state, update, base = guarded(name)
    spoil, reason = FAULTS[fault]
    spoiled = spoil(update)
    before, base_before = copied(state), base.clone()
    with pytest.raises(Rejected, match=reason):
        absorb(method, state, spoiled, base=base, weight=0.3)
    assert same(state, before)
    assert same(base, base_before)


@every_method
def test_an_update_whose_base_the_server_has_not_is_rejected(name):
    method, state, update, _ = guarded(name)
    before = copied(state)
    with pytest.raises(Rejected, match="base version 5 is unknown"):
        absorb(method, state, update, base=None, weight=0.3)
    assert same(state, before)


@every_method
def test_updates_on_the_limits_are_accepted(name):
    method, state, update, base = guarded(name)
    scaled = update.offsets * (99.99 / torch.linalg.vector_norm(update.offsets, dim=1, keepdim=True))
    absorb(method, state, replace(update, offsets=scaled), base=base, weight=0.3)
    _, step = absorb(method, state, replace(update, version=3), base=base, weight=0.3)
    assert step.staleness == method.max_staleness


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OrthoDC(1.5), r"OrthoDC\(threshold=1.5\) must be between -1 and 1"),
        (lambda: DelayCompensation(-1.0), r"DelayCompensation\(strength=-1.0\) must be at least 0"),
        (lambda: DelayCompensation(mean_square_momentum=1.0), r"mean_square_momentum=1.0\) must be in"),
        (lambda: DelayCompensation(epsilon=0.0), r"DelayCompensation\(epsilon=0.0\) must be above 0"),
        (lambda: Distance(2.0), r"Distance\(decay=2.0\) must be between 0 and 1"),
        (lambda: Distance(warmup=-1), r"Distance\(warmup=-1\) must be at least 0"),
        (lambda: Distance(highest=0.5), r"Distance\(highest=0.5\) must be at least 1"),
        (lambda: Polynomial(-0.5), r"Polynomial\(exponent=-0.5\) must be at least 0"),
        (lambda: Hinge(0.0), r"Hinge\(slope=0.0\) must be above 0"),
        (lambda: Hinge(1.0, -1), r"Hinge\(delay=-1\) must be at least 0"),
        (lambda: Buffer(0), r"Buffer\(buffer_size=0\) must be at least 1"),
        (lambda: Averaging(-1), r"Averaging\(average_from=-1\) must be at least 0"),
        (lambda: Averaging(0, 0), r"Averaging\(average_every=0\) must be at least 1"),
        (lambda: Method(global_lr=0.0), r"Method\(global_lr=0.0\) must be above 0"),
        (lambda: Method(weighting="size"), r"Method\(weighting='size'\) must be 'examples' or 'none'"),
        (lambda: Method(max_staleness=-1), r"StalenessBound\(max_staleness=-1\) must be at least 0"),
        (lambda: Method(norm_bound=0.0), r"NormBound\(norm_bound=0.0\) must be above 0"),
    ],
)
def test_an_impossible_part_is_refused_with_call_value_and_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_that_is_no_share_is_an_error(weight):
    update = Update(client=0, version=0, offsets=torch.ones(1, 2), statistics=Statistics.none())
    with pytest.raises(ValueError, match=r"absorb\(weight="):
        absorb(METHODS["asyncsgd"], ServerState(torch.zeros(2)), update, base=torch.zeros(2), weight=weight)


@pytest.mark.parametrize(
    "make",
    [
        lambda value: Polynomial(value),
        lambda value: Hinge(value),
        lambda value: DelayCompensation(value),
        lambda value: DelayCompensation(epsilon=value),
        lambda value: OrthoDC(value),
        lambda value: Distance(value),
        lambda value: AdaptiveEpochs(value),
        lambda value: AdaptiveEpochs(gain=value),
        lambda value: Method(global_lr=value),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -2.0])
def test_a_number_out_of_range_is_refused(make, value):
    with pytest.raises(ValueError, match="must be"):
        make(value)


def test_whole_numbers_are_copied_even_where_the_step_is_zero():
    method = replace(METHODS["asyncfeded"], penalty=Distance(1.0))
    state = ServerState(torch.ones(2), Statistics(torch.ones(1), torch.tensor([3])), version=1)
    update = Update(0, 0, torch.zeros(1, 2), Statistics(torch.zeros(1), torch.tensor([8])))
    after, step = absorb(method, state, update, base=torch.zeros(2), weight=0.5)
    assert step.fraction == 0.0
    assert after.statistics.floats.tolist() == [1.0]
    assert after.statistics.integers.tolist() == [8]


def test_adapted_epochs_never_exceed_their_bound():
    assert AdaptiveEpochs(max_epochs=10).next(25, drift_norm=1.0, update_norm=1.0, updates=0) == 10
    assert AdaptiveEpochs(max_epochs=10).next(25, drift_norm=1.0, update_norm=0.0, updates=99) == 10
