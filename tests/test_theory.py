"""The convergence study: its constants by brute force, its arithmetic by hand, its claims about the paper."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import cos, log, pi, sin, sqrt

import numpy as np
import pytest
import torch

from asyncmanifold import METHODS, LocalTraining, OrthoDC, Run, simulate
from asyncmanifold.client.curved import geodesic
from asyncmanifold.commands.cli import main
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.bezier import de_casteljau
from asyncmanifold.geometry.embeddings import Bezier, Point
from asyncmanifold.report.convergence_figure import convergence_figure
from asyncmanifold.seeding import torch_seed
from asyncmanifold.theory.constants import Theorem, local_rate
from asyncmanifold.theory.findings import Constants, KnownConstants, MeasuredConstants, Setting
from asyncmanifold.theory.findings_table import print_findings
from asyncmanifold.theory.gradient_norms import (
    SCHEDULE,
    GradientProbe,
    drift_and_reach,
    measure_run,
    measured_constants,
)
from asyncmanifold.theory.problems import PROBLEMS, Stream, eigenvector, regression
from asyncmanifold.theory.slope import log_slope
from asyncmanifold.theory.study import COVERED, chosen_method, chosen_setting, study_convergence
from asyncmanifold.vectors import FlatModel

every_problem = pytest.mark.parametrize("problem", [make() for make in PROBLEMS.values()], ids=PROBLEMS)


def population(problem):
    data = problem.task.test
    inputs, targets = data.batch(torch.arange(len(data)))
    return inputs.double().numpy(), targets.double().numpy()


def places(problem, count=200):
    """Random models: on the sphere, or around the origin of flat space."""
    random = np.random.default_rng(0)
    points = random.standard_normal((count, FlatModel(problem.task.build_model(0)).size))
    if problem.name == "sphere":
        return points / np.linalg.norm(points, axis=1, keepdims=True)
    return points * random.uniform(0.0, 2.0, (count, 1))


def loss_at(problem, theta):
    inputs, targets = population(problem)
    outputs = inputs @ theta
    if problem.name == "sphere":
        return float(np.mean(0.5 * (targets - outputs**2)))
    return float(np.mean(0.5 * (targets - outputs) ** 2 / (1.0 + (targets - outputs) ** 2)))


def example_gradients(problem, theta):
    """Return each example's Riemannian gradient, from the formula."""
    inputs, targets = population(problem)
    outputs = inputs @ theta
    if problem.name == "sphere":
        plain = -outputs[:, None] * inputs
        return plain - (plain @ theta)[:, None] * theta
    residuals = targets - outputs
    return -(residuals / (1.0 + residuals**2) ** 2)[:, None] * inputs


def moved(problem, theta, way, t):
    """Return the place after time ``t`` on the geodesic with velocity ``way``."""
    if problem.name == "flat":
        return theta + t * way
    length = np.linalg.norm(way)
    return cos(t * length) * theta + sin(t * length) * way / length


def tangent(problem, theta, random):
    way = random.standard_normal(theta.shape)
    if problem.name == "sphere":
        way -= (way @ theta) * theta
    return way / np.linalg.norm(way)


def second_derivative(problem, theta, way, step=1e-3):
    ends = [loss_at(problem, moved(problem, theta, way, t)) for t in (-step, 0.0, step)]
    return (ends[0] - 2.0 * ends[1] + ends[2]) / step**2


# --- the problems and their constants -----------------------------------------------------------------


@every_problem
def test_no_curvature_is_above_the_smoothness(problem):
    random = np.random.default_rng(1)
    found = [second_derivative(problem, theta, tangent(problem, theta, random)) for theta in places(problem)]
    assert max(map(abs, found)) <= problem.known.smoothness + 1e-5
    assert min(found) < -0.05  # not convex


