"""A person's own model, data and metrics: understood in every usual form, or refused in one line."""

from functools import partial

import pytest
import torch
import torchmetrics
from datasets import Dataset as HuggingFaceDataset
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from asyncmanifold import Bezier, InputError, Method, OrthoDC, Run, Score, Tangent, Task, simulate
from asyncmanifold.report.comparison import columns_of, tabulate, write_table
from asyncmanifold.tasks.data import TensorData
from asyncmanifold.tasks.own_data import as_data

INPUTS, CLASSES = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2


class Named(nn.Module):
    """Takes keyword arguments, as Hugging Face's models do, and returns logits by name."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, *, values, mask):
        return torchmetrics_like(logits=self.linear(values) * mask)


class torchmetrics_like(dict):  # noqa: N801 - a ModelOutput: a dictionary with attributes
    __getattr__ = dict.__getitem__


def named_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.logits, targets)


def rows(data, *numbers):
    return data.batch(torch.tensor(numbers))


# Data


def test_a_list_of_two_tensors_is_a_pair_even_if_their_shapes_are_equal():
    """They were taken for two examples, and inputs and targets were mixed."""
    targets = INPUTS + 1.0
    for given in ([INPUTS, targets], [INPUTS.numpy(), targets.numpy()], (INPUTS, targets)):
        data = as_data(given)
        assert isinstance(data, TensorData)
        assert torch.equal(rows(data, 5, 2)[0], INPUTS[[5, 2]])
        assert torch.equal(rows(data, 5, 2)[1], targets[[5, 2]])
    two = as_data([(INPUTS[0], 0), (INPUTS[1], 1)])  # two examples stay two examples
    assert len(two) == 2
    assert rows(two, 1)[1].tolist() == [1]


def test_a_loader_gives_its_dataset_its_share_and_its_way_of_joining():
    examples = [(torch.full((length,), float(length)), length % 2) for length in (1, 2, 3, 4)]

    def pad(items):
        inputs = nn.utils.rnn.pad_sequence([each for each, _ in items], batch_first=True)
        return inputs, torch.tensor([target for _, target in items])

    data = as_data(DataLoader(examples, batch_size=99, shuffle=True, collate_fn=pad))
    inputs, targets = rows(data, 0, 2)
    assert inputs.tolist() == [[1, 0, 0], [3, 3, 3]]
    assert targets.tolist() == [1, 1]
    share = as_data(DataLoader(TensorDataset(INPUTS, CLASSES), sampler=SubsetRandomSampler([6, 3])))
    assert len(share) == 2
    assert torch.equal(rows(share, 1)[0], INPUTS[3:4])
    with pytest.raises(InputError, match="give a DataLoader with a collate_fn"):
        rows(as_data(examples), 0, 2)


def test_dictionaries_reach_the_model_as_keyword_arguments():
    """Whole tensors, (dictionary, targets), datasets of dictionaries, and Hugging Face's own."""
    mask = torch.ones(8, 1)
    table = {"values": INPUTS, "mask": mask, "labels": CLASSES}
    examples = [{"values": INPUTS[i], "mask": mask[i], "labels": CLASSES[i]} for i in range(8)]
    stored = HuggingFaceDataset.from_dict({name: part.tolist() for name, part in table.items()})
    forms = [table, ({"values": INPUTS, "mask": mask}, CLASSES), examples, stored.with_format("torch")]
    models = []
    for form in forms:
        inputs, targets = rows(as_data(form), 4, 1)
        assert torch.equal(inputs["values"], INPUTS[[4, 1]])
        assert set(inputs) == {"values", "mask"}
        assert targets.tolist() == [0, 1]
        torch.manual_seed(0)
        result = simulate(Task(Named(), named_loss, [form, form], test=form), "fedasync", run=Run(updates=3))
        assert result.summary["metric"] == "accuracy"
        models.append(result.model.linear.weight)
    assert all(torch.equal(models[0], other) for other in models)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([INPUTS, CLASSES, CLASSES], "must be .input, target. or a dictionary with labels, not a Tensor"),
        ([(INPUTS[0], INPUTS[1], 0)], "not a tuple of 3"),
        ({"values": INPUTS}, "must have inputs and one of labels, label, targets, target, not only values"),
        ({"values": INPUTS, "labels": CLASSES[:3]}, "8 rows of 'values' but 3 targets"),
        (DataLoader(Endless()), "Endless has no length or no .index., must be a map-style Dataset"),
        (("some", "words"), "a str is not a tensor"),
        (7, "not int"),
    ],
)
def test_examples_that_cannot_be_used_are_refused_when_the_task_is_made(given, problem):
    with pytest.raises(InputError, match=problem) as refused:
        Task(nn.Linear(3, 2), nn.functional.cross_entropy, [given], test=(INPUTS, CLASSES))
    assert "\n" not in str(refused.value)


class Squares(Dataset):
    """A regression: the targets are numbers."""

    def __len__(self):
        return 16

    def __getitem__(self, number):
        x = torch.tensor([number / 16.0])
        return x, 3.0 * x + 1.0


# Metrics


def rmse(outputs, targets):
    return nn.functional.mse_loss(outputs, targets).sqrt()


