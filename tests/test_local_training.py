"""Local training as people know it: any optimiser, clipping, schedules of the rate, accumulated gradients."""

import os
import re
import subprocess
import sys
from functools import partial
from math import cos, pi
from pathlib import Path

import pytest
import torch
from torch import nn

from asyncmanifold import Bezier, InputError, Job, LocalTraining, Point, Records, Task, simulate
from asyncmanifold.client import Trainer
from asyncmanifold.configuration.config import config_tree, load_config
from asyncmanifold.files import load_tensors
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks import TensorData
from asyncmanifold.vectors import FlatModel
from reference import train_through_curve, training_steps
from test_training import EXAMPLES, examples
from test_training import perceptron as make_model
from tiny import make_run, make_task

SEED = 3
cross_entropy = nn.functional.cross_entropy


DATA = TensorData(*examples())


def make_job(point_epochs=2, curve_epochs=0, module=None):
    theta = FlatModel(module or make_model()).vector.clone()
    return Job(
        number=4, client=1, version=0, theta=theta, point_epochs=point_epochs, curve_epochs=curve_epochs
    )


def trained(job=None, embedding=None, make=make_model, data=DATA, **changes):
    settings = LocalTraining(**({"batch_size": 8, "local_lr": 0.05, "proximal": 0.0} | changes))
    return Trainer(make(), cross_entropy, embedding or Point(), settings, SEED).train(job or make_job(), data)


def bare_loop(make_optimizer, epochs=2, batch_size=8, proximal=0.0, clip=None, factors=None):
    """Train as any PyTorch user would, on the same batches, and return how far the weights moved."""
    model = make_model()
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = make_optimizer(list(model.parameters()))
    rate = optimizer.param_groups[0]["lr"]
    inputs, targets = examples()
    random = derive(SEED, Purpose.TRAINING, 1, 4)
    for number, (*_, indices) in enumerate(training_steps(random, EXAMPLES, batch_size, epochs, 0)):
        optimizer.zero_grad()
        weights = nn.utils.parameters_to_vector(model.parameters())
        loss = cross_entropy(model(inputs[indices]), targets[indices])
        (loss + proximal / 2 * (weights - start).square().sum()).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if factors is not None:
            optimizer.param_groups[0]["lr"] = rate * factors[number]
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - start


def assert_near(value, expected):
    torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-5)


CHOICES = {
    "AdamW": ({"weight_decay": 0.1}, torch.optim.AdamW),
    "SGD": ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.05}, torch.optim.SGD),
    "RMSprop": ({}, torch.optim.RMSprop),
    "Adagrad": ({"lr_decay": 0.1}, torch.optim.Adagrad),
    "Adafactor": ({}, torch.optim.Adafactor),
    "adam": ({"amsgrad": True, "betas": [0.8, 0.9]}, torch.optim.Adam),
}


@pytest.mark.parametrize("name", CHOICES)
def test_any_optimiser_of_torch_does_what_a_bare_loop_does(name):
    arguments, cls = CHOICES[name]
    update = trained(optimizer={"name": name, **arguments}, proximal=0.1)
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    assert_near(update.offsets[0], bare_loop(partial(cls, lr=0.05, **arguments), proximal=0.1))


def test_a_factory_makes_the_optimiser_and_decides_about_its_rate():
    def grouped(weights):  # biases are not decayed
        matrices, biases = [w for w in weights if w.dim() > 1], [w for w in weights if w.dim() == 1]
        return torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.5}, {"params": biases, "weight_decay": 0.0}], lr=0.02
        )

    assert_near(trained(optimizer=grouped).offsets[0], bare_loop(grouped))
    assert_near(
        trained(optimizer=torch.optim.NAdam).offsets[0], bare_loop(partial(torch.optim.NAdam, lr=0.05))
    )


def test_every_job_starts_with_a_fresh_optimiser():
    settings = LocalTraining(batch_size=8, optimizer="RMSprop")
    trainer = Trainer(make_model(), cross_entropy, Point(), settings, SEED)
    first = trainer.train(make_job(), DATA).offsets.clone()
    assert torch.equal(trainer.train(make_job(), DATA).offsets, first)