def test_the_smoothness_is_not_too_large():
    """On the sphere it is the curvature at the solution; a residual of 0 has it in the regression."""
    problem = eigenvector()
    first, second = np.eye(8)[:2]
    assert second_derivative(problem, first, second) == pytest.approx(problem.known.smoothness, abs=1e-4)
    noise = 0.2
    at_truth = (1 - 3 * noise**2) / (1 + noise**2) ** 3
    assert second_derivative(regression(), np.zeros(4), np.eye(4)[0]) == pytest.approx(at_truth, abs=1e-4)
    assert at_truth < regression().known.smoothness < 1.3 * at_truth


@every_problem
def test_gradients_are_bounded_and_unbiased_with_bounded_variance(problem):
    probe, longest = GradientProbe(problem.task), 0.0
    for theta in places(problem):
        gradients = example_gradients(problem, theta)
        whole = gradients.mean(axis=0)
        measured = probe(torch.from_numpy(theta).float()).double().numpy()
        np.testing.assert_allclose(measured, whole, atol=1e-6)
        variance = np.mean(np.sum((gradients - whole) ** 2, axis=1))
        assert variance <= problem.known.variance
        longest = max(longest, np.linalg.norm(gradients, axis=1).max())
    assert 0.9 * problem.known.gradient_bound < longest <= problem.known.gradient_bound


@every_problem
def test_the_gradient_is_the_slope_of_the_loss(problem):
    random = np.random.default_rng(2)
    probe = GradientProbe(problem.task)
    for theta in places(problem, 20):
        way = tangent(problem, theta, random)
        ahead, behind = (loss_at(problem, moved(problem, theta, way, t)) for t in (1e-4, -1e-4))
        found = float(probe(torch.from_numpy(theta).float()).double() @ torch.from_numpy(way))
        assert found == pytest.approx((ahead - behind) / 2e-4, abs=1e-5)


@every_problem
def test_the_start_is_where_the_loss_is_not_convex_and_not_flat(problem):
    theta = FlatModel(problem.task.build_model(0)).vector.double().numpy()
    way = -example_gradients(problem, theta).mean(axis=0)
    assert np.linalg.norm(way) > 0.2
    assert second_derivative(problem, theta, way / np.linalg.norm(way)) < -0.2


def test_a_stream_draws_anew_and_again_under_the_same_seed():
    stream = Stream(torch.arange(50.0)[:, None], torch.arange(50.0), length=3)
    assert len(stream) == 3
    draws = []
    for seed in (5, 5, 6):
        with torch_seed(np.random.default_rng(seed)):
            draws.append([stream.batch(torch.zeros(4, dtype=torch.int64)) for _ in range(2)])
    for inputs, targets in draws[0]:
        assert torch.equal(inputs[:, 0], targets)
    same = [torch.equal(draws[0][k][1], draws[1][k][1]) for k in (0, 1)]
    assert same == [True, True]
    assert not torch.equal(draws[0][0][1], draws[0][1][1])
    assert not torch.equal(draws[0][0][1], draws[2][0][1])
    with torch_seed(np.random.default_rng(0)):
        _, many = stream.batch(torch.arange(50_000))
    assert torch.bincount(many.long(), minlength=50).min() > 800  # 1000 are expected


# --- the theorem's arithmetic -------------------------------------------------------------------------

KNOWN = KnownConstants(smoothness=2.0, gradient_bound=3.0, variance=5.0, curvature=1.0)
SETTING = Setting(clients=4, point_steps=2, curve_steps=1, degree=2, global_lr=0.5)
MEASURED = MeasuredConstants(quality=0.5, staleness=2.0)
THEOREM = Theorem(KNOWN, SETTING, MEASURED)


def test_the_corrected_constants_by_hand():
    """k = 1/2 + 3 (1/2 + 0.5/1) = 3.5; C₄ = 9 (7 + 0.1 · 9 (4/3 + 4.5))."""
    found = THEOREM.corrected_constants(local_lr=0.1)
    assert found.c1 == pytest.approx(7.0)
    assert found.c2 == pytest.approx(2 * 2 * 9 * 9)
    assert found.c3 == pytest.approx(3.5 * 2 * 2 * 5)
    assert found.c4 == pytest.approx(9 * (7 + 0.9 * (4 / 3 + 4.5)))
    assert found.beta == 1.0


