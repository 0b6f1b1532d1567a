"""The embedded task: its partition, and that methods really learn on it."""

import numpy as np
import pytest
import torch

from asyncmanifold import simulate
from asyncmanifold.configuration.config import load_config
from asyncmanifold.tasks.data import TensorData
from asyncmanifold.tasks.digits import Digits, dirichlet_partition
from asyncmanifold.tasks.own_data import DatasetData, as_data
from asyncmanifold.tasks.task import Task


def examples_of(data) -> list[tuple[float, ...]]:
    inputs, targets = data.batch(torch.arange(len(data)))
    return [(*image.flatten().tolist(), int(label)) for image, label in zip(inputs, targets, strict=True)]


def test_every_example_is_used_exactly_once():
    from sklearn.datasets import load_digits

    task = Digits().build(seed=0)
    used = [e for data in (*task.clients, *task.validation, task.test) for e in examples_of(data)]
    images, labels = load_digits(return_X_y=True)
    everything = [(*(image / 16.0).tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
    assert sorted(used) == sorted(everything)


def test_the_same_seed_gives_the_same_partition():
    one, two, other = (Digits().build(seed) for seed in (3, 3, 4))
    assert [examples_of(d) for d in one.clients] == [examples_of(d) for d in two.clients]
    assert examples_of(one.test) != examples_of(other.test)


def test_clients_differ_in_size_and_classes():
    task = Digits(clients=15, concentration=0.3).build(seed=0)
    sizes = [len(data) for data in task.clients]
    assert max(sizes) > 3 * min(sizes)
    classes = [len({example[-1] for example in examples_of(data)}) for data in task.clients]
    assert np.mean(classes) < 9


def test_every_client_has_the_least_number_of_examples():
    labels = np.repeat(np.arange(10), 40)
    parts = dirichlet_partition(labels, 20, 0.2, 5, np.random.default_rng(0))
    assert min(len(part) for part in parts) >= 5
    assert sorted(np.concatenate(parts).tolist()) == list(range(400))


def test_an_impossible_partition_is_refused():
    labels = np.repeat(np.arange(2), 10)
    with pytest.raises(ValueError, match="a larger concentration"):
        dirichlet_partition(labels, 10, 0.01, 2, np.random.default_rng(0), tries=20)


@pytest.mark.parametrize("method", ["asyncsgd", "asyncbezier"])
def test_methods_learn(method):
    config = load_config("digits", method, seed=0, settings={"updates": "120"})
    task = config.task.build(0)
    result = simulate(task, config.method, training=config.training, schedule=config.schedule, run=config.run)
    assert result.trace[0]["accuracy"] < 0.3
    assert result.summary["best"] > 0.6


def test_data_may_be_tensors_or_a_dataset():
    inputs, targets = torch.randn(7, 3), torch.arange(7)
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    rows = torch.tensor([4, 0, 4])
    for data in (as_data((inputs, targets)), as_data(dataset), as_data(list(dataset))):
        assert len(data) == 7
        taken_inputs, taken_targets = data.batch(rows)
        assert torch.equal(taken_inputs, inputs[rows])
        assert torch.equal(taken_targets, targets[rows])
    assert isinstance(as_data(dataset), DatasetData)
    chosen = TensorData(inputs, targets, torch.tensor([6, 5]))
    assert chosen.batch(torch.tensor([1]))[1].tolist() == [5]


def make_task(**changes):
    data = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    settings = {
        "model": torch.nn.Linear(2, 2),
        "loss": torch.nn.functional.cross_entropy,
        "clients": [data, data],
        "test": data,
    }
    return Task(**(settings | changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"clients": []}, "at least one client"),
        ({"clients": [(torch.zeros(0, 2), torch.zeros(0)), 3]}, "not int"),
        ({"clients": [(torch.zeros(3, 2), torch.zeros(2))]}, "3 inputs but 2 targets"),
        ({"test": (torch.zeros(0, 2), torch.zeros(0))}, "has no examples"),
        ({"validation": []}, "0 validation sets for 2 clients"),
    ],
)
def test_a_task_that_cannot_be_run_is_refused(changes, problem):
    with pytest.raises(ValueError, match=problem):
        make_task(**changes)


def test_clients_without_data_are_named():
    full, empty = (torch.zeros(2, 2), torch.zeros(2)), (torch.zeros(0, 2), torch.zeros(0))
    with pytest.raises(ValueError, match="client 1, 3 has no training data"):
        make_task(clients=[full, empty, full, empty])


def test_a_model_without_parameters_is_refused_before_any_work():
    with pytest.raises(ValueError, match="model Flatten has no trainable parameters"):
        simulate(make_task(model=torch.nn.Flatten()))


def test_a_given_module_is_never_changed():
    module = torch.nn.Linear(2, 2)
    before = module.weight.detach().clone()
    result = simulate(make_task(model=module), "asyncsgd")
    assert torch.equal(module.weight, before)
    assert not torch.equal(result.model.weight, before)