@pytest.mark.parametrize("cls", [torch.optim.RMSprop, torch.optim.NAdam])
@pytest.mark.parametrize("degree", [2, 3])
def test_curves_train_with_any_optimiser_with_its_state_for_each_control_point(cls, degree):
    update = trained(make_job(2, 2), Bezier(degree), optimizer=cls.__name__, local_lr=0.01, proximal=0.3)
    expected = train_through_curve(
        make_model(),
        cross_entropy,
        training_steps(derive(SEED, Purpose.TRAINING, 1, 4), EXAMPLES, 8, 2, 2),
        *examples(),
        degree=degree,
        optimizer=partial(cls, lr=0.01),
        proximal=0.3,
        interior_start="base",
        freeze_end=False,
    )
    for learned, exact in zip(update.offsets, expected, strict=True):
        assert_near(learned.double(), exact)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "RMSprop"])
def test_gradients_are_clipped_like_torch_does(optimizer):
    cls = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "RMSprop": torch.optim.RMSprop}[optimizer]
    expected = bare_loop(partial(cls, lr=0.05), proximal=0.1, clip=0.05)
    assert_near(trained(optimizer=optimizer, gradient_clip=0.05, proximal=0.1).offsets[0], expected)


def test_a_clipped_step_of_sgd_is_as_long_as_the_rate_times_the_bound():
    update = trained(make_job(1), optimizer="sgd", gradient_clip=0.01, batch_size=EXAMPLES, local_lr=0.5)
    assert float(torch.linalg.vector_norm(update.offsets)) == pytest.approx(0.005, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "RMSprop"])
def test_the_rate_rises_and_falls_within_a_job(optimizer):
    """Six steps: two of them to warm up, then half a cosine down to a tenth."""
    cls = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "RMSprop": torch.optim.RMSprop}[optimizer]
    fall = [0.1 + 0.9 * 0.5 * (1 + cos(pi * step / 4)) for step in range(4)]
    expected = bare_loop(partial(cls, lr=0.05), factors=[0.5, 1.0, *fall])
    schedule = {"local_schedule": "cosine", "warm_up": 1 / 3, "final_rate": 0.1}
    assert_near(trained(optimizer=optimizer, **schedule).offsets[0], expected)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "RMSprop"])
def test_accumulated_batches_are_one_large_batch(optimizer):
    large = trained(optimizer=optimizer, batch_size=8)
    small = trained(optimizer=optimizer, batch_size=4, accumulate=2)
    assert_near(small.offsets, large.offsets)
    assert small.loss == pytest.approx(large.loss, rel=1e-5)


def test_uneven_batches_weigh_as_many_examples_as_they_have():
    """23 examples in batches of 4 (4, 4, 4, 4, 4, 3) are one step of 23."""
    data = TensorData(*examples(23))
    one = trained(make_job(1), optimizer="sgd", batch_size=23, data=data)
    six = trained(make_job(1), optimizer="sgd", batch_size=4, accumulate=6, data=data)
    assert_near(six.offsets, one.offsets)