def test_the_corrected_bound_by_hand():
    """1 − 0.1 · 7 = 0.3; descent 6/(100 · 0.5 · 0.5 · 0.1) = 2.4; 3 · 9/100 for the updates in flight."""
    error = 0.1 * (324 + 70 + 9 * (7 + 0.9 * (4 / 3 + 4.5)))
    found = THEOREM.corrected_bound(length=100, local_lr=0.1, decrease=6.0)
    assert found == pytest.approx((2.4 + error) / 0.3 + 0.27)


def test_steps_that_are_longer_than_updates_cost_the_square_of_it():
    """R = 2: k = 1/2 + 3 (1/2 + 4 · 0.5/1) = 8, in C₁ and in C₃; nothing else changes."""
    found = Theorem(KNOWN, SETTING, replace(MEASURED, stretch=2.0)).corrected_constants(local_lr=0.1)
    assert found.c1 == pytest.approx(16.0)
    assert found.c3 == pytest.approx(8.0 * 2 * 2 * 5)
    assert found.c2 == THEOREM.corrected_constants(local_lr=0.1).c2


def test_there_is_no_bound_where_its_conditions_fail():
    usual = {"length": 100, "local_lr": 0.1, "decrease": 6.0}
    assert THEOREM.corrected_bound(**usual | {"local_lr": 1.0 / 7.0}) is None
    useless = Theorem(KNOWN, SETTING, replace(MEASURED, quality=0.0))
    assert useless.corrected_bound(**usual) is None
    assert useless.printed_bound(**usual) is None
    fresh = Theorem(KNOWN, SETTING, replace(MEASURED, staleness=0.0))  # as in synchronous rounds
    assert fresh.corrected_constants(local_lr=0.1).c2 == 0.0
    assert fresh.printed_bound(**usual) is None  # it divides by S
    wide = replace(SETTING, curve_steps=0, point_steps=1, global_lr=0.01)  # where the printed C₁ is positive
    assert Theorem(KNOWN, wide, MEASURED).printed_bound(length=100, local_lr=2.0, decrease=6.0) is None


def test_the_printed_constants_by_hand():
    """For α = 1/2: β = 1 + (1/2 − 1)/2 = 3/4, and C₁ has the paper's minus and its β as a factor."""
    found = Theorem(KNOWN, replace(SETTING, decay=0.5), MEASURED).printed_constants()
    assert found.beta == 0.75
    assert found.c1 == pytest.approx(1 - 3 * 2 * (1 / 6 + 0.5 * 0.75 / 2))
    assert found.c2 == pytest.approx((0.5 * 0.5 * 2 * 162 + 0.5 * 162) / 0.75)
    assert found.c3 == pytest.approx(3 * 2 * 5)
    plain = THEOREM.printed_constants()
    assert plain == Constants(c1=pytest.approx(-1.5), c2=162.0, c3=30.0, c4=0.0, beta=1.0)
    bound = THEOREM.printed_bound(length=100, local_lr=0.1, decrease=6.0)
    assert bound == pytest.approx((6 / (2 * 100 * 0.5 * 0.1 * 0.5) + 0.1 * (162 + 60) / 2) / 1.15)


def test_the_local_rate_is_that_of_the_theorem():
    """C₁ = 2 (1/2 + 3 · 3/4) = 5.5 for an ideal correction: √T decides from T = 121 on."""
    assert local_rate(KNOWN, SETTING, 100) == pytest.approx(1 / 11)
    assert local_rate(KNOWN, SETTING, 144) == pytest.approx(1 / 12)


