"""Jobs trained as one batched program: as trained one by one, up to rounding; refused where it cannot be."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

from asyncmanifold import (
    METHODS,
    Bezier,
    InputError,
    LocalTraining,
    Placement,
    Run,
    Schedule,
    Shares,
    Task,
    Tunnel,
)
from asyncmanifold import simulate as simulate_run
from asyncmanifold.client import batched_program
from asyncmanifold.execution.batched_executor import BatchedExecutor
from asyncmanifold.execution.executors import InlineExecutor
from asyncmanifold.execution.training_worker import Recipe
from asyncmanifold.server.protocol import Failure, Job
from asyncmanifold.vectors import FlatModel
from tiny import make_task, without_wall_times

BATCHED = Placement(executor="batched", workers=5)
SIZES = (7, 16, 24, 33, 40, 12)
TRAINING = LocalTraining(point_epochs=2, curve_epochs=1, batch_size=8, local_lr=0.02)
CURVE = METHODS["asyncbezier"]


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def batchable(model=perceptron, broken=()):
    return replace(make_task(SIZES, broken=broken), model=model)


def run_both(task, method, training=TRAINING, updates=12):
    settings = {
        "training": training,
        "schedule": Schedule(concurrency=6),
        "run": Run(updates=updates, evaluate_every=6),
    }
    return (
        simulate_run(task, method, **settings, placement=BATCHED),
        simulate_run(task, method, **settings),
    )


def assert_near(batched, inline):
    for one, other in zip(without_wall_times(batched.trace), without_wall_times(inline.trace), strict=True):
        assert (one["kind"], one.get("client")) == (other["kind"], other.get("client"))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    for one, other in zip(batched.model.parameters(), inline.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    "method",
    [
        "fedasync",
        "fedbuff",
        "asyncbezier",
        replace(CURVE, embedding=Bezier(3, interior_start="chord")),
        replace(CURVE, embedding=Bezier(2, interior_start="trajectory")),
        replace(CURVE, embedding=Tunnel(2, radius=0.02)),
    ],
    ids=["fedasync", "fedbuff", "asyncbezier", "cubic", "trajectory", "tunnel"],
)
def test_jobs_of_different_lengths_give_what_they_give_alone(method):
    """Clients have 7 to 40 examples: jobs differ in steps, and batches in size."""
    assert_near(*run_both(batchable(), method))


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "local_lr": 0.1},
        {"optimizer": "sgd", "local_lr": 0.1, "local_schedule": "linear", "proximal": 0.3},
        {"optimizer": "sgd", "local_lr": 0.05, "momentum": 0.9, "proximal": 0.3},
        {"optimizer": {"name": "RMSprop", "weight_decay": 0.01}, "local_lr": 0.005},
        {"gradient_clip": 0.1, "local_schedule": "cosine", "warm_up": 0.2},
    ],
    ids=["sgd", "falling", "momentum", "RMSprop", "clipped"],
)
def test_every_optimiser_does_the_same_batched(changes):
    assert_near(*run_both(batchable(), "asyncbezier", replace(TRAINING, **changes)))


def test_convolutions_and_dictionaries_are_batched():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv1d(1, 3, 3)
            self.head = nn.Linear(12, 3)

        def forward(self, rows, scale):
            return self.head(self.convolution(rows.unsqueeze(1)).relu().flatten(1)) * scale[:, None]

    random = torch.Generator().manual_seed(0)
    clients = [
        {
            "rows": torch.randn(size, 6, generator=random),
            "scale": torch.ones(size),
            "labels": torch.randint(3, (size,), generator=random),
        }
        for size in SIZES
    ]
    torch.manual_seed(1)
    task = Task(Named(), nn.functional.cross_entropy, clients, test=clients[0])
    assert_near(*run_both(task, "fedasync"))


EVEN = (24,) * 6
"""As many examples for each client: every step then has the same shape."""


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_that_come_again_are_written_down_and_give_the_same(optimizer, monkeypatch):
    task = replace(make_task(EVEN), model=perceptron)
    training = replace(TRAINING, optimizer=optimizer)
    plain, inline = run_both(task, "asyncbezier", training)
    traced = []
    monkeypatch.setattr(batched_program, "STEPS_BEFORE_TRACE", 3)
    trace = batched_program._traced
    monkeypatch.setattr(batched_program, "_traced", lambda *given: traced.append(trace(*given)) or traced[-1])
    repeated, _ = run_both(task, "asyncbezier", training)
    assert traced
    assert all(isinstance(program, GraphModule) for program in traced)
    assert_near(repeated, inline)
    assert without_wall_times(repeated.trace) == without_wall_times(plain.trace)


def test_a_step_that_cannot_be_written_down_stays_as_it_is(monkeypatch):
    def plain(first, second):
        return first + second, first * second

    pair = [torch.ones(2), torch.ones(2)]
    assert batched_program._traced(plain, pair) is not plain
    calls = iter(range(9))
    assert batched_program._traced(counting := lambda *pair: (next(calls) * pair[0],), pair) is counting
    monkeypatch.setattr(batched_program, "make_fx", lambda program: 1 / 0)
    assert batched_program._traced(plain, pair) is plain


def test_a_batched_run_repeats_to_the_last_bit():
    first, again = (run_both(batchable(), "asyncbezier", updates=8)[0] for _ in range(2))
    assert without_wall_times(first.trace) == without_wall_times(again.trace)


def test_a_job_that_diverges_fails_alone():
    batched, inline = run_both(batchable(broken=(2,)), "fedasync")
    failed = [record for record in batched.trace if record["kind"] == "failed"]
    assert {record["client"] for record in failed} == {2}
    assert "loss became nan in epoch 1" in failed[0]["reason"]
    assert [r["client"] for r in batched.trace if r["kind"] == "update"] == [
        r["client"] for r in inline.trace if r["kind"] == "update"
    ]


def test_jobs_that_arrive_next_are_trained_together_and_no_more_than_needed(monkeypatch):
    task = batchable()
    recipe = Recipe(task, METHODS["fedasync"].embedding, (), TRAINING, seed=0)
    executor, alone = BatchedExecutor(recipe, count=3), InlineExecutor(recipe)
    trained = []
    train = executor._trainer.train
    monkeypatch.setattr(
        executor._trainer,
        "train",
        lambda jobs, *rest: trained.append([j.number for j in jobs]) or train(jobs, *rest),
    )
    model = FlatModel(task.build_model(0))
    jobs = [Job(number=n, client=n, version=0, theta=model.vector.clone()) for n in range(6)]
    for job in jobs:
        executor.submit(job, arrival=[5.0, 1.0, 4.0, 2.0, 3.0, 6.0][job.number])
    executor.release(jobs[3])  # its client has left
    for number, remaining in ((1, 9), (4, 8), (2, 7), (0, 1)):
        outcome = executor.result(jobs[number], remaining)
        assert not isinstance(outcome, Failure)
        expected = alone.result(jobs[number], 1).tensors["offsets"]
        torch.testing.assert_close(outcome.tensors["offsets"], expected, rtol=1e-3, atol=1e-5)
        executor.release(jobs[number])
    assert trained == [[1, 4, 2], [0]]


class Branching(nn.Linear):
    """Looks at its numbers to decide what to do."""

    def forward(self, inputs):
        return super().forward(inputs if inputs.sum() > 0 else -inputs)


class Counting(nn.Linear):
    """Has a buffer that changes in training."""

    def __init__(self):
        super().__init__(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs)


REFUSED = {
    "batchnorm": (lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), {}, "BatchNorm's statistics"),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 3)), {}, "dropout would draw"),
    "branching": (lambda: Branching(6, 3), {}, "data-dependent control flow"),
    "counting": (Counting, {}, "its buffers change in training"),
    "accumulate": (perceptron, {"accumulate": 2}, "with accumulate, precision or compile"),
    "bf16": (perceptron, {"precision": "bf16"}, "with accumulate, precision or compile"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_batched_is_refused_in_one_line(name, tmp_path):
    model, changes, reason = REFUSED[name]
    settings = {"training": replace(TRAINING, **changes), "run": Run(updates=2), "placement": BATCHED}
    with pytest.raises(
        InputError, match=f"executor 'batched' cannot train this model: .*{reason}.*; use"
    ) as caught:
        simulate_run(batchable(model), "fedasync", **settings)
    assert "\n" not in str(caught.value)


def test_a_second_pass_and_other_devices_are_refused():
    method = replace(CURVE, embedding=Tunnel(2, radius=0.02, sharpness_aware=True))
    with pytest.raises(InputError, match="sharpness-aware training takes a second pass"):
        simulate_run(batchable(), method, training=TRAINING, run=Run(updates=6), placement=BATCHED)
    recipe = Recipe(batchable(), CURVE.embedding, (), TRAINING, seed=0, device=torch.device("meta"))
    with pytest.raises(InputError, match="executor 'batched' is for the CPU, not for device 'meta'"):
        BatchedExecutor(recipe, 2)


def test_shares_and_the_command_line_take_it(tmp_path):
    from asyncmanifold.commands.cli import build_parser

    options = build_parser().parse_args(["run", "digits", "--executor", "batched", "--workers", "8"])
    assert (options.executor, options.workers) == ("batched", 8)
    inputs, targets = torch.randn(60, 6), torch.randint(3, (60,))
    task = Task(
        perceptron,
        nn.functional.cross_entropy,
        Shares(inputs, targets, [range(20), range(20, 60)]),
        (inputs, targets),
    )
    result = simulate_run(
        task, "fedasync", training=TRAINING, run=Run(updates=4), placement=Placement(executor="batched")
    )
    assert result.summary["updates"] == 4