WRONG = {
    "Adamm": "is not in torch.optim",
    "LBFGS": "needs a closure",
    "SparseAdam": "SparseAdam does not support dense gradients",
    "Optimizer": "is not in torch.optim",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_optimiser_is_refused_at_once_in_one_line(name):
    with pytest.raises(InputError, match=WRONG[name]) as caught:
        LocalTraining(optimizer=name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": {"name": "AdamW", "decay": 1}}, "has no argument 'decay'"),
        ({"optimizer": {"name": "AdamW", "lr": 1.0}}, "as local_lr"),
        ({"optimizer": {"name": "AdamW", "betas": [2.0, 0.9]}}, "Invalid beta"),
        ({"optimizer": {"weight_decay": 0.1}}, "optimizer None is not in torch.optim"),
        ({"optimizer": lambda weights: 3}, "makes a int"),
        ({"optimizer": "RMSprop", "momentum": 0.9}, "only for optimizer 'sgd'"),
        ({"gradient_clip": 0.0}, "above 0"),
        ({"accumulate": 0}, "at least 1"),
        ({"local_schedule": "step"}, "'constant', 'linear' or 'cosine'"),
        ({"warm_up": 1.0}, r"in \[0, 1\)"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        LocalTraining(**settings)
    assert "\n" not in str(caught.value)


def test_an_optimiser_that_does_not_fit_the_model_is_refused_in_one_line():
    with pytest.raises(InputError, match="optimizer 'Muon' does not fit this model: Muon only supports 2D"):
        trained(optimizer="Muon")


def test_toml_names_an_optimiser_with_its_arguments(tmp_path):
    scenario = tmp_path / "own.toml"
    scenario.write_text(
        '[training]\noptimizer = { name = "AdamW", weight_decay = 0.01, betas = [0.9, 0.99] }\n'
        'gradient_clip = 1.0\naccumulate = 2\nlocal_schedule = "cosine"\n'
    )
    config = load_config(str(scenario), "fedasync", settings={"warm_up": "0.1"})
    table = config_tree(config)["training"]
    assert table["optimizer"] == {"name": "AdamW", "weight_decay": 0.01, "betas": [0.9, 0.99]}
    assert (table["gradient_clip"], table["accumulate"], table["warm_up"]) == (1.0, 2, 0.1)
    changed = load_config(str(scenario), "fedasync", settings={"optimizer": "sgd"})
    assert changed.training.optimizer == "sgd"
    scenario.write_text('[training]\noptimizer = { name = "AdamW", decay = 0.01 }\n')
    with pytest.raises(InputError, match=r"own\.toml: training: optimizer 'AdamW' has no argument 'decay'"):
        load_config(str(scenario), "fedasync")
    with pytest.raises(InputError, match="optimizer = 3: must be a string"):
        load_config("digits", "fedasync", settings={"optimizer": "3"})


def test_a_whole_run_with_any_optimiser_learns_and_repeats():
    training = LocalTraining(
        point_epochs=2,
        curve_epochs=1,
        batch_size=8,
        local_lr=0.02,
        optimizer={"name": "AdamW", "weight_decay": 0.01},
        gradient_clip=1.0,
        local_schedule="cosine",
        warm_up=0.1,
    )
    task = make_task()
    first = simulate(task, "asyncbezier", training=training, run=make_run(40))
    again = simulate(task, "asyncbezier", training=training, run=make_run(40))
    assert first.summary["final"] > 0.6
    assert all(
        torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True)
    )


# --- frozen and shared parameters, and adapters --------------------------------------------------------


class Tied(nn.Module):
    """The output layer shares the weights of the first; a frozen layer lies between them."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, inputs):
        return self.last(self.frozen(self.first(inputs)).tanh())[:, :3]


def test_frozen_parameters_stay_and_shared_ones_are_trained_once(tmp_path):
    torch.manual_seed(0)
    module = Tied()
    assert FlatModel(module).size == 16 + 4 + 4
    inputs, targets = examples()
    task = Task(
        module, cross_entropy, [(inputs[:10], targets[:10]), (inputs[10:], targets[10:])], (inputs, targets)
    )
    training = LocalTraining(optimizer="AdamW", local_lr=0.05)
    result = simulate(
        task, "asyncbezier", training=training, run=make_run(6), records=Records(out=tmp_path / "run")
    )
    model = result.model
    assert model.last.weight is model.first.weight
    assert torch.equal(model.frozen.weight, module.frozen.weight)
    assert not torch.equal(model.first.weight, module.first.weight)
    saved, _ = load_tensors(tmp_path / "run" / "model.safetensors")
    fresh = Tied()
    fresh.load_state_dict(saved)
    assert torch.equal(fresh.last.weight, model.last.weight)
    assert torch.equal(fresh.first.weight, model.first.weight)


def test_a_transformer_is_fine_tuned_with_adapters_over_uneven_clients():
    pytest.importorskip("peft")
    pytest.importorskip("transformers")
    program = Path(__file__).parent.parent / "examples" / "lora_transformer.py"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "1,156 of 21,480 parameters are trained"
    before, after = re.findall(r"0\.\d\d", second)
    assert float(after) > 0.85 > 0.5 > float(before)