def test_slope_and_interval_by_hand():
    """Slopes −0.5 and −0.7: mean −0.6, standard error 0.1, and Student's t of one degree is 12.706."""
    found = log_slope([10, 1000], [[1.0, 0.1], [1.0, 10**-1.4]])
    assert found == pytest.approx((-0.6, -0.6 - 1.2706, -0.6 + 1.2706))
    values = [5.0, 2.0, 2.5]  # three places: Σ (x − x̄)(y − ȳ) / Σ (x − x̄)², and every seed the same
    x, y = [log(t) for t in (10, 20, 80)], [log(v) for v in values]
    middle = sum(x) / 3
    slope = sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)
    same = log_slope([10, 20, 80], [values] * 40)
    assert same == pytest.approx((slope, slope, slope))


def test_the_interval_holds_the_true_slope_as_often_as_it_says():
    random = np.random.default_rng(0)
    lengths = [16, 32, 64]
    hits = 0
    for _ in range(1000):
        noise = np.exp(0.1 * random.standard_normal((4, 3)))
        _, low, high = log_slope(lengths, (np.array(lengths) ** -0.5 * noise).tolist())
        hits += low <= -0.5 <= high
    assert 930 <= hits <= 970


def test_drift_and_reach_by_hand():
    """The third update starts from version 0: the longest offset before it is 4."""
    updates = [
        {"version": 1, "base_version": 0, "update_norm": 4.0, "drift_norm": 0.0},
        {"version": 2, "base_version": 1, "update_norm": 1.0, "drift_norm": 0.0},
        {"version": 3, "base_version": 0, "update_norm": 9.0, "drift_norm": 3.0},
        {"version": 4, "base_version": 1, "update_norm": 2.0, "drift_norm": 5.0},
    ]
    assert drift_and_reach(updates) == (8.0, 0.0 + 0.0 + 4.0 + 9.0)


def test_drift_and_reach_of_a_buffer_by_hand():
    """Steps of two: version 1 contains updates of 4 and 7, version 2 of 1 and 9 too; drifts cross those."""
    lengths, bases, versions = (4.0, 7.0, 1.0, 9.0, 2.0), (0, 0, 0, 1, 1), (0, 1, 1, 2, 2)
    updates = [
        {"version": version, "base_version": base, "update_norm": length, "drift_norm": 1.0}
        for length, base, version in zip(lengths, bases, versions, strict=True)
    ]
    assert drift_and_reach(updates) == (5.0, 0.0 + 0.0 + 7.0 + 0.0 + 9.0)


# --- runs ---------------------------------------------------------------------------------------------


def method_of(name):
    return replace(METHODS[name], weighting="none", global_lr=0.5)


@every_problem
def test_a_run_is_the_simulators_and_its_gradients_are_those_of_its_models(problem):
    """Runs cut off after 0 … 5 updates have the models of the longer one."""
    method = method_of("asyncbezier")
    setting = chosen_setting(method)
    made = measure_run(problem, method, setting, length=6, local_lr=0.2, seed=3)
    training = LocalTraining(
        point_epochs=2, curve_epochs=1, batch_size=1, optimizer="sgd", local_lr=0.2, proximal=0.0
    )
    models = [FlatModel(problem.task.build_model(3)).vector]
    for updates in range(1, 7):
        run = Run(updates=updates, evaluate_every=6, seed=3)
        result = simulate(problem.task, method, training=training, schedule=SCHEDULE, run=run)
        models.append(torch.cat([p.detach() for p in result.model.parameters()]))
    squares = [
        np.sum(example_gradients(problem, theta.double().numpy()).mean(axis=0) ** 2) for theta in models
    ]
    assert made.square == pytest.approx(np.mean(squares[:6]), rel=1e-4)
    losses = [loss_at(problem, models[k].double().numpy()) for k in (0, -1)]
    assert [made.start_loss, made.end_loss] == pytest.approx(losses, rel=1e-5)
    assert made.staleness == pytest.approx(result.summary["staleness_mean"])


