"""Privacy: ε against published numbers, the noise on what really leaves a client, and honest counts."""

import json
import shutil
import sys
from dataclasses import dataclass, replace
from math import exp, inf

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from asyncmanifold import (
    METHODS,
    Bezier,
    DelayCompensation,
    Gate,
    InputError,
    Job,
    LocalPrivacy,
    LocalTraining,
    Method,
    Outgoing,
    Parcel,
    PeerBound,
    PrivateBuffer,
    Rejected,
    RunError,
    ServerState,
    Task,
    Update,
    absorb,
    simulate,
)
from asyncmanifold.client.training import Trainer
from asyncmanifold.execution.training_worker import Recipe
from asyncmanifold.privacy import noise as noise_module
from asyncmanifold.privacy.accounting import GaussianRelease, total_epsilon
from asyncmanifold.privacy.noise import add_noise, clip_factor, gaussian_noise, secret_stream
from asyncmanifold.privacy.protection import Protection
from asyncmanifold.report.finished_runs import RunData, find_runs
from asyncmanifold.report.privacy_section import privacy_section
from asyncmanifold.server.outgoing import unpack_update
from asyncmanifold.simulation.replay import recorded_updates
from tiny import CLOCK, TRAINING, make_run, make_task, of_kind, simulated

PRIVATE = replace(METHODS["asyncbezier"], outgoing=(LocalPrivacy(0.5, 8.0),), weighting="none", global_lr=0.1)


def exact_delta(epsilon, noise):
    """δ(ε) of a Gaussian mechanism of sensitivity 1 (Balle and Wang 2018, theorem 8)."""
    shift = 1.0 / (2.0 * noise)
    return stats.norm.cdf(shift - epsilon * noise) - exp(epsilon) * stats.norm.cdf(-shift - epsilon * noise)


def looks_normal(numbers, deviation):
    """Return whether independent numbers may be N(0, deviation²): wrong once in a million times."""
    return stats.kstest(np.asarray(numbers, dtype=np.float64).ravel() / deviation, "norm").pvalue > 1e-6


# ---- accounting


@pytest.mark.parametrize("noise", [0.6, 1.0, 4.0])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_gaussian_releases_have_their_exact_epsilon(noise, count):
    epsilon = total_epsilon({GaussianRelease(noise): count}, 1e-5)
    assert exact_delta(epsilon, noise / count**0.5) == pytest.approx(1e-5, rel=1e-4)


def test_a_published_calibration():
    """σ = 3.730632 is the analytic Gaussian mechanism's noise for ε = 1 and δ = 1e-5."""
    assert total_epsilon({GaussianRelease(3.730632): 1}, 1e-5) == pytest.approx(1.0, abs=1e-4)


def test_releases_of_several_kinds_add_up():
    """n releases with σ are as good as one with σ/√n, so 3 with 2 and 1 with 2/√3 are as good as 6 with 2."""
    mixed = {GaussianRelease(2.0): 3, GaussianRelease(2.0 / 3**0.5): 1}
    assert total_epsilon(mixed, 1e-6) == pytest.approx(total_epsilon({GaussianRelease(2.0): 6}, 1e-6))
    assert total_epsilon({}, 1e-5) == total_epsilon({GaussianRelease(2.0): 0}, 1e-5) == 0.0


