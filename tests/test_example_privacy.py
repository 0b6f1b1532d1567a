"""Example-level privacy: DP-SGD against a loop over examples, and against the promise of its accounting."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from asyncmanifold import (
    METHODS,
    Bezier,
    ExamplePrivacy,
    InputError,
    Job,
    LocalPrivacy,
    LocalTraining,
    Point,
    Task,
    Tunnel,
)
from asyncmanifold.client import private_gradients
from asyncmanifold.client.private_gradients import PrivateGradients
from asyncmanifold.client.training import Trainer
from asyncmanifold.configuration.tables import build, to_tree
from asyncmanifold.privacy.accounting import GaussianRelease, total_epsilon
from asyncmanifold.tasks.own_data import as_data
from asyncmanifold.vectors import FlatModel
from tiny import CLOCK, make_run, make_task, of_kind, simulated

PRIVACY = ExamplePrivacy(clip_norm=0.7, noise_multiplier=1.5, sampling=0.25)
TRAINING = LocalTraining(point_epochs=1, curve_epochs=1, batch_size=8, local_lr=0.02, example_privacy=PRIVACY)
METHOD = replace(METHODS["asyncbezier"], weighting="none", global_lr=0.2)


def plain_model(inner=8):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, inner), nn.LayerNorm(inner), nn.Tanh(), nn.Linear(inner, 3))


def private_task():
    return replace(make_task(), model=plain_model)


def examples(count=70):
    random = torch.Generator().manual_seed(5)
    return torch.randn(count, 6, generator=random), torch.randint(3, (count,), generator=random)


def gradient_left(model, settings=PRIVACY, batch=None, batch_size=8):
    flat = FlatModel(model)
    PrivateGradients(flat, nn.functional.cross_entropy, settings, batch_size).leave(batch)
    return flat.take_gradient()


def test_the_gradient_is_the_sum_of_clipped_gradients_of_single_examples(monkeypatch):
    """70 examples in chunks of 32, against a loop; C is the median norm, and noise is left out."""
    monkeypatch.setattr(private_gradients, "add_noise", lambda total, deviation: None)
    inputs, targets = examples()
    model, singles = plain_model(), []
    for x, y in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        found = torch.autograd.grad(loss, list(model.parameters()))
        singles.append(torch.cat([gradient.reshape(-1) for gradient in found]))
    clip = float(torch.stack(singles).norm(dim=1).median())
    expected = sum(single * min(1.0, clip / single.norm().item()) for single in singles) / 8
    found = gradient_left(model, replace(PRIVACY, clip_norm=clip), (inputs, targets))
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_noise_of_a_step():
    """Without examples the gradient is the noise alone, with σC over the batch size."""
    model = plain_model(4000)
    found = gradient_left(model, batch_size=4).numpy()
    assert found.size > 40_000
    assert stats.kstest(found / (1.5 * 0.7 / 4), "norm").pvalue > 1e-6


def test_an_example_that_is_not_finite_adds_nothing(monkeypatch):
    monkeypatch.setattr(private_gradients, "add_noise", lambda total, deviation: None)
    inputs, targets = examples(5)
    without = gradient_left(plain_model(), batch=(inputs[:4], targets[:4]))
    inputs[4] = torch.nan
    assert torch.allclose(gradient_left(plain_model(), batch=(inputs, targets)), without)


def test_every_example_is_drawn_by_itself():
    gradients = PrivateGradients(FlatModel(plain_model()), nn.functional.cross_entropy, PRIVACY, 8)
    drawn = np.zeros((400, 200))
    for row in drawn:
        row[gradients.draw(200).numpy()] = 1.0
    assert drawn.mean() == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / drawn.size) ** 0.5)
    sizes = drawn.sum(axis=1)
    assert sizes.std() == pytest.approx((200 * 0.25 * 0.75) ** 0.5, rel=0.2)  # binomial, not constant


@pytest.mark.parametrize("embedding", [Point(), Bezier(2)])
def test_a_job_takes_as_many_steps_whatever_its_data(embedding, monkeypatch):
    """Four per epoch; on a curve a step is still one noised gradient."""
    made = []
    leave = PrivateGradients.leave
    monkeypatch.setattr(PrivateGradients, "leave", lambda self, batch: (made.append(1), leave(self, batch)))
    theta = FlatModel(plain_model()).vector.clone()
    for count in (3, 70):
        made.clear()
        trainer = Trainer(plain_model(), nn.functional.cross_entropy, embedding, TRAINING, 0)
        job = Job(0, 0, 0, theta, point_epochs=1, curve_epochs=1 if embedding.is_curve else 0)
        update = trainer.train(job, as_data(examples(count)))
        assert len(made) == 4 * job.epochs
        assert update.loss is None
        assert torch.isfinite(update.offsets).all()


def test_it_learns():
    """With little noise a client's loss falls, even on random labels."""
    quiet = replace(PRIVACY, clip_norm=5.0, noise_multiplier=0.01)
    training = replace(TRAINING, example_privacy=quiet, point_epochs=20)
    data = examples()
    theta = FlatModel(plain_model()).vector.clone()
    trainer = Trainer(plain_model(), nn.functional.cross_entropy, Point(), training, 0)
    update = trainer.train(Job(0, 0, 0, theta, point_epochs=20), as_data(data))
    after = FlatModel(plain_model())
    before = nn.functional.cross_entropy(after.module(data[0]), data[1]).item()
    after.vector.add_(update.offsets[-1])
    assert nn.functional.cross_entropy(after.module(data[0]), data[1]).item() < 0.9 * before