@every_problem
def test_plain_transport_has_quality_one_and_projections_do_not(problem):
    runs = {}
    for name in ("asyncsgd", "fedortho"):
        method = method_of(name)
        setting = chosen_setting(method)
        runs[name] = [
            measure_run(problem, method, setting, length=40, local_lr=0.1, seed=seed) for seed in (0, 1)
        ]
    assert measured_constants(runs["asyncsgd"]).quality == pytest.approx(1.0, abs=1e-4)
    assert measured_constants(runs["fedortho"]).quality < 0.98
    assert 0.0 < measured_constants(runs["asyncsgd"]).staleness <= 0.5 * 40


@pytest.mark.parametrize("name", ["asyncbezier-ed", "fedasync", "dcasgd", "asyncfeded", "fedbuff", "fedavg"])
def test_what_a_step_keeps_and_how_long_it_is(name):
    """Q and R² are ratios of sums over the run's own models and updates, held-back steps included."""
    problem, method = regression(), chosen_method(name)
    setting = chosen_setting(method)
    made = measure_run(problem, method, setting, length=24, local_lr=0.1, seed=1)
    models, trace = [FlatModel(problem.task.build_model(1)).vector.double().numpy()], []
    training = LocalTraining(
        point_epochs=setting.point_steps,
        curve_epochs=setting.curve_steps,
        batch_size=1,
        optimizer="sgd",
        local_lr=0.1,
        proximal=0.0,
    )
    for updates in range(1, 25):
        run = Run(updates=updates, evaluate_every=24, seed=1)
        result = simulate(problem.task, method, training=training, schedule=SCHEDULE, run=run)
        models.append(FlatModel(result.model).vector.double().numpy())
        trace = result.trace
    steps = [2.0 * (after - before) for before, after in pairwise(models)]
    slopes = [example_gradients(problem, theta).mean(axis=0) for theta in models]
    assert made.kept == pytest.approx(-sum(a @ b for a, b in zip(slopes, steps, strict=False)), rel=1e-4)
    assert made.moved == pytest.approx(sum(step @ step for step in steps), rel=1e-4)
    norms = [record["update_norm"] for record in trace if record["kind"] == "update"]
    assert made.received == pytest.approx(sum(norm**2 for norm in norms), rel=1e-4)
    least = {"fedbuff": 2, "fedavg": 3}.get(name, 24)  # steps: two buffers of 10, three rounds of 8
    assert sum(bool(step.any()) for step in steps) == least


@pytest.mark.parametrize("name", ["asyncbezier-ed", "fedasync", "dcasgd", "asyncfeded", "fedbuff", "fedavg"])
def test_the_bound_holds_for_every_method(name, tmp_path):
    for finding in study_convergence(name, [16, 24], [0, 1], tmp_path, quiet=True):
        assert finding.measured.quality > 0.0
        assert finding.measured.stretch >= {"fedbuff": sqrt(1 / 16), "fedavg": sqrt(1 / 8)}.get(name, 1.0)
        for entry in finding.lengths:
            assert max(entry.squares) < entry.bound
        assert (finding.printed is None) == (name == "fedavg")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    return study_convergence("asyncbezier", [32, 8, 16], [0, 1], out, quiet=True), out


def test_the_bound_holds_and_the_norms_fall(study):
    findings, _ = study
    assert [finding.problem for finding in findings] == ["flat", "sphere"]
    for finding in findings:
        assert [entry.updates for entry in finding.lengths] == [8, 16, 32]
        for entry in finding.lengths:
            assert max(entry.squares) < entry.bound
            assert entry.mean == pytest.approx(sum(entry.squares) / 2)
        assert finding.lengths[0].mean > finding.lengths[-1].mean
        assert finding.slope_low < finding.slope < finding.slope_high
        rows = list(zip(*(entry.squares for entry in finding.lengths), strict=True))
        assert finding.slope == pytest.approx(log_slope([8, 16, 32], rows)[0])
        assert finding.measured.quality == min(entry.measured.quality for entry in finding.lengths)
        assert finding.measured.staleness == max(entry.measured.staleness for entry in finding.lengths)


