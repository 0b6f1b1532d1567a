"""The event loop: who trains when, what is recorded, and that nothing else reaches the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncmanifold import METHODS, AdaptiveEpochs, Averaging, Schedule, Situation, Task, absorb, simulate
from asyncmanifold.client.training import Trainer
from asyncmanifold.errors import RunError
from asyncmanifold.server.protocol import Job, ServerState
from asyncmanifold.server.step import flush
from asyncmanifold.simulation.schedules import ConstantLatency
from asyncmanifold.tasks.data import Excerpt, TensorData
from asyncmanifold.vectors import FlatModel
from tiny import CLOCK, TRAINING, make_model, make_run, make_task, of_kind, simulated


def run(method="fedasync", schedule=CLOCK, task=None, **settings):
    return simulate(
        task or make_task(), method, training=TRAINING, schedule=schedule, run=make_run(**settings)
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_records_every_update_once(name):
    records = run(name, updates=30).trace
    updates = of_kind(records, "update")
    assert [record["update"] for record in updates] == list(range(1, 31))
    assert [record["update"] for record in of_kind(records, "evaluation")] == [0, 10, 20, 30]
    times = [record["time"] for record in records]
    assert times == sorted(times)
    for record in updates:
        assert record["version"] - record["base_version"] >= record["staleness"] >= 0
        assert record["dispatched"] < record["time"]
        assert len(record["cosines"]) == len(record["projected"]) == METHODS[name].embedding.points


@pytest.mark.parametrize("name", METHODS)
def test_a_slow_replay_of_the_trace_gives_the_same_model(name):
    """Keep a copy of every version, train each recorded job anew, absorb it: no memory is reused."""
    method, task = METHODS[name], make_task()
    result = run(name, updates=25)
    model = FlatModel(task.build_model(0))
    state = ServerState(model.vector.clone(), model.read_statistics())
    versions = {0: (state.theta.clone(), state.statistics)}
    trainer = Trainer(make_model(), task.loss, method.embedding, TRAINING, seed=0)
    total = sum(len(data) for data in task.clients)
    for record in of_kind(result.trace, "update"):
        theta, statistics = versions[record["base_version"]]
        curve_epochs = TRAINING.curve_epochs if method.embedding.is_curve else 0
        job = Job(
            number=record["job"],
            client=record["client"],
            version=record["base_version"],
            theta=theta,
            statistics=statistics,
            point_epochs=record["epochs"] - curve_epochs,
            curve_epochs=curve_epochs,
        )
        data = task.clients[job.client]
        update, share = trainer.train(job, data), len(data) / total
        state, _ = absorb(method, state, update, base=theta, weight=share, situation=Situation.of(record))
        if state.version < record["version"]:
            state = flush(method, state)  # a synchronous round is complete
        versions[state.version] = (state.theta.clone(), state.statistics)
    final, (theta, statistics) = FlatModel(result.model), state.returned()
    assert torch.equal(final.vector, theta)
    assert torch.equal(final.read_statistics().floats, statistics.floats)


@pytest.mark.parametrize("name", ["fedasync", "fedbuff", "asyncbezier"])
@pytest.mark.parametrize("kind", ["queue", "clock"])
def test_concurrency_1_gives_zero_staleness(name, kind):
    records = run(name, replace(CLOCK, kind=kind, concurrency=1)).trace
    assert {record["staleness"] for record in of_kind(records, "update")} == {0}


def test_staleness_stays_below_the_number_in_flight_when_clients_are_alike():
    schedule = Schedule("clock", latency=ConstantLatency(), concurrency=3)
    records = run("asyncsgd", schedule, make_task(sizes=(20,) * 6)).trace
    assert max(record["staleness"] for record in of_kind(records, "update")) == 2


def test_ties_break_by_dispatch_number():
    records = run("asyncsgd", Schedule("clock"), make_task(sizes=(20,) * 5)).trace
    jobs = [record["job"] for record in of_kind(records, "update")]
    assert jobs == sorted(jobs)


def test_faster_clients_contribute_more():
    records = run("asyncsgd", Schedule("clock"), updates=60).trace
    counts = np.bincount([record["client"] for record in of_kind(records, "update")])
    assert counts[0] > 2 * counts[-1]  # 12 examples against 44


def test_fedavg_waits_for_every_client_and_averages_the_round():
    records = run("fedavg", Schedule("clock"), updates=20).trace
    updates = of_kind(records, "update")
    for number in range(0, 20, 5):
        clients = {record["client"] for record in updates[number : number + 5]}
        assert clients == set(range(5))
    assert [record["version"] for record in updates] == [k // 5 for k in range(1, 21)]
    assert {record["staleness"] for record in updates} == {0}
    # The slowest client has 44 of a mean of 28 examples and one epoch: every round takes 44/28.
    assert updates[-1]["time"] == pytest.approx(4 * 44 / 28)


def test_fedavg_goes_on_when_a_client_drops_out():
    records = run("fedavg", replace(CLOCK, drop_probability=0.3), updates=20).trace
    assert of_kind(records, "dropped")
    assert len(of_kind(records, "update")) == 20


def test_lost_jobs_are_recorded_and_their_clients_start_anew():
    records = run("fedasync", replace(CLOCK, drop_probability=0.5), updates=40).trace
    dropped = of_kind(records, "dropped")
    assert 15 < len(dropped) < 80
    assert {record["client"] for record in of_kind(records, "update")} == set(range(5))


def test_clients_join_late_and_leave_for_good():
    schedule = replace(CLOCK, late_fraction=0.5, late_by=3.0, leave_fraction=0.5, leave_by=6.0)
    records = run("asyncsgd", schedule, make_task(sizes=(10,) * 12), updates=80, seed=3).trace
    joined = {record["client"]: record["time"] for record in of_kind(records, "joined")}
    left = {record["client"]: record["time"] for record in of_kind(records, "left")}
    assert joined
    assert left
    for record in of_kind(records, "update"):
        assert record["dispatched"] >= joined.get(record["client"], 0.0)
        assert record["time"] <= left.get(record["client"], float("inf"))


def test_a_run_without_clients_left_says_so():
    schedule = replace(CLOCK, leave_fraction=1.0, leave_by=1.0)
    with pytest.raises(RunError, match="no client is left"):
        run("asyncsgd", schedule, updates=1000)


def test_a_loss_that_is_not_a_number_is_reported_and_the_run_goes_on():
    records = run("asyncbezier", task=make_task(broken=(2,)), updates=30).trace
    failed = of_kind(records, "failed")
    assert failed
    assert {record["client"] for record in failed} == {2}
    assert failed[0]["reason"] == "loss became nan in epoch 1"
    assert {record["client"] for record in of_kind(records, "update")} == {0, 1, 3, 4}


def test_a_run_in_which_nothing_is_accepted_ends():
    with pytest.raises(RunError, match="no update was accepted in 100 arrivals, the last: loss became nan"):
        run(task=make_task(broken=(0, 1, 2, 3, 4)))


def test_rejected_updates_change_nothing_and_leave_a_line():
    bounded = replace(METHODS["asyncsgd"], norm_bound=0.35)
    records = run(bounded, updates=20).trace
    rejected = of_kind(records, "rejected")
    assert rejected
    assert "is above the bound 0.35" in rejected[0]["reason"]
    assert all(record["update_norm"] <= 0.35 for record in of_kind(records, "update"))
    versions = [record["version"] for record in of_kind(records, "update")]
    assert versions == list(range(1, 21))  # no version came from a rejected one


def test_a_maximum_staleness_is_kept():
    records = run(replace(METHODS["asyncsgd"], max_staleness=3), updates=30).trace
    assert max(record["staleness"] for record in of_kind(records, "update")) <= 3
    assert "is above the limit 3" in of_kind(records, "rejected")[0]["reason"]


def test_adaptive_epochs_change_the_jobs():
    many = replace(TRAINING, point_epochs=4)
    result = simulate(make_task(), "asyncfeded", training=many, schedule=CLOCK, run=make_run(60))
    epochs = [record["epochs"] for record in of_kind(result.trace, "update")]
    assert epochs[0] == 4
    assert min(epochs) < 4


def test_the_returned_model_is_the_average_of_late_models():
    averaged = replace(METHODS["asyncsgd"], averaging=Averaging(average_from=20, average_every=2))
    thetas = []
    for updates in range(20, 31, 2):
        thetas.append(FlatModel(run("asyncsgd", updates=updates).model).vector.clone())
    expected = torch.stack(thetas).mean(dim=0)
    assert torch.allclose(FlatModel(run(averaged, updates=30).model).vector, expected, atol=1e-6)


def test_the_target_is_found_to_the_update():
    """All test examples at a glance: evaluated at the very update that an evaluation of each would find."""
    each = run("asyncsgd", updates=40, evaluate_every=1, target=0.6)
    first = each.summary["rounds_to_target"]
    assert first % 10 != 0  # else the usual evaluations would find it
    found = run("asyncsgd", updates=40, target=0.6, target_every=1)
    assert found.summary["rounds_to_target"] == first
    evaluated = [record["update"] for record in of_kind(found.trace, "evaluation")]
    assert evaluated == sorted({0, 10, 20, 30, 40, first})
    every_other = run("asyncsgd", updates=40, target=0.6, target_every=2).summary["rounds_to_target"]
    reached = {r["update"] for r in of_kind(each.trace, "evaluation") if r["accuracy"] >= 0.6}
    assert every_other == min(update for update in reached if update % 2 == 0)
    assert of_kind(run("asyncsgd", updates=40, target_every=1).trace, "evaluation")[1]["update"] == 10


def test_a_glance_decides_only_when_to_evaluate():
    """One test example is right or wrong: the target counts where all examples reach it, and only there."""
    found = run("asyncsgd", updates=40, target=0.6, target_every=1, target_examples=1)
    records = of_kind(found.trace, "evaluation")
    reached = [record["update"] for record in records if record["accuracy"] >= 0.6]
    assert found.summary["rounds_to_target"] == reached[0]
    usual = run("asyncsgd", updates=40, target=0.6)
    assert torch.equal(FlatModel(found.model).vector, FlatModel(usual.model).vector)


def test_an_excerpt_is_spread_over_all_examples():
    data = TensorData(torch.arange(10.0), torch.arange(10))
    excerpt = Excerpt(data, 4)
    assert len(excerpt) == 4
    assert excerpt.batch(torch.arange(4))[1].tolist() == [0, 2, 5, 7]
    assert Excerpt(data, 99).batch(torch.arange(10))[1].tolist() == list(range(10))


def test_weights_are_shares_of_all_examples():
    records = run("asyncsgd", updates=40).trace
    weights = {record["client"]: record["weight"] for record in of_kind(records, "update")}
    assert weights == {k: size / 140 for k, size in enumerate((12, 20, 28, 36, 44))}


def test_the_summary_says_what_the_trace_says():
    result = run("asyncsgd", updates=40, target=0.6)
    summary, scores = result.summary, of_kind(result.trace, "evaluation")
    updates = of_kind(result.trace, "update")
    assert summary["last"] == scores[-1]["accuracy"]
    assert len(scores) == 5  # with the one before the first update
    assert summary["final"] == pytest.approx(np.mean([record["accuracy"] for record in scores[1:]]))
    assert summary["final_evaluations"] == 5
    assert summary["best"] == max(record["accuracy"] for record in scores)
    reached = [record for record in scores if record["accuracy"] >= 0.6]
    assert summary["rounds_to_target"] == reached[0]["update"]
    assert summary["time_to_target"] == reached[0]["time"]
    assert summary["staleness_mean"] == pytest.approx(np.mean([r["staleness"] for r in updates]))
    assert summary["train_seconds"] == pytest.approx(sum(r["train_seconds"] for r in updates))
    assert len(summary["per_client"]) == 5
    task, model = make_task(), FlatModel(result.model)
    scores = [task.evaluate(model, data)["accuracy"] for data in task.validation]
    assert summary["validation"] == pytest.approx(np.mean(scores))  # all of one size
    assert summary["updates"] == 40


def test_a_score_that_is_not_a_number_is_recorded_as_nothing():
    class Broken:
        higher_is_better = True

        def update(self, outputs, targets): ...

        def compute(self):
            return float("nan")

    plain = make_task()
    task = Task(plain.model, plain.loss, plain.clients, plain.test, metrics={"broken": Broken})
    result = run(task=task, updates=10)
    assert of_kind(result.trace, "evaluation")[-1]["broken"] is None
    assert result.summary["final"] is None
    assert result.summary["best"] is None


class Scripted:
    """A metric whose scores were decided beforehand: the first evaluation is the best."""

    scores: list[float]
    higher_is_better = True

    def update(self, outputs, targets): ...

    def compute(self):
        return type(self).scores.pop(0)


def test_fairness_is_that_of_the_best_model_and_validation_that_of_the_final_one():
    """Scores are asked for in this order: each evaluation, the best model's clients, the final model's."""
    plain = make_task()
    validation = [(plain.test.batch(torch.arange(n))) for n in (1, 2, 3, 4, 10)]
    task = Task(plain.model, plain.loss, plain.clients, plain.test, validation, metrics={"score": Scripted})
    best, final = [0.5, 0.5, 0.5, 0.5, 1.0], [0.1, 0.2, 0.3, 0.4, 0.9]
    Scripted.scores = [0.2, 0.9, 0.3, *best, *final]
    summary = run(task=task, updates=20).summary
    assert Scripted.scores == []
    assert (summary["best"], summary["last"]) == (0.9, 0.3)
    assert summary["final"] == pytest.approx(0.6)  # of 0.9 and 0.3, without the untrained model's 0.2
    assert summary["per_client"] == best
    assert summary["gini"] == pytest.approx(0.13333333)  # 4 · 2 · 0.5 / (2 · 25 · 0.6)
    assert summary["validation"] == pytest.approx((0.1 + 0.4 + 0.9 + 1.6 + 9.0) / 20)  # by examples


def test_the_best_model_is_what_the_clients_are_asked_about(monkeypatch):
    """The weights themselves: those of the evaluation with the highest score, and then the final ones."""
    seen = []

    class Watched:
        higher_is_better = True

        def update(self, outputs, targets):
            seen.append(outputs.sum().item())

        def compute(self):
            return 1.0 if len(seen) == 2 else 0.5  # the second evaluation is the best

    plain = make_task()
    task = Task(
        plain.model, plain.loss, plain.clients, plain.test, [plain.test] * 5, metrics={"score": Watched}
    )
    run(task=task, updates=30)
    evaluations, best, final = seen[:4], seen[4:9], seen[9:]
    assert best == [evaluations[1]] * 5
    assert final == [evaluations[3]] * 5
    assert evaluations[1] != evaluations[3]


def test_a_job_takes_as_long_as_its_adapted_epochs():
    """On a clock of constant latency: epochs times the client's examples over the mean, 28."""
    method = replace(METHODS["asyncfeded"], adaptive_epochs=AdaptiveEpochs(3.0, adapt_after=0, max_epochs=6))
    records = of_kind(run(method, Schedule("clock"), updates=60).trace, "update")
    assert len({record["epochs"] for record in records}) > 3
    for record in records:
        expected = record["epochs"] * (12, 20, 28, 36, 44)[record["client"]] / 28
        assert record["time"] - record["dispatched"] == pytest.approx(expected)


def test_a_synchronous_round_ends_although_its_last_job_is_lost():
    """And nothing of it is left for the next round: a replay of the updates alone gives the same model."""
    schedule = replace(CLOCK, drop_probability=0.4)
    result = run("fedavg", schedule, updates=30, seed=2)
    arrivals = [record for record in result.trace if record["kind"] in ("update", "dropped")]
    last = {record["base_version"]: record["kind"] for record in arrivals}
    assert list(last.values()).count("dropped") > 1
    again = simulate(
        make_task(), "fedavg", training=TRAINING, schedule=CLOCK, run=make_run(seed=2), replay=result.trace
    )
    assert torch.equal(FlatModel(again.model).vector, FlatModel(result.model).vector)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_with_one_example_and_batch_norm_fails_alone(workers):
    result = simulated(make_task(sizes=(20, 1, 20)), training=TRAINING, run=make_run(12), workers=workers)
    failed = of_kind(result.trace, "failed")
    assert {record["client"] for record in failed} == {1}
    assert {record["reason"] for record in failed} == {
        "a batch of one example, which BatchNorm cannot be trained on"
    }
    assert {record["client"] for record in of_kind(result.trace, "update")} == {0, 2}