def test_a_run_counts_steps_and_stops_at_its_budget():
    """A job has 2 epochs of 4 steps; ε allows two jobs."""
    limited = replace(PRIVACY, max_epsilon=PRIVACY.epsilon(16) + 1e-6)
    result = simulated(
        private_task(),
        METHOD,
        training=replace(TRAINING, example_privacy=limited),
        schedule=CLOCK,
        run=make_run(100),
    )
    privacy = result.summary["privacy"]
    assert (privacy["kind"], privacy["relation"]) == ("example", "add-or-remove-one")
    assert privacy["releases"] == [16] * 5
    assert (result.summary["updates"], result.summary["ended"]) == (10, "privacy budget spent")
    assert privacy["epsilon"] == total_epsilon({GaussianRelease(1.5, 0.25): 16}, 1e-5)
    assert {record["loss"] for record in of_kind(result.trace, "update")} == {None}


def test_what_cannot_be_protected_is_refused():
    def start(task, method, training=TRAINING):
        simulated(task, method, training=training, run=make_run(3))

    with pytest.raises(InputError, match="example_privacy: layer 1 is BatchNorm, which mixes the examples"):
        start(make_task(), METHOD)
    with pytest.raises(InputError, match="needs weighting='none'"):
        start(private_task(), "asyncsgd")
    with pytest.raises(InputError, match="choose one of them"):
        start(private_task(), replace(METHOD, outgoing=(LocalPrivacy(),)))
    with pytest.raises(InputError, match="takes two gradients of every batch"):
        start(private_task(), replace(METHOD, embedding=Tunnel(2, radius=0.1, sharpness_aware=True)))
    with pytest.raises(InputError, match="needs accumulate=1"):
        replace(TRAINING, accumulate=2)
    with pytest.raises(InputError, match="must be above 0 and below 1"):
        replace(PRIVACY, sampling=1.0)
    odd = Task(Odd(), nn.functional.cross_entropy, [examples(20)], examples(20))
    with pytest.raises(InputError, match="no gradient by example"):
        start(odd, METHOD)


class Odd(nn.Module):
    """Its control flow depends on data, which torch cannot follow for each example."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.inner(inputs) if inputs.sum() > 0 else -self.inner(inputs)


def test_settings_travel_as_tables():
    assert build(LocalTraining, to_tree(TRAINING), "training") == TRAINING