def test_the_files_say_what_was_found(study):
    findings, out = study
    kept = json.loads((out / "theory.json").read_text())
    assert [{name: entry[name] for name in findings[0].brief()} for entry in kept] == [
        finding.brief() for finding in findings
    ]
    root = ElementTree.parse(out / "figures" / "convergence.svg").getroot()
    words = " ".join(element.text or "" for element in root.iter())
    assert f"slope {findings[0].slope:.3f}".replace("-", "−") in words
    assert "slope −½" in words
    assert sorted(path.name for path in out.iterdir()) == ["figures", "theory.html", "theory.json"]


def test_the_table_has_a_row_for_every_length(study, capsys):
    findings, out = study
    print_findings(findings, out)
    said = capsys.readouterr().out
    for finding in findings:
        assert f"slope {finding.slope:.3f}, 95 % interval" in said
        for entry in finding.lengths:
            assert any(line.split()[:1] == [str(entry.updates)] for line in said.splitlines())
            assert f"{entry.mean:.5f}" in said
    assert "…" not in said
    assert all(len(line) <= 80 for line in said.splitlines() if str(out) not in line)


def test_the_figure_draws_what_it_is_given(study):
    """Values that fall tenfold over two decades are parallel to the line of slope −½."""
    finding = study[0][0]
    first = replace(finding.lengths[0], updates=1, squares=[1.0, 1.0], mean=1.0, bound=10.0)
    last = replace(first, updates=100, squares=[0.1, 0.1], mean=0.1, bound=None)
    figure = convergence_figure([replace(finding, lengths=[first, last])])
    assert [(row["updates"], row["value"]) for row in figure.data["means"]] == [(1, 1.0), (100, 0.1)]
    assert [(row["updates"], row["value"]) for row in figure.data["bounds"]] == [(1, 10.0)]
    reference = [(row["updates"], row["value"]) for row in figure.data["reference"]]
    assert reference == [(1, 3.0), (10, pytest.approx(3 / 10**0.5)), (100, pytest.approx(0.3))]
    assert [row["value"] for row in figure.data["seeds"]] == [1.0, 1.0, 0.1, 0.1]
    scale = figure.specification["layer"][0]["encoding"]["y"]["scale"]
    assert scale["type"] == "log"
    assert scale["domain"][0] < 0.1 < 10.0 < scale["domain"][1]


# --- the command --------------------------------------------------------------------------------------

SHORT = ["--lengths", "8,16", "--seeds", "0,1"]


