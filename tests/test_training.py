"""Local training: the gradient of a curve, and that a job alone determines its result."""

from functools import partial
from math import inf, isfinite, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from asyncmanifold import Bezier, Job, LocalTraining, Point
from asyncmanifold.client import NonFiniteLoss, Trainer
from asyncmanifold.client.trajectory import Trajectory
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks import TensorData
from asyncmanifold.vectors import FlatModel, Statistics
from reference import train_through_curve, training_steps

SEED = 5
EXAMPLES = 23
cross_entropy = nn.functional.cross_entropy


def perceptron():
    """Return a small smooth classifier, always with the same weights."""
    return initialised(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))


def with_dropout():
    return initialised(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)))


def with_statistics():
    return initialised(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)))


def initialised(module):
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=random))
    return module


def examples(count=EXAMPLES):
    random = torch.Generator().manual_seed(2)
    inputs = torch.randn(count, 4, generator=random)
    return inputs, torch.randint(3, (count,), generator=random)


DATA = TensorData(*examples())


class Recorded(TensorData):
    """Examples that remember the order in which they were taken out."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.taken = []

    def batch(self, indices):
        self.taken.append(indices.clone())
        return super().batch(indices)


def job_for(module, number=0, client=3, point_epochs=2, curve_epochs=0):
    flat = FlatModel(module)
    return Job(
        number=number,
        client=client,
        version=9,
        theta=flat.vector.clone(),
        statistics=flat.read_statistics(),
        point_epochs=point_epochs,
        curve_epochs=curve_epochs,
    )


def settings_with(**changes):
    return LocalTraining(**({"batch_size": 5, "local_lr": 0.01, "proximal": 0.3} | changes))


def trainer_for(make=perceptron, embedding=None, loss=cross_entropy, seed=SEED, **changes):
    return Trainer(make(), loss, embedding or Point(), settings_with(**changes), seed)


def relative_error(value, expected):
    expected = expected.double()
    return float(torch.linalg.vector_norm(value.double() - expected) / torch.linalg.vector_norm(expected))


# --- the gradient of a curve --------------------------------------------------------------------------

OPTIMIZERS = {
    "adam": ({"optimizer": "adam"}, partial(torch.optim.Adam, lr=0.01)),
    "sgd": ({"optimizer": "sgd"}, partial(torch.optim.SGD, lr=0.01)),
    "sgd with momentum": (
        {"optimizer": "sgd", "momentum": 0.9},
        partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("interior_start", ["base", "chord", "trajectory"])
@pytest.mark.parametrize("freeze_end", [False, True])
@pytest.mark.parametrize("proximal", [0.0, 0.3])
def test_a_scaled_gradient_is_autograd_through_the_curve(
    optimizer, degree, interior_start, freeze_end, proximal
):
    changes, make_optimizer = OPTIMIZERS[optimizer]
    embedding = Bezier(degree, interior_start=interior_start, freeze_end=freeze_end)
    job = job_for(perceptron(), point_epochs=2, curve_epochs=2)
    update = trainer_for(embedding=embedding, proximal=proximal, **changes).train(job, DATA)
    random = derive(SEED, Purpose.TRAINING, job.client, job.number)
    expected = train_through_curve(
        perceptron(),
        cross_entropy,
        training_steps(random, EXAMPLES, 5, 2, 2),
        *examples(),
        degree=degree,
        optimizer=make_optimizer,
        proximal=proximal,
        interior_start=interior_start,
        freeze_end=freeze_end,
    )
    for learned, exact in zip(update.offsets, expected, strict=True):
        assert relative_error(learned, exact) < 1e-5


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_curve_without_epochs_of_its_own_follows_the_trajectory(optimizer):
    changes, make_optimizer = OPTIMIZERS[optimizer]
    job = job_for(perceptron(), point_epochs=4, curve_epochs=0)
    embedding = Bezier(3, interior_start="trajectory")
    update = trainer_for(embedding=embedding, proximal=0.0, **changes).train(job, DATA)
    straight = trainer_for(embedding=Point(), proximal=0.0, **changes).train(job, DATA)
    random = derive(SEED, Purpose.TRAINING, job.client, job.number)
    expected = train_through_curve(
        perceptron(),
        cross_entropy,
        training_steps(random, EXAMPLES, 5, 4, 0),
        *examples(),
        degree=3,
        optimizer=make_optimizer,
        proximal=0.0,
        interior_start="trajectory",
    )
    assert relative_error(update.offsets[-1], straight.offsets[-1]) < 1e-5  # the end is a plain job's
    for learned, exact in zip(update.offsets, expected, strict=True):
        assert relative_error(learned, exact) < 1e-4


def test_a_trajectory_that_is_a_curve_is_found_again():
    """(2, 0), (2, 2): at t = 1/4 … 1 the curve is (7/8, 1/8), (3/2, 1/2), (15/8, 9/8), (2, 2)."""
    trajectory = Trajectory(2, 2, torch.device("cpu"))
    for point in ([0.875, 0.125], [1.5, 0.5], [1.875, 1.125], [2.0, 2.0]):
        trajectory.include(torch.tensor(point))
    offsets = torch.tensor([[9.0, 9.0], [2.0, 2.0]])
    trajectory.fit(offsets)
    torch.testing.assert_close(offsets, torch.tensor([[2.0, 0.0], [2.0, 2.0]]))


def test_a_trajectory_of_one_step_is_its_chord():
    trajectory = Trajectory(3, 1, torch.device("cpu"))
    trajectory.include(torch.tensor([3.0]))
    offsets = torch.tensor([[0.0], [0.0], [3.0]])
    trajectory.fit(offsets)
    torch.testing.assert_close(offsets, torch.tensor([[1.0], [2.0], [3.0]]))


@pytest.mark.parametrize("channels", [1, 2])
def test_images_with_their_channels_last_give_the_same_up_to_rounding(channels):
    """With one channel the numbers lie alike, and only the strides tell a convolution."""
    layouts = []

    class Seen(nn.Sequential):
        def forward(self, inputs):
            layouts.append(inputs.stride(1) == 1)
            return super().forward(inputs)

    def make():
        return initialised(Seen(nn.Conv2d(channels, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 6 * 6, 3)))

    images = torch.randn(EXAMPLES, channels, 8, 8, generator=torch.Generator().manual_seed(3))
    data = TensorData(images, examples()[1])
    job = job_for(make(), curve_epochs=1)
    plain, last = (
        trainer_for(make, Bezier(2), channels_last=channels_last).train(job, data).offsets
        for channels_last in (False, True)
    )
    half = len(layouts) // 2
    assert layouts == [False] * half + [True] * half
    torch.testing.assert_close(last, plain, rtol=1e-3, atol=1e-4)


def test_inputs_that_are_no_images_have_no_other_layout():
    plain, last = (
        trainer_for(channels_last=channels_last).train(job_for(perceptron()), DATA).offsets
        for channels_last in (False, True)
    )
    assert torch.equal(last, plain)


def test_the_curve_phase_moves_every_control_point():
    update = trainer_for(embedding=Bezier(3)).train(job_for(perceptron(), curve_epochs=1), DATA)
    point = trainer_for(embedding=Bezier(3)).train(job_for(perceptron(), curve_epochs=0), DATA)
    assert all(torch.linalg.vector_norm(offset) > 1e-3 for offset in update.offsets)
    assert not torch.equal(update.offsets[-1], point.offsets[-1])


def test_a_frozen_end_stays_where_the_point_phase_left_it():
    job = job_for(perceptron(), curve_epochs=2)
    frozen = trainer_for(embedding=Bezier(2, freeze_end=True)).train(job, DATA)
    point = trainer_for().train(job_for(perceptron()), DATA)
    assert torch.equal(frozen.offsets[-1], point.offsets[-1])
    assert torch.linalg.vector_norm(frozen.offsets[0]) > 1e-3


# --- the point phase ----------------------------------------------------------------------------------


def test_the_point_phase_is_plain_fedprox_training():
    data = Recorded(*examples())
    update = trainer_for().train(job_for(perceptron()), data)
    model = perceptron()
    start = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for indices in data.taken:
        inputs, targets = examples()
        loss = cross_entropy(model(inputs[indices]), targets[indices])
        losses.append(loss.item())
        pairs = zip(model.parameters(), start, strict=True)
        distance = sum((parameter - origin).square().sum() for parameter, origin in pairs)
        optimizer.zero_grad()
        (loss + 0.3 / 2.0 * distance).backward()
        optimizer.step()
    learned = nn.utils.parameters_to_vector(model.parameters()).detach()
    expected = learned - nn.utils.parameters_to_vector(start)
    assert relative_error(update.offsets[0], expected) < 1e-5
    assert update.loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_curve_without_a_curve_phase_ends_where_a_point_does(degree, optimizer):
    curve = trainer_for(embedding=Bezier(degree), optimizer=optimizer).train(job_for(perceptron()), DATA)
    point = trainer_for(optimizer=optimizer).train(job_for(perceptron()), DATA)
    assert torch.equal(curve.offsets[-1], point.offsets[0])
    assert not curve.offsets[:-1].any()


def test_a_larger_proximal_term_keeps_the_client_nearer():
    near, far = (
        trainer_for(proximal=proximal, optimizer="sgd", local_lr=0.1).train(
            job_for(perceptron(), point_epochs=10), DATA
        )
        for proximal in (5.0, 0.0)
    )
    assert torch.linalg.vector_norm(near.offsets) < 0.5 * torch.linalg.vector_norm(far.offsets)


def test_training_lowers_the_loss():
    first = trainer_for(proximal=0.0).train(job_for(perceptron(), point_epochs=1), DATA)
    longer = trainer_for(proximal=0.0).train(job_for(perceptron(), point_epochs=30), DATA)
    assert longer.loss < 0.8 * first.loss


# --- a job alone determines its result ----------------------------------------------------------------


def same_update(a, b):
    return (
        torch.equal(a.offsets, b.offsets)
        and torch.equal(a.statistics.floats, b.statistics.floats)
        and torch.equal(a.statistics.integers, b.statistics.integers)
        and (a.client, a.version, a.loss) == (b.client, b.version, b.loss)
    )


@pytest.mark.parametrize("make", [perceptron, with_dropout, with_statistics])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_other_jobs_in_between_change_nothing(make, optimizer):
    changes = OPTIMIZERS[optimizer][0]
    job = job_for(make(), number=4, curve_epochs=1)
    fresh = trainer_for(make, Bezier(2), **changes).train(job, DATA)
    busy = trainer_for(make, Bezier(2), **changes)
    for number in (7, 2):
        busy.train(job_for(make(), number=number, client=number, curve_epochs=2), DATA)
    torch.rand(17)  # what others draw from torch's generator does not count
    out = torch.full_like(fresh.offsets, nan)
    again = busy.train(job, DATA, out=out)
    assert same_update(fresh, again)
    assert again.offsets is out


def test_a_job_that_failed_in_between_changes_nothing():
    job = job_for(with_statistics(), curve_epochs=1)
    trainer = trainer_for(with_statistics, Bezier(2))
    fresh = trainer.train(job, DATA)
    with pytest.raises(NonFiniteLoss):
        trainer.train(job, TensorData(torch.full((10, 4), nan), torch.zeros(10, dtype=torch.int64)))
    assert same_update(fresh, trainer.train(job, DATA))


@pytest.mark.parametrize("changes", [{"number": 1}, {"client": 4}])
def test_another_job_draws_other_numbers(changes):
    trainer = trainer_for(with_dropout)
    first = trainer.train(job_for(with_dropout()), DATA)
    other = trainer.train(job_for(with_dropout(), **changes), DATA)
    assert not torch.equal(first.offsets, other.offsets)


def test_another_seed_draws_other_numbers():
    job = job_for(perceptron())
    first, other = (trainer_for(seed=seed).train(job, DATA) for seed in (0, 1))
    assert not torch.equal(first.offsets, other.offsets)


def test_layers_draw_anew_in_every_step():
    """With one batch an epoch and no learning, only dropout can make the losses differ."""
    losses = []

    def loss(outputs, targets):
        losses.append(cross_entropy(outputs, targets).item())
        return cross_entropy(outputs, targets)

    trainer_for(with_dropout, loss=loss, batch_size=EXAMPLES, local_lr=1e-30).train(
        job_for(with_dropout(), point_epochs=4), DATA
    )
    assert len(set(losses)) == 4


@pytest.mark.parametrize("fails", [False, True])
def test_the_global_generators_are_left_as_they_were(fails):
    trainer, job = trainer_for(with_dropout), job_for(with_dropout())
    inputs, targets = examples()
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    if fails:
        with pytest.raises(NonFiniteLoss):
            trainer.train(job, TensorData(inf * inputs, targets))
    else:
        trainer.train(job, DATA)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()


@pytest.mark.parametrize("embedding", [Point(), Bezier(3)], ids=["point", "curve"])
def test_the_job_is_never_written_to(embedding):
    job = job_for(with_statistics(), curve_epochs=embedding.points - 1)
    theta, statistics = job.theta.clone(), [tensor.clone() for tensor in job.statistics]
    update = trainer_for(with_statistics, embedding).train(job, DATA)
    assert torch.equal(job.theta, theta)
    assert all(torch.equal(a, b) for a, b in zip(job.statistics, statistics, strict=True))
    assert update.offsets.any()


def test_the_update_answers_the_job():
    job = job_for(perceptron(), number=6, client=2, curve_epochs=1)
    update = trainer_for(embedding=Bezier(2)).train(job, DATA)
    assert (update.client, update.version) == (2, 9)
    assert update.offsets.shape == (2, job.theta.numel())
    assert update.offsets.dtype == torch.float32
    assert update.seconds > 0.0


# --- batches ------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 3))
def test_an_epoch_visits_every_example_once_in_even_batches(count, batch_size, epochs):
    data = Recorded(*examples(count))
    trainer_for(batch_size=batch_size).train(job_for(perceptron(), point_epochs=epochs), data)
    per_epoch = -(-count // batch_size)
    assert len(data.taken) == epochs * per_epoch
    sizes = [len(indices) for indices in data.taken]
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    for epoch in range(epochs):
        visited = torch.cat(data.taken[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(visited.tolist()) == list(range(count))


def test_every_epoch_is_shuffled_anew():
    data = Recorded(*examples())
    trainer_for(batch_size=EXAMPLES).train(job_for(perceptron(), point_epochs=3), data)
    orders = {tuple(indices.tolist()) for indices in data.taken}
    assert len(orders) == 3


# --- modules ------------------------------------------------------------------------------------------


def test_running_statistics_are_trained_and_returned():
    job = job_for(with_statistics(), point_epochs=2)
    data = Recorded(*examples())
    update = trainer_for(with_statistics, local_lr=1e-30, proximal=0.0).train(job, data)
    model = with_statistics()
    inputs, _ = examples()
    for indices in data.taken:
        model(inputs[indices])
    torch.testing.assert_close(
        update.statistics.floats, torch.cat([model[1].running_mean, model[1].running_var])
    )
    assert update.statistics.integers.tolist() == [len(data.taken)]
    assert not torch.equal(update.statistics.floats, job.statistics.floats)


def test_running_statistics_start_from_the_job():
    trainer = trainer_for(with_statistics)
    job = job_for(with_statistics(), point_epochs=1)
    ahead = Statistics(job.statistics.floats + 1.0, torch.tensor([40]))
    other = Job(job.number, job.client, job.version, job.theta, ahead, 1, 0)
    trainer.train(job, DATA)
    update = trainer.train(other, DATA)
    assert update.statistics.integers.tolist() == [45]
    assert not torch.equal(update.statistics.floats, trainer.train(job, DATA).statistics.floats)


@pytest.mark.parametrize("make", [with_dropout, with_statistics])
def test_a_module_left_in_evaluation_mode_is_trained_all_the_same(make):
    job = job_for(make())
    update = trainer_for(lambda: make().eval()).train(job, DATA)
    assert same_update(update, trainer_for(make).train(job, DATA))


def test_a_model_without_statistics_returns_no_buffers():
    update = trainer_for().train(job_for(perceptron()), DATA)
    assert [len(tensor) for tensor in update.statistics] == [0, 0]


def test_frozen_parameters_stay_out_of_the_vector_and_as_they_were():
    def half_frozen():
        module = perceptron()
        module[0].requires_grad_(False)
        return module

    module = half_frozen()
    weights = module[0].weight.clone()
    job = job_for(half_frozen())
    update = Trainer(module, cross_entropy, Point(), settings_with(), SEED).train(job, DATA)
    assert job.theta.numel() == 6 * 3 + 3
    assert update.offsets.shape == (1, 21)
    assert update.offsets.any()
    assert torch.equal(module[0].weight, weights)
    assert module[0].weight.grad is None


def test_tied_parameters_are_trained_as_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, inputs):
            return self.second(torch.tanh(self.first(inputs)))

    def make():
        return initialised(Tied())

    update = trainer_for(make).train(job_for(make()), DATA)
    assert update.offsets.shape == (1, 16)
    expected = train_through_curve(
        make(),
        cross_entropy,
        training_steps(derive(SEED, Purpose.TRAINING, 3, 0), EXAMPLES, 5, 2, 0),
        *examples(),
        degree=1,
        optimizer=partial(torch.optim.Adam, lr=0.01),
        proximal=0.3,
    )
    assert relative_error(update.offsets, expected) < 1e-5


def test_a_parameter_without_a_part_in_the_loss_is_not_moved():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(4, 3)
            self.unused = nn.Linear(2, 2)

        def forward(self, inputs):
            return self.used(inputs)

    def make():
        return initialised(Unused())

    offsets = trainer_for(make).train(job_for(make()), DATA).offsets[0]
    assert offsets[:15].all()
    assert not offsets[15:].any()


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="model ReLU has no trainable parameters"):
        trainer_for(nn.ReLU)


def test_a_model_that_is_all_frozen_is_refused():
    with pytest.raises(ValueError, match="model Linear has no trainable parameters"):
        trainer_for(lambda: nn.Linear(4, 3).requires_grad_(False))


def test_a_float64_model_is_refused_with_the_name_of_the_parameter():
    with pytest.raises(ValueError, match=r"parameter 0\.weight is torch\.float64; only float32"):
        trainer_for(lambda: perceptron().double())


# --- when training breaks down ------------------------------------------------------------------------


def test_a_loss_that_turns_to_nan_is_reported_with_its_epoch():
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        value = cross_entropy(outputs, targets)
        return value * nan if len(calls) > 7 else value

    # Five batches an epoch: the eighth is in the second.
    with pytest.raises(NonFiniteLoss, match="loss became nan in epoch 2"):
        trainer_for(loss=loss).train(job_for(perceptron()), DATA)
    assert len(calls) == 8


def test_a_learning_rate_that_blows_up_is_reported():
    with pytest.raises(NonFiniteLoss, match="loss became"):
        trainer_for(
            make=lambda: initialised(nn.Linear(4, 1)),
            loss=lambda outputs, targets: outputs.square().mean(),
            optimizer="sgd",
            local_lr=1e30,
        ).train(job_for(initialised(nn.Linear(4, 1))), DATA)


def test_finite_training_gives_a_finite_update():
    update = trainer_for(embedding=Bezier(2)).train(job_for(perceptron(), curve_epochs=1), DATA)
    assert isfinite(update.loss)
    assert torch.isfinite(update.offsets).all()


# --- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"point_epochs": 0}, r"LocalTraining\(point_epochs=0\) must be at least 1"),
        ({"curve_epochs": -1}, r"LocalTraining\(curve_epochs=-1\) must be at least 0"),
        ({"batch_size": 0}, r"LocalTraining\(batch_size=0\) must be at least 1"),
        ({"optimizer": "adagradd"}, "optimizer .adagradd. is not in torch.optim"),
        ({"local_lr": 0.0}, r"LocalTraining\(local_lr=0.0\) must be above 0"),
        ({"local_lr": nan}, r"LocalTraining\(local_lr=nan\) must be above 0"),
        ({"proximal": -1.0}, r"LocalTraining\(proximal=-1.0\) must be at least 0"),
        ({"proximal": inf}, r"LocalTraining\(proximal=inf\) must be at least 0 and finite"),
        ({"momentum": 1.0}, r"LocalTraining\(momentum=1.0\) must be in \[0, 1\)"),
    ],
)
def test_impossible_settings_are_refused_with_call_value_and_range(changes, message):
    with pytest.raises(ValueError, match=message):
        LocalTraining(**changes)