@pytest.mark.parametrize(("noise", "epochs", "published"), [(1.12, 60, 2.92), (1.2, 10, 1.20)])
def test_sampled_releases_against_the_table_of_tf_privacy(noise, epochs, published):
    """MNIST in batches of 256, δ = 1e-5: its moments accountant's bounds are up to 1.6 times as high."""
    releases = {GaussianRelease(noise, 256 / 60_000): epochs * 60_000 // 256}
    assert published / 1.6 < total_epsilon(releases, 1e-5) < published


def test_a_sampled_release_against_the_definition():
    """δ is ∫ max(0, P − e^ε Q), with P the mixture that sampling makes, for both orders of P and Q."""
    noise, sampling, delta = 1.0, 0.1, 1e-4
    epsilon = total_epsilon({GaussianRelease(noise, sampling): 1}, delta)
    x = np.linspace(-12.0, 13.0, 2_000_001)
    without = stats.norm.pdf(x, 0.0, noise)
    mixed = (1.0 - sampling) * without + sampling * stats.norm.pdf(x, 1.0, noise)
    step = x[1] - x[0]
    found = max(
        np.maximum(0.0, p - exp(epsilon) * q).sum() * step for p, q in ((mixed, without), (without, mixed))
    )
    assert found == pytest.approx(delta, rel=0.02)


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(
        InputError, match=r"needs the extra 'privacy': pip install 'asyncmanifold\[privacy\]'"
    ):
        LocalPrivacy()


def test_replacing_data_is_twice_as_far_as_removing_it():
    far = LocalPrivacy(noise_multiplier=4.0)
    near = LocalPrivacy(noise_multiplier=2.0, relation="add-or-remove-one")
    assert far.epsilon(5) == near.epsilon(5) == total_epsilon({GaussianRelease(2.0): 5}, 1e-5)


def test_caps():
    assert [Protection(max_releases=3).allows(count) for count in (3, 4)] == [True, False]
    limit = Protection(noise_multiplier=8.0).epsilon(10)
    part = Protection(noise_multiplier=8.0, max_epsilon=limit)
    assert [part.allows(count) for count in (10, 11)] == [True, False]


@pytest.mark.parametrize(
    "settings", [{"clip_norm": 1e-40}, {"clip_norm": inf}, {"noise_multiplier": 0.0}, {"delta": 1.0}]
)
def test_settings_that_protect_nobody_are_refused(settings):
    with pytest.raises(InputError, match=r"LocalPrivacy\("):
        LocalPrivacy(**settings)


# ---- noise


def test_noise_is_normal_and_independent():
    noise = gaussian_noise(200_001)
    assert noise.shape == (200_001,)
    assert looks_normal(noise, 1.0)
    half = noise[:200_000].reshape(2, -1)
    assert abs(np.corrcoef(half)[0, 1]) < 5 / 100_000**0.5
    assert abs(np.corrcoef(half**2)[0, 1]) < 5 / 100_000**0.5


def test_noise_follows_from_no_generator_of_a_run():
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        drawn.append(gaussian_noise(8))
    assert not np.any(drawn[0] == drawn[1])


def test_a_secret_gives_the_same_noise_for_the_same_purpose_alone():
    def draw(secret, purpose):
        return gaussian_noise(50_000, secret_stream(secret, purpose))

    first = draw("ab", b"one")
    assert np.array_equal(first, draw("ab", b"one"))
    assert looks_normal(first, 1.0)
    for other in (draw("cd", b"one"), draw("ab", b"two")):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / 50_000**0.5


def test_blocks_of_a_long_vector_have_different_noise(monkeypatch):
    monkeypatch.setattr("asyncmanifold.privacy.noise.BLOCK", 1000)
    vector = torch.zeros(2500)
    add_noise(vector, 2.0, random_bytes=secret_stream("ab", b"x"))
    assert looks_normal(vector, 2.0)
    assert not torch.equal(vector[:1000], vector[1000:2000])


def test_clipping():
    vector = torch.tensor([3.0, 4.0])
    assert clip_factor(vector, 1.0) == pytest.approx(0.2)
    assert clip_factor(vector, 6.0) == 1.0
    assert clip_factor(torch.zeros(2), 1.0) == 1.0
    assert clip_factor(torch.tensor([1.0, inf]), 1.0) == clip_factor(torch.tensor([torch.nan]), 1.0) == 0.0


# ---- what leaves a client


def wide_task(broken=False):
    random = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(40, 100, generator=random), torch.randint(80, (40,), generator=random)
    if broken:
        inputs = inputs * torch.nan
    model = nn.Linear(100, 80)
    return Task(lambda: model, nn.functional.cross_entropy, [(inputs, targets)] * 2, (inputs, targets))


@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_what_a_worker_sends_is_the_clipped_upload_and_noise(clip):
    """The same job is trained without the part, and clipped by hand."""
    task, training = wide_task(), LocalTraining(point_epochs=1, curve_epochs=1, local_lr=0.01)
    theta = torch.cat([p.detach().reshape(-1) for p in task.build_model(0).parameters()])
    job = Job(number=3, client=1, version=0, theta=theta, point_epochs=1, curve_epochs=1)
    plain = Trainer(task.build_model(0), task.loss, Bezier(2), training, 0).train(job, task.clients[1])
    norm = plain.offsets.double().norm()
    expected = plain.offsets.double() * min(1.0, clip / norm)
    part = LocalPrivacy(clip, 0.25)
    parcel = Recipe(task, Bezier(2), (part,), training, 0).worker().train(job)
    assert list(parcel.tensors) == ["offsets"]
    assert (parcel.loss, parcel.seconds) == (None, 0.0)
    received = torch.from_numpy(np.frombuffer(parcel.tensors["offsets"].numpy().tobytes(), np.float32).copy())
    left = received.double() - expected.reshape(-1)
    assert looks_normal(left, 0.25 * clip)
    assert left.std().item() == pytest.approx(0.25 * clip, rel=0.05)


def test_a_failed_training_is_not_to_be_seen():
    task, training = wide_task(broken=True), LocalTraining(point_epochs=1)
    theta = torch.zeros(8080)
    parcel = (
        Recipe(task, Bezier(1), (LocalPrivacy(2.0, 3.0),), training, 0)
        .worker()
        .train(Job(number=0, client=0, version=0, theta=theta))
    )
    assert isinstance(parcel, Parcel)
    assert looks_normal(parcel.tensors["offsets"], 6.0)


def test_an_update_with_more_than_offsets_is_rejected():
    parcel = Parcel({"offsets": torch.zeros(1, 2), "statistics.floats": torch.zeros(3)}, loss=None)
    with pytest.raises(Rejected, match="more than its offsets"):
        unpack_update(parcel, Job(0, 0, 0, torch.zeros(2)), (LocalPrivacy(),))


# ---- methods that may be private


def test_a_private_method_has_equal_weights_and_protects_everything():
    with pytest.raises(InputError, match=r"LocalPrivacy needs weighting='none'"):
        Method(outgoing=(LocalPrivacy(),))
    with pytest.raises(InputError, match=r"LocalPrivacy must be the first outgoing part"):
        Method(outgoing=(Outgoing(), LocalPrivacy()), weighting="none")
    with pytest.raises(InputError, match=r"must be the only part that adds noise"):
        Method(outgoing=(LocalPrivacy(), LocalPrivacy()), weighting="none")


# ---- whole runs


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_counts_every_job_and_ends_when_all_budgets_are_spent(workers):
    part = LocalPrivacy(0.5, 8.0, max_releases=3)
    said = []
    result = simulated(
        make_task(broken=(1,)),
        replace(PRIVATE, outgoing=(part,)),
        training=TRAINING,
        schedule=CLOCK,
        run=make_run(200),
        workers=workers,
        observer=said.append,
    )
    summary = result.summary
    assert (summary["updates"], summary["ended"]) == (15, "privacy budget spent")
    privacy = summary["privacy"]
    assert privacy["releases"] == [3] * 5
    assert privacy["epsilon"] == part.epsilon(3) == max(privacy["epsilon_per_client"])
    assert privacy["repeatable"] is False
    assert privacy["withheld"] == ["loss", "train_seconds", "examples", "statistics"]
    updates = of_kind(result.trace, "update")
    for client in range(5):
        mine = [record for record in updates if record["client"] == client]
        assert [record["releases"] for record in mine] == [1, 2, 3]
        assert [record["epsilon"] for record in mine] == [part.epsilon(count) for count in (1, 2, 3)]
    assert {record["loss"] for record in updates} == {None}
    assert sorted(record["client"] for record in of_kind(result.trace, "retired")) == list(range(5))
    warnings = [record["reason"] for record in said if record["kind"] == "warning"]
    assert any("cannot be repeated" in reason for reason in warnings)
    assert any("BatchNorm's statistics are withheld" in reason for reason in warnings)
    running = dict(result.model.named_buffers())["1.running_var"]
    assert torch.equal(running, torch.ones(8))


def test_one_client_may_be_spent_before_the_others():
    """An ε limit between 2 and 3 releases."""
    part = LocalPrivacy(0.5, 8.0)
    limited = replace(part, max_epsilon=(part.epsilon(2) + part.epsilon(3)) / 2)
    result = simulated(
        make_task(),
        replace(PRIVATE, outgoing=(limited,)),
        training=TRAINING,
        schedule=CLOCK,
        run=make_run(6),
    )
    assert result.summary["ended"] == "updates"
    assert max(result.summary["privacy"]["releases"]) == 2


def test_a_run_is_never_repeated(tmp_path):
    runs = [
        simulated(make_task(), PRIVATE, training=TRAINING, schedule=CLOCK, run=make_run(5)) for _ in range(2)
    ]
    norms = [of_kind(run.trace, "update")[0]["update_norm"] for run in runs]
    assert norms[0] != norms[1]
    with pytest.raises(InputError, match="update 1 has noise for privacy, which nobody can repeat"):
        recorded_updates(runs[0].trace)
    plain = simulated(make_task(), "asyncbezier", training=TRAINING, schedule=CLOCK, run=make_run(5))
    with pytest.raises(InputError, match="a run with LocalPrivacy cannot be replayed"):
        simulate(make_task(), PRIVATE, training=TRAINING, run=make_run(5), replay=plain.trace)


class Interrupt:
    """Ends a run like Ctrl-C after some updates."""

    def __init__(self, after):
        self.after = after

    def __call__(self, record):
        if record["kind"] == "update" and record["update"] == self.after:
            raise KeyboardInterrupt


def test_a_resumed_run_goes_on_counting(tmp_path):
    part = LocalPrivacy(0.5, 8.0, max_releases=3)
    settings = {"training": TRAINING, "schedule": CLOCK, "run": make_run(200, checkpoint_seconds=0.0)}
    method = replace(PRIVATE, outgoing=(part,))
    with pytest.raises(KeyboardInterrupt):
        simulated(make_task(), method, out=tmp_path / "run", observer=Interrupt(9), **settings)
    result = simulated(make_task(), method, out=tmp_path / "run", resume=True, **settings)
    assert result.summary["updates"] == 15
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["releases"] == [3] * 5


def test_a_trace_without_privacy_says_nothing_about_it():
    result = simulated(make_task(), "asyncsgd", training=TRAINING, schedule=CLOCK, run=make_run(3))
    assert "privacy" not in result.summary
    assert "epsilon" not in of_kind(result.trace, "update")[0]


# ---- the private buffer


def arrive(method, state, client, offset):
    """Absorb a fresh update; return the new state."""
    update = Update(client, state.version, torch.tensor([offset]))
    return absorb(method, state, update, base=state.theta, weight=0.7)[0]


def private_buffer(**settings):
    return replace(METHODS["fedbuff"], buffer=PrivateBuffer(**settings), weighting="none")


def test_a_buffer_of_different_clients_each_clipped(monkeypatch):
    """(3, 4) is clipped to (0.6, 0.8); the second client's last step (0, 0.5) replaces (9, 9): the mean is
    (0.3, 0.65). The noise is replaced by ones times its deviation, 2 · 1, over two clients."""
    monkeypatch.setattr(noise_module, "gaussian_noise", lambda count, source: np.ones(count))
    method, state = private_buffer(buffer_size=2, noise_multiplier=2.0), ServerState(torch.zeros(2))
    for client, offset in ((5, [9.0, 9.0]), (5, [0.0, 0.5])):
        state = arrive(method, state, client, offset)
        assert (state.version, list(state.memory["buffer"]["steps"])) == (0, [5])
    state = arrive(method, state, 1, [3.0, 4.0])
    assert state.version == 1
    assert torch.allclose(state.theta, torch.tensor([0.3 + 1.0, 0.65 + 1.0]))
    assert state.memory["buffer"]["steps"] == {}


def test_a_private_buffer_has_equal_weights():
    with pytest.raises(InputError, match=r"PrivateBuffer needs weighting='none'"):
        replace(private_buffer(), weighting="examples")


def test_a_step_is_clipped_after_its_correction():
    """From (0, 0) a client moved to (0.5, 0), and the model to (10, 0). The step to the learned position is
    (−9.5, 0), of which C = 1 is left; clipped before the correction, all of it would be made."""
    buffer = PrivateBuffer(buffer_size=1, clip_norm=1.0, noise_multiplier=1e-3)
    method = Method(correction=METHODS["fedasync"].correction, buffer=buffer, weighting="none")
    state = ServerState(torch.tensor([10.0, 0.0]), version=1)
    update = Update(0, 0, torch.tensor([[0.5, 0.0]]))
    moved, _ = absorb(method, state, update, base=torch.zeros(2), weight=1.0)
    assert moved.theta.tolist() == pytest.approx([9.0, 0.0], abs=0.01)


@pytest.mark.parametrize("size", [2, 50])
def test_no_amplification_is_claimed_for_a_buffer(size):
    """Whoever is in a sum pays for a whole Gaussian release, however many others are in it or might be."""
    part = PrivateBuffer(buffer_size=size, noise_multiplier=4.0, relation="add-or-remove-one")
    assert exact_delta(part.epsilon(9), 4.0 / 3.0) == pytest.approx(1e-5, rel=1e-4)


def test_the_noise_of_a_sum():
    method = private_buffer(buffer_size=2, clip_norm=0.5, noise_multiplier=3.0)
    size = 20_000
    state = ServerState(torch.zeros(size))
    offset = torch.zeros(size)
    offset[0] = 5.0
    for client in range(2):
        update = Update(client, 0, offset[None])
        state, _ = absorb(method, state, update, base=state.theta, weight=1.0)
    left = state.theta.clone()
    left[0] -= 0.5
    assert looks_normal(left, 0.5 * 3.0 / 2)


def test_the_same_sum_has_the_same_noise_and_another_sum_other_noise():
    """So a resumed run does not release a sum twice, and no two releases share their noise."""
    method = private_buffer(buffer_size=1, clip_norm=1.0, noise_multiplier=1.0)
    start = ServerState(torch.zeros(50), memory={"buffer": method.buffer.init(torch.zeros(50))})
    offset = [0.1] * 50
    once, again = arrive(method, start, 0, offset), arrive(method, start, 0, offset)
    assert torch.equal(once.theta, again.theta)
    other = arrive(method, start, 0, [0.1001] * 50)
    assert (other.theta - once.theta).abs().max() > 0.1
    elsewhere = ServerState(torch.zeros(50), memory={"buffer": method.buffer.init(torch.zeros(50))})
    assert (arrive(method, elsewhere, 0, offset).theta - once.theta).abs().max() > 0.1


@pytest.mark.parametrize("part", [{"gates": (PeerBound(),)}, {"correction": DelayCompensation()}])
def test_parts_that_mix_clients_before_clipping_are_refused(part):
    with pytest.raises(InputError, match="remembers other clients' updates before that"):
        replace(private_buffer(), **part)


@pytest.mark.parametrize("part", [{"norm_bound": 5.0}, {"gates": "aflguard"}])
def test_gates_that_choose_by_an_updates_numbers_are_refused(part):
    with pytest.raises(InputError, match="rejects updates by their numbers, which changes all later sums"):
        replace(private_buffer(), **part)
    replace(private_buffer(), norm_bound=5.0, norm_clips=True, max_staleness=3)


def test_an_own_part_that_begins_to_remember_stops_the_run():
    @dataclass(frozen=True)
    class Remembers(Gate):
        def admit(self, arrival, memory):
            return 1.0, {"last": 1.0}

    method = replace(private_buffer(buffer_size=2), gates=(Remembers(),))
    with pytest.raises(RunError, match="protects nobody"):
        simulated(make_task(), method, training=TRAINING, run=make_run(5))


def test_a_run_counts_sums_of_each_client_and_ends_with_the_last_budget():
    part = PrivateBuffer(buffer_size=3, clip_norm=0.5, noise_multiplier=2.0, max_releases=4)
    method = replace(METHODS["fedbuff"], buffer=part, weighting="none")
    result = simulated(make_task(), method, training=TRAINING, schedule=CLOCK, run=make_run(500))
    privacy = result.summary["privacy"]
    assert (privacy["kind"], privacy["withheld"]) == ("central", ["statistics"])
    assert sum(privacy["releases"]) == 3 * result.summary["versions"]
    assert max(privacy["releases"]) == 4
    assert privacy["epsilon_per_client"] == [part.epsilon(count) for count in privacy["releases"]]
    assert result.summary["ended"] == "privacy budget spent"
    assert sum(count < 4 for count in privacy["releases"]) < 3  # too few are left to fill the buffer
    assert of_kind(result.trace, "update")[0]["loss"] > 0.0  # the server is trusted
    running = dict(result.model.named_buffers())["1.running_var"]
    assert torch.allclose(running, torch.ones(8))


def test_a_buffer_of_more_clients_than_there_are_is_refused():
    with pytest.raises(InputError, match=r"buffer_size=6.* 5 clients"):
        simulated(make_task(), private_buffer(buffer_size=6), training=TRAINING, run=make_run(5))


def test_a_resumed_run_repeats_the_noise_of_sums(tmp_path):
    method = private_buffer(buffer_size=3, clip_norm=0.5)
    settings = {"training": TRAINING, "schedule": CLOCK, "run": make_run(30, checkpoint_seconds=0.0)}
    with pytest.raises(KeyboardInterrupt):
        simulated(make_task(), method, out=tmp_path / "one", observer=Interrupt(13), **settings)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    settings["resume"] = True
    one = simulated(make_task(), method, out=tmp_path / "one", **settings)
    two = simulated(make_task(), method, out=tmp_path / "two", **settings)
    assert one.summary["privacy"] == two.summary["privacy"]
    assert sum(one.summary["privacy"]["releases"]) == 30
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name]), name