def test_json_is_the_slopes_and_nothing_else(tmp_path, capsys):
    assert main(["theory", *SHORT, "--method", "asyncsgd", "--json", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert [list(entry) for entry in found] == [["problem", "slope", "slope_low", "slope_high"]] * 2
    assert said.err == ""
    again = study_convergence("asyncsgd", [8, 16], [0, 1], tmp_path / "again", quiet=True)
    assert found == [finding.brief() for finding in again]
    assert main(["theory", *SHORT, "--method", "asyncsgd", "--quiet", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr() == ("", "")


def test_without_geoopt_one_line_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "geoopt", None)
    assert main(["theory", *SHORT, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "pip install 'asyncmanifold[curved]'" in said.err
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["theory", *SHORT, "--out", str(tmp_path / "file")]) == 2
    assert "file: " in capsys.readouterr().err


def test_only_methods_that_the_theorem_covers_are_taken():
    for name in COVERED:
        assert isinstance(METHODS[name].embedding, Point | Bezier)
    with pytest.raises(InputError, match="fednone"):
        study_convergence("fednone", [8, 16], [0, 1], None)


# --- what docs/theory.md says of the paper ------------------------------------------------------------


def test_no_constant_of_quality_holds_for_every_update():
    """An update straight back along the drift descends, and OrthoDC leaves nothing of it."""
    drift = np.array([1.0, 0.0])
    update = -drift
    rows = np.stack([update, drift])
    corrected = OrthoDC(0.0).coefficients(rows @ rows.T) @ rows
    assert corrected.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_the_gradient_of_the_mean_loss_at_a_point_is_shared_by_the_control_points(degree):
    """‖grad G(φ_0)‖² = n/(n + 1)² ‖grad L‖² for G(φ) = ∫ L(ι_φ(x)) dx; λ_min of ι_ω is 1."""
    embedding = Bezier(degree)
    offsets = torch.zeros(degree, 2, dtype=torch.float64, requires_grad=True)
    slope = torch.tensor([3.0, 4.0], dtype=torch.float64)
    grid = np.linspace(0.0, 1.0, 2001)
    weights = torch.tensor(np.array([embedding.weights(float(x)) for x in 0.5 * (grid[1:] + grid[:-1])]))
    (gradient,) = torch.autograd.grad((weights @ offsets @ slope).mean(), offsets)
    assert float((gradient**2).sum()) == pytest.approx(25.0 * degree / (degree + 1) ** 2, rel=1e-5)
    assert embedding.weights(1.0) == [0.0] * (degree - 1) + [1.0]


def test_a_small_curve_is_as_bent_as_it_is_small():
    """The curvature of ι_εφ is that of ι_φ over ε, so no C bounds it near a point parametrisation."""

    def curvature(scale, t=0.5):
        offsets = scale * np.array([[1.0, 1.0], [2.0, 0.0]])
        weights = [np.array(Bezier(2).weights(x)) @ offsets for x in (t - 1e-3, t, t + 1e-3)]
        velocity, bend = (weights[2] - weights[0]) / 2e-3, (weights[2] - 2 * weights[1] + weights[0]) / 1e-6
        return abs(velocity[0] * bend[1] - velocity[1] * bend[0]) / np.linalg.norm(velocity) ** 3

    assert curvature(1e-2) == pytest.approx(100 * curvature(1.0), rel=1e-6)


def test_the_end_point_moves_a_curve_on_the_sphere_nearly_as_in_flat_space():
    """‖∂γ(x)/∂p_2 − x² P‖ ≤ r²/2 and ‖∂γ(x)/∂p_k‖ ≤ 1 for control points within r ≤ 1/2 of the first."""
    maps = FlatModel(eigenvector().task.build_model(0)).space.pieces[0].maps
    generator = torch.Generator().manual_seed(0)

    def random_tangent(x, length):
        way = maps.project(x, torch.randn(4, generator=generator, dtype=torch.float64))
        return length * way / way.norm()

    for trial in range(150):
        r = (0.05, 0.2, 0.5)[trial % 3]
        x = maps.repair(torch.randn(4, generator=generator, dtype=torch.float64))
        way = random_tangent(x, r)
        ways = [way, -way if trial % 2 else random_tangent(x, r)]
        p1, p2 = (maps.exp(x, v) for v in ways)
        s = float(torch.rand((), generator=generator))
        jacobians = torch.autograd.functional.jacobian(
            lambda a, b, x=x, s=s: de_casteljau([x, a, b], s, partial(geodesic, maps)), (p1, p2)
        )
        by_first, by_end = (
            j @ (torch.eye(4) - torch.outer(p, p)) for j, p in zip(jacobians, (p1, p2), strict=True)
        )
        here = de_casteljau([x, p1, p2], s, partial(geodesic, maps))
        columns = [maps.transport(p2, here, maps.project(p2, e)) for e in torch.eye(4).double()]
        error = by_end - s**2 * torch.stack(columns, dim=1)
        assert torch.linalg.matrix_norm(error, 2) <= 0.5 * r**2
        assert max(torch.linalg.matrix_norm(j, 2) for j in (by_first, by_end)) <= 1.0 + 1e-9


def test_great_circles_are_measured_by_angle():
    """The study's own geodesics, against a quarter turn."""
    turned = moved(eigenvector(), np.eye(8)[0], np.eye(8)[1], pi / 2)
    assert turned == pytest.approx(np.eye(8)[1], abs=1e-12)
    assert sqrt(np.sum(turned**2)) == pytest.approx(1.0)