def regression(**changes):
    torch.manual_seed(0)
    data = Squares()
    settings = {"model": nn.Linear(1, 1), "loss": nn.functional.mse_loss, "clients": [data] * 3, "test": data}
    return Task(**(settings | {"validation": [data] * 3} | changes))


def test_regression_is_scored_by_its_loss():
    task = regression()
    assert (task.metric, task.lower_is_better) == ("loss", ["loss"])
    summary = simulate(task, "fedavg", run=Run(updates=30)).summary
    assert summary["best"] <= summary["final"] < 20.0
    assert summary["lower_is_better"] == ["loss"]
    assert "accuracy" not in summary["scores"]


def test_less_is_better_for_the_best_model_the_target_and_the_table(tmp_path):
    task = regression(metrics={"rmse": Score(rmse, higher_is_better=False), "r2": torchmetrics.R2Score()})
    result = simulate(task, "fedavg", run=Run(updates=60, evaluate_every=3, target=3.5))
    scores = [record["rmse"] for record in result.trace if record["kind"] == "evaluation"]
    assert result.summary["best"] == min(scores) < max(scores)
    reached = result.summary["rounds_to_target"]
    assert reached == 3 * next(place for place, score in enumerate(scores) if score <= 3.5)
    assert result.summary["lower_is_better"] == ["rmse"]
    good, bad = result.summary, {**result.summary, "method": "worse", "final": 9.0, "best": 9.0}
    table = tabulate([bad, bad, good, good])
    assert [column.heading for column in columns_of(table)][:3] == ["final", "last", "best"]
    write_table(tmp_path, "own", "rmse", table)
    _, _, worse, better, *_ = (tmp_path / "table.md").read_text().splitlines()
    assert "**" not in worse.split("|")[2]
    assert "**" in better.split("|")[2]


def test_a_function_sees_all_examples_at_once():
    """The root of a mean is not the mean of roots: 600 examples are evaluated in two batches."""
    inputs = torch.arange(600.0).view(-1, 1)
    task = regression(test=(inputs, inputs * 2.0), metrics={"rmse": Score(rmse, higher_is_better=False)})
    model = simulate(task, "fedasync", run=Run(updates=1)).model
    with torch.no_grad():
        expected = rmse(model(inputs), inputs * 2.0).item()
    from asyncmanifold.vectors import FlatModel

    assert task.evaluate(FlatModel(model), task.test)["rmse"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "higher"),
    [
        (torchmetrics.MeanSquaredError(), False),
        (torchmetrics.MeanSquaredError, False),
        (partial(torchmetrics.MeanSquaredError, squared=False), False),
        (lambda: torchmetrics.R2Score(), True),
        (Score(nn.L1Loss(), higher_is_better=False), False),
        (Score(torchmetrics.functional.r2_score, higher_is_better=True), True),
    ],
)
def test_every_usual_form_of_a_metric(given, higher):
    task = regression(metrics={"mine": given})
    assert ("mine" in task.lower_is_better) is not higher
    summary = simulate(task, "fedasync", run=Run(updates=2)).summary
    assert isinstance(summary["final"], float)
    again = simulate(task, "fedasync", run=Run(updates=2)).summary  # a metric is not used up
    assert again["final"] == summary["final"]


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ({"time": Score(rmse, higher_is_better=False)}, "a metric cannot be named 'time': records use kind"),
        ({"loss": Score(rmse, higher_is_better=False)}, "a metric cannot be named 'loss'"),
        ({"rmse": rmse}, "'rmse': rmse does not say whether more is better: Score.rmse, higher_is_better=…."),
        ({"seen": torchmetrics.MeanMetric()}, "does not say whether more is better"),
        ({"number": 3}, "must be a function .outputs, targets. or a metric"),
        ({"made": lambda: 3}, "made a int, must be a metric"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused(metrics, problem):
    with pytest.raises(InputError, match=problem):
        regression(metrics=metrics)


def test_a_metric_that_gives_several_numbers_is_refused_by_name():
    task = regression(metrics={"all": Score(lambda outputs, targets: outputs, higher_is_better=True)})
    with pytest.raises(InputError, match="metric 'all' gave a Tensor, must be one number"):
        simulate(task, "fedasync", run=Run(updates=1))


# Methods


def test_the_name_of_a_part_stands_for_its_defaults():
    named = Method(embedding="bezier", correction="tangent", buffer="barrier", gates=[])
    assert named == Method(embedding=Bezier(), correction=Tangent(), buffer=Method(buffer="barrier").buffer)
    assert Method(correction="orthodc").correction == OrthoDC()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"correction": "tangents"},
            "Method.correction='tangents'. is no Correction and no name of one",
        ),
        ({"correction": Tangent}, "Method.correction=the class Tangent. is no Correction and"),
        ({"correction": None}, "Method.correction=None. is no Correction and"),
        ({"embedding": 3}, "Method.embedding=3. is no Embedding"),
        ({"gates": "norm-bound"}, "needs norm_bound: NormBound.norm_bound=…."),
    ],
)
def test_what_is_not_a_part_is_refused_at_once(settings, problem):
    with pytest.raises(InputError, match=problem):
        Method(**settings)


def test_a_task_given_as_the_method_is_refused_in_one_line():
    with pytest.raises(InputError, match="a method is a Method or the name of one, not a Task"):
        simulate("fedasync", regression())