# ---- the report


def test_the_report_says_what_was_released():
    result = simulated(make_task(), PRIVATE, training=TRAINING, schedule=CLOCK, run=make_run(7))
    private = RunData("a", "digits", "private", 3, result.summary, {})
    page = privacy_section([private, RunData("b", "digits", "plain", 3, {}, {})])
    epsilon = result.summary["privacy"]["epsilon"]
    assert page.count("<tr>") == 2  # the head, and the private run
    for text in ("private, seed 3", "local", "replace-one", f"<td>{epsilon:.3g}</td>", "cannot be repeated"):
        assert text in page
    assert privacy_section([RunData("b", "digits", "plain", 3, {}, {})]) == ""
    damaged = RunData("b", "digits", "plain", 3, {"privacy": {"kind": "<script>"}}, {})
    assert privacy_section([damaged]) == ""


def test_a_run_with_retired_clients_can_be_reported(tmp_path):
    method = replace(PRIVATE, outgoing=(LocalPrivacy(0.5, 8.0, max_releases=2),))
    simulated(make_task(), method, training=TRAINING, schedule=CLOCK, run=make_run(50), out=tmp_path / "run")
    found = find_runs(tmp_path)
    assert not found.problems
    assert found.runs[0].summary["privacy"]["releases"] == [2] * 5
