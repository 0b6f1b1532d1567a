"""The image tasks: who holds which images, files that are faulty, models, metrics, and short runs."""

import io
import pickle
import sys
import zipfile
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from asyncmanifold import InputError, LocalTraining, Run, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.configuration.config import load_config
from asyncmanifold.experiments.many_runs import say_cautions
from asyncmanifold.progress import Display
from asyncmanifold.tasks import npz
from asyncmanifold.tasks.cnn import FederatedCNN
from asyncmanifold.tasks.cxr8 import (
    AUPRC,
    AUROC,
    Cxr8,
    make_model,
    metrics_of,
    normalise_images,
    read_weights,
)
from asyncmanifold.tasks.data import TensorData
from asyncmanifold.tasks.femnist import Femnist, scale_ink
from asyncmanifold.tasks.npz import read_npz
from asyncmanifold.tasks.partitions import hold_out_groups, split_by_group, split_by_label
from asyncmanifold.tasks.shufflenet import ShuffleNet

LABELS = np.repeat(np.arange(6), 50)
WRITERS = np.random.default_rng(0).integers(40, size=300)


def same(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


# Partitions


@pytest.mark.parametrize(
    "deal",
    [lambda seed: split_by_label(LABELS, 8, 0.5, 5, seed), lambda seed: split_by_group(WRITERS, 8, seed)],
    ids=["by label", "by group"],
)
def test_partitions_use_every_example_once_and_follow_the_seed(deal):
    parts = deal(3)
    assert len(parts) == 8
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))
    assert same(parts, deal(3))
    assert not same(parts, deal(4))


def test_dirichlet_is_uneven_and_respects_the_least_size():
    parts = split_by_label(LABELS, 8, 0.3, 10, seed=0)
    assert min(len(part) for part in parts) >= 10
    assert max(len(part) for part in parts) > 2 * min(len(part) for part in parts)
    assert min(len(np.unique(LABELS[part])) for part in parts) < 6


@pytest.mark.parametrize(("clients", "least"), [(30, 10), (400, 1)])
def test_an_impossible_dirichlet_partition_is_one_line(clients, least):
    with pytest.raises(ValueError, match=rf"^no Dirichlet\(0.1\) partition of 300 .* {clients} clients: .*$"):
        split_by_label(LABELS, clients, 0.1, least, seed=0)


def test_dirichlet_without_flower_datasets_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(ValueError, match=r"needs the extra 'data': pip install 'asyncmanifold\[data\]'"):
        split_by_label(LABELS, 3, 0.5, 2, seed=0)


def test_groups_stay_whole_and_sizes_are_balanced():
    parts = split_by_group(WRITERS, 5, seed=0)
    owners = [set(WRITERS[part].tolist()) for part in parts]
    assert sum(len(owner) for owner in owners) == len(set(WRITERS.tolist()))
    largest_group = np.bincount(WRITERS).max()
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= largest_group


def test_too_few_groups_are_refused():
    with pytest.raises(ValueError, match="2 groups cannot be dealt to 3 clients"):
        split_by_group(np.array([7, 7, 9]), 3, seed=0)


def test_whole_groups_are_held_out_and_never_everything():
    held_out, rest = hold_out_groups(WRITERS, 0.2, np.random.default_rng(0))
    assert 40 <= len(held_out) <= 60
    assert sorted([*held_out, *rest]) == list(range(300))
    assert not set(WRITERS[held_out]) & set(WRITERS[rest])
    held_out, rest = hold_out_groups(np.zeros(9, np.int64), 0.5, np.random.default_rng(0))
    assert (len(held_out), len(rest)) == (0, 9)


# Files


def femnist_records(count: int = 240) -> dict[str, np.ndarray]:
    """Images whose last pixel is their number, dark above for odd labels and below for 2 and 3."""
    random = np.random.default_rng(1)
    labels = np.arange(count) % 4
    images = random.integers(200, 256, size=(count, 28, 28)).astype(np.uint8)
    images[labels % 2 == 1, :8] = 0
    images[labels >= 2, 16:24] = 0
    images[:, 27, 27] = np.arange(count)
    user = np.repeat(np.arange(count // 10), 10)
    return {
        "images": images,
        "labels": labels.astype(np.int16),
        "user": user.astype(np.int32),
        "is_test": (np.arange(count) % 5 == 0).astype(np.uint8),
    }


def cxr8_records(count: int = 90) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    images = random.integers(256, size=(count, 128, 128)).astype(np.uint8)
    images[:, :16, :16] = np.arange(count)[:, None, None]
    return {
        "images": images,
        "labels": random.integers(2, size=(count, 14)).astype(np.uint8),
        "patient_id": np.sort(random.integers(40, size=count)).astype(np.int32),
    }


TASKS = [(Femnist, femnist_records), (Cxr8, cxr8_records)]


@pytest.fixture
def femnist_file(tmp_path):
    np.savez_compressed(tmp_path / "femnist.npz", **femnist_records())
    return str(tmp_path / "femnist.npz")


@pytest.fixture
def cxr8_file(tmp_path):
    np.savez_compressed(tmp_path / "cxr8.npz", **cxr8_records())
    return str(tmp_path / "cxr8.npz")


def refusal(call) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each test looks at the text
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("task", "records"), TASKS)
def test_a_task_without_data_says_what_to_give(task, records):
    assert refusal(lambda: task().build(0)) == f"{task.__name__.lower()} needs a data file: give --data PATH"


@pytest.mark.parametrize(("task", "records"), TASKS)
def test_files_that_are_no_npz_are_one_line(task, records, tmp_path):
    path = tmp_path / "data.npz"
    build = task(data=str(path)).build
    assert refusal(lambda: build(0)) == f"{path}: No such file or directory"
    path.write_bytes(b"not a zip file")
    assert refusal(lambda: build(0)) == f"{path}: not an .npz file, or cut off"
    np.savez_compressed(path, **records())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert refusal(lambda: build(0)) == f"{path}: not an .npz file, or cut off"
    path.write_bytes(whole[:2000] + b"\xff" * 64 + whole[2064:])
    assert refusal(lambda: build(0)).startswith(f"{path}: record 'images' cannot be read: ")
    assert refusal(lambda: task(data=str(tmp_path)).build(0)) == f"{tmp_path}: Is a directory"


@pytest.mark.parametrize(
    ("task", "records", "change", "problem"),
    [
        (*TASKS[0], {"labels": None}, r"no record 'labels' \(there are: images, user, is_test\)"),
        (*TASKS[0], {"images": np.zeros((240, 28, 27), np.uint8)}, r"must be uint8 \(N, 28, 28\)"),
        (*TASKS[0], {"images": np.zeros((240, 28, 28))}, r"'images' is float64 \(240, 28, 28\), must be"),
        (*TASKS[0], {"labels": np.full(240, 62)}, "'labels' contains 62, must be from 0 to 61"),
        (*TASKS[0], {"labels": np.full(240, -1)}, "'labels' contains -1, must be from 0 to 61"),
        (*TASKS[0], {"labels": np.zeros(240)}, r"'labels' is float64 \(240,\), must be whole numbers"),
        (*TASKS[0], {"labels": np.zeros(239, int)}, "'labels' has 239 rows, but 'images' has 240"),
        (*TASKS[0], {"labels": np.array(3)}, "'labels' has no rows, but 'images' has 240"),
        (*TASKS[0], {"user": np.array([{}] * 240)}, "'user' cannot be read: Object arrays"),
        (*TASKS[0], {"is_test": np.ones(240, bool)}, "'is_test' must mark some images, and not all"),
        (*TASKS[1], {"patient_id": None}, "no record 'patient_id'"),
        (*TASKS[1], {"images": np.zeros((90, 64, 64), np.uint8)}, r"must be uint8 \(N, 128, 128\)"),
        (*TASKS[1], {"labels": np.zeros(90, int)}, "must be whole numbers in 2 dimensions"),
        (*TASKS[1], {"labels": np.full((90, 14), 2)}, "'labels' contains 2, must be from 0 to 1"),
        (*TASKS[1], {"labels": np.zeros((90, 5), int)}, "has 5 columns, must have 8"),
        (*TASKS[1], {"patient_id": np.zeros(91, int)}, "'patient_id' has 91 rows, but 'images' has 90"),
    ],
)
def test_files_with_faulty_records_are_one_line(task, records, change, problem, tmp_path):
    path = tmp_path / "data.npz"
    changed = records() | change
    np.savez(path, **{name: record for name, record in changed.items() if record is not None})
    with pytest.raises(ValueError, match=rf"^{path}: .*{problem}.*$") as caught:
        task(data=str(path)).build(0)
    assert "\n" not in str(caught.value)


def test_an_empty_archive_has_no_records(tmp_path):
    zipfile.ZipFile(tmp_path / "empty.npz", "w").close()
    with pytest.raises(ValueError, match=r"no record 'images' \(there are: none\)"):
        read_npz(str(tmp_path / "empty.npz"), ("images",))


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (Femnist, {"clients": 0}),
        (Femnist, {"partition": "shards"}),
        (Femnist, {"concentration": 0.0}),
        (Femnist, {"min_examples": 1}),
        (Femnist, {"max_examples": 0}),
        (Femnist, {"max_test": 0}),
        (Femnist, {"validation_fraction": 1.0}),
        (Femnist, {"kernel": 4}),
        (Cxr8, {"clients": 0}),
        (Cxr8, {"conditions": 0}),
        (Cxr8, {"image_size": 100}),
        (Cxr8, {"width": "x2.0"}),
        (Cxr8, {"max_examples": 0}),
        (Cxr8, {"test_fraction": 0.0}),
        (Cxr8, {"validation_fraction": 1.0}),
    ],
)
def test_wrong_settings_name_the_call(task, settings):
    ((name, value),) = settings.items()
    assert refusal(lambda: task(**settings)).startswith(f"{task.__name__}({name}={value!r}) must be ")


# Splits of the tasks


def marks(data: TensorData, read) -> list[int]:
    """Return the number that the test wrote into each image."""
    inputs, _ = data.batch(torch.arange(len(data)))
    return [read(image) for image in inputs]


def femnist_mark(image: torch.Tensor) -> int:
    return round((1.0 - float(image[0, 27, 27])) * 255)


def cxr8_mark(image: torch.Tensor) -> int:
    return round((float(image[0, 0, 0]) * 0.229 + 0.485) * 255)


@pytest.mark.parametrize("partition", ["dirichlet", "writer"])
def test_femnist_uses_every_image_once_and_tests_on_its_own_test_set(femnist_file, partition):
    settings = Femnist(data=femnist_file, clients=4, min_examples=5, partition=partition)
    task = settings.build(seed=0)
    test = marks(task.test, femnist_mark)
    assert test == [mark for mark in range(240) if mark % 5 == 0]
    train = [marks(data, femnist_mark) for data in task.clients]
    validation = [marks(data, femnist_mark) for data in task.validation]
    assert sorted(chain(*train, *validation, test)) == list(range(240))
    again = settings.build(seed=0)
    assert [marks(data, femnist_mark) for data in again.clients] == train
    if partition == "writer":
        writers = [{mark // 10 for mark in one + two} for one, two in zip(train, validation, strict=True)]
        assert sum(len(own) for own in writers) == 24
    for data in (*task.clients, task.test):
        inputs, targets = data.batch(torch.arange(len(data)))
        assert [mark % 4 for mark in marks(data, femnist_mark)] == targets.tolist()
        assert inputs.shape[1:] == (1, 28, 28)


def test_femnist_takes_seeded_subsets(femnist_file):
    settings = Femnist(data=femnist_file, clients=3, min_examples=2, max_examples=60, max_test=10)
    task = settings.build(seed=5)
    assert sum(len(data) for data in (*task.clients, *task.validation)) == 60
    test = marks(task.test, femnist_mark)
    assert len(set(test)) == 10
    assert all(mark % 5 == 0 for mark in test)
    assert marks(settings.build(seed=5).test, femnist_mark) == test
    assert marks(settings.build(seed=6).test, femnist_mark) != test


def test_trusted_images_are_nobodys(femnist_file):
    settings = Femnist(data=femnist_file, clients=3, min_examples=2, trusted_examples=7)
    task, plain = settings.build(4), replace(settings, trusted_examples=0).build(4)
    assert plain.trusted is None
    rows = [data.indices.tolist() for data in (task.trusted, task.test, *task.clients, *task.validation)]
    used = [row for part in rows for row in part]
    assert (len(rows[0]), len(used)) == (7, len(set(used)))
    others = [data.indices.tolist() for data in (plain.test, *plain.clients, *plain.validation)]
    assert sorted(used) == sorted(row for part in others for row in part)
    with pytest.raises(InputError, match=r"trusted_examples=100000 must be below the \d+ training examples"):
        replace(settings, trusted_examples=100_000).build(4)


def test_femnist_writers_that_leave_a_client_short_are_one_line(femnist_file):
    settings = Femnist(data=femnist_file, clients=20, min_examples=20, partition="writer")
    assert "a client has 8 examples, must have 20: fewer clients" in refusal(lambda: settings.build(0))


def test_cxr8_never_splits_a_patient(cxr8_file):
    settings = Cxr8(data=cxr8_file, clients=3, image_size=16)
    task = settings.build(seed=0)
    sets = [marks(data, cxr8_mark) for data in (*task.clients, *task.validation, task.test)]
    assert sorted(chain(*sets)) == list(range(90))
    records = cxr8_records()
    patients = [set(records["patient_id"][indices].tolist()) for indices in sets]
    assert sum(len(own) for own in patients) == len(set(records["patient_id"].tolist()))
    inputs, targets = task.test.batch(torch.arange(len(task.test)))
    assert inputs.shape == (len(task.test), 3, 16, 16)
    assert np.array_equal(targets.numpy(), records["labels"][sets[-1], :8])
    assert [marks(data, cxr8_mark) for data in settings.build(seed=0).clients] == sets[:3]


def test_cxr8_takes_a_seeded_subset_and_refuses_starved_clients(cxr8_file):
    task = Cxr8(data=cxr8_file, clients=2, image_size=16, max_examples=30).build(seed=0)
    assert sum(len(data) for data in (*task.clients, *task.validation, task.test)) == 30
    starved = Cxr8(data=cxr8_file, clients=9, image_size=16, max_examples=16)
    assert "X-ray to train on, must have 2: fewer clients" in refusal(lambda: starved.build(0))


def test_cxr8_from_random_weights_says_so_once(cxr8_file, tmp_path, capsys):
    quick = [f"--set={key}" for key in ("clients=2", "image_size=16", "updates=1", "point_epochs=1")]
    place = ["--data", cxr8_file, "--out", str(tmp_path / "run")]
    assert main(["run", "cxr8-mini", "--method", "fedasync", *place, *quick]) == 0
    line = "note: cxr8 starts from random weights, the paper from ImageNet's: --set weights=FILE.safetensors"
    assert capsys.readouterr().err.splitlines().count(line) == 1
    shown = Remembered()
    say_cautions([load_config("cxr8"), load_config("cxr8", "fedgs"), load_config("digits")], shown)
    assert shown.lines == [line]
    assert Cxr8(weights="some.safetensors").caution is None


class Remembered(Display):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def test_cxr8_without_torchmetrics_names_the_extra(cxr8_file, monkeypatch):
    monkeypatch.setattr("asyncmanifold.tasks.cxr8.find_spec", lambda name: None)
    assert "needs the extra 'data'" in refusal(lambda: Cxr8(data=cxr8_file).build(0))


# What the models see


def test_ink_is_one_and_background_nothing():
    stored = torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8)
    assert torch.allclose(scale_ink(stored), torch.tensor([[[[1.0, 0.0, 0.8]]]]))
    assert stored.tolist() == [[[[0, 255, 51]]]]


def test_one_channel_becomes_three_normalised_ones():
    pixel = normalise_images(1, torch.full((2, 1, 1, 1), 255, dtype=torch.uint8))[0].flatten()
    expected = torch.tensor([0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225])
    assert torch.allclose(pixel, expected)


def test_shrinking_averages_squares():
    image = torch.tensor([[[[0, 4, 255, 255], [2, 3, 255, 255], [1, 1, 0, 0], [1, 2, 0, 1]]]]).byte()
    small = normalise_images(2, image)[0, 0] * 0.229 + 0.485
    assert torch.allclose(small * 255.0, torch.tensor([[2.25, 255.0], [1.25, 0.25]]), atol=1e-4)
    assert image.dtype == torch.uint8


# Files too large to read


def test_large_records_are_mapped_and_small_ones_read(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "MAPPED_BYTES", 2000)
    images = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
    path = str(tmp_path / "data.npz")
    np.savez(path, labels=np.arange(3), images=images, turned=np.asfortranarray(images))
    records = read_npz(path, ("images", "labels", "turned"))
    assert isinstance(records["images"], np.memmap)
    assert not isinstance(records["labels"], np.memmap)
    for name in ("images", "turned"):
        assert np.array_equal(records[name], images)
    records["images"][0] = 7
    assert np.array_equal(read_npz(path, ("images",))["images"], images)


def test_a_mapped_record_of_the_wrong_size_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "MAPPED_BYTES", 100)
    path = str(tmp_path / "data.npz")
    whole = io.BytesIO()
    np.save(whole, np.zeros((3, 28, 28), np.uint8))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", whole.getvalue()[:-5])
    assert "bytes do not hold uint8 (3, 28, 28)" in refusal(lambda: read_npz(path, ("images",)))


def test_objects_are_never_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "MAPPED_BYTES", 100)
    path = str(tmp_path / "data.npz")
    np.savez(path, images=np.array([{"a": 1}] * 3, dtype=object))
    assert "Object arrays cannot be loaded" in refusal(lambda: read_npz(path, ("images",)))


def test_the_task_is_the_same_on_a_mapped_file(tmp_path, femnist_file, monkeypatch):
    monkeypatch.setattr(npz, "MAPPED_BYTES", 2000)
    mapped = str(tmp_path / "mapped.npz")
    np.savez(mapped, **femnist_records())
    pair = [Femnist(data=path, clients=2).build(3) for path in (femnist_file, mapped)]
    for one, other in zip(*(task.clients for task in pair), strict=True):
        everything = torch.arange(len(one))
        pairs = zip(one.batch(everything), other.batch(everything), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


# Models


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_federated_cnn():
    assert count(FederatedCNN(10)) == 1_663_370
    assert FederatedCNN(62)(torch.zeros(2, 1, 28, 28)).shape == (2, 62)
    assert count(FederatedCNN(62, kernel=3, channels=16, hidden=128)) == 213_630


@pytest.mark.parametrize(("width", "parameters"), [("x0.5", 1_366_792), ("x1.0", 2_278_604)])
def test_the_shufflenets_of_other_widths(width, parameters):
    """Torchvision's published counts at 1,000 classes."""
    assert count(ShuffleNet(1000, width)) == parameters


def test_the_shufflenet_is_that_of_published_weights():
    model = ShuffleNet(1000)
    assert count(model) == 3_503_624
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    expected = {
        "conv1.0.weight": (24, 3, 3, 3),
        "conv1.1.running_var": (24,),
        "stage2.0.branch1.0.weight": (24, 1, 3, 3),
        "stage2.0.branch1.1.bias": (24,),
        "stage2.0.branch1.2.weight": (88, 24, 1, 1),
        "stage2.0.branch1.3.weight": (88,),
        "stage2.0.branch2.0.weight": (88, 24, 1, 1),
        "stage2.0.branch2.3.weight": (88, 1, 3, 3),
        "stage2.0.branch2.5.weight": (88, 88, 1, 1),
        "stage3.4.branch2.0.weight": (176, 176, 1, 1),
        "stage3.4.branch2.1.num_batches_tracked": (),
        "stage3.4.branch2.3.weight": (176, 1, 3, 3),
        "stage3.4.branch2.4.running_mean": (176,),
        "stage3.4.branch2.5.weight": (176, 176, 1, 1),
        "stage4.3.branch2.0.weight": (352, 352, 1, 1),
        "stage4.3.branch2.6.weight": (352,),
        "conv5.0.weight": (1024, 704, 1, 1),
        "conv5.1.weight": (1024,),
        "fc.weight": (1000, 1024),
        "fc.bias": (1000,),
    }
    assert expected.items() <= shapes.items()
    blocks = {".".join(name.split(".")[:2]) for name in shapes if name.startswith("stage")}
    assert len(blocks) == 16
    # 56 convolutions (one, 3 × 5, 13 × 3, one), each with five tensors of BatchNorm, and the last layer.
    assert len(shapes) == 56 * 6 + 2


@pytest.mark.parametrize("size", [16, 32, 64])
def test_the_shufflenet_takes_small_images(size):
    assert ShuffleNet(8)(torch.zeros(2, 3, size, size)).shape == (2, 8)


def test_channels_of_both_branches_take_turns():
    from asyncmanifold.tasks.shufflenet import ShuffleBlock

    block = ShuffleBlock(4, 4).eval()
    block.branch2 = torch.nn.Identity()
    features = torch.arange(4.0).view(1, 4, 1, 1)
    assert block(features).flatten().tolist() == [0.0, 2.0, 1.0, 3.0]


def overfit(model, inputs, targets, loss, steps: int, rate: float) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(inputs), targets)
        value.backward()
        optimizer.step()
    return value.item()


def test_one_batch_of_characters_can_be_learned_by_heart(femnist_file):
    task = Femnist(data=femnist_file, clients=2, min_examples=20).build(seed=0)
    inputs, targets = task.clients[0].batch(torch.arange(16))
    assert overfit(task.build_model(0), inputs, targets, task.loss, steps=30, rate=1e-3) < 0.1


def test_one_batch_of_x_rays_can_be_learned_by_heart(cxr8_file):
    task = Cxr8(data=cxr8_file, clients=2, image_size=32).build(seed=0)
    inputs, targets = task.clients[0].batch(torch.arange(12))
    assert overfit(task.build_model(0), inputs, targets, task.loss, steps=15, rate=3e-3) < 0.1


# Published weights


def test_published_weights_fill_all_but_the_last_layer(tmp_path, cxr8_file):
    published = ShuffleNet(1000).state_dict()
    counters = [name for name in published if name.endswith("num_batches_tracked")]
    path = str(tmp_path / "shufflenet.safetensors")
    save_file({name: tensor for name, tensor in published.items() if name not in counters}, path)
    model = Cxr8(data=cxr8_file, clients=2, image_size=16, weights=path).build(0).build_model(0)
    own = model.state_dict()
    assert torch.equal(own["stage3.2.branch2.0.weight"], published["stage3.2.branch2.0.weight"])
    assert own["fc.weight"].shape == (8, 1024)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"conv5.0.weight": None}, "no tensor 'conv5.0.weight'"),
        (
            {"conv5.0.weight": torch.zeros(1024, 464, 1, 1)},
            r"is \(1024, 464, 1, 1\), must be \(1024, 704, 1, 1\)",
        ),
        ({"stage5.weight": torch.zeros(1)}, "tensor 'stage5.weight' is not one of ShuffleNetV2"),
    ],
)
def test_other_weights_are_refused(change, problem, tmp_path):
    path = str(tmp_path / "w.safetensors")
    tensors = ShuffleNet(1).state_dict() | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with pytest.raises(ValueError, match=rf"^{path}: .*{problem}"):
        read_weights(path, "x1.5")


def test_weights_of_another_width_are_refused(tmp_path):
    path = str(tmp_path / "w.safetensors")
    save_file(ShuffleNet(1, "x0.5").state_dict(), path)
    with pytest.raises(ValueError, match=r"as in ShuffleNetV2 x1\.5"):
        read_weights(path, "x1.5")
    assert len(read_weights(path, "x0.5")) == len(ShuffleNet(1).state_dict()) - 2


def test_weights_that_are_no_safetensors_are_one_line(tmp_path):
    path = tmp_path / "w.safetensors"
    assert refusal(lambda: read_weights(str(path), "x1.5")) == f"{path}: No such file or directory"
    path.write_bytes(b"nothing of the kind")
    assert refusal(lambda: read_weights(str(path), "x1.5")) == f"{path}: not a .safetensors file, or cut off"
    assert "must be a .safetensors file" in refusal(lambda: read_weights("weights.pth", "x1.5"))


# Metrics


def score(metric, outputs, targets) -> float:
    outputs, targets = torch.tensor(outputs), torch.tensor(targets, dtype=torch.float32)
    for rows in torch.arange(len(outputs)).split(3):
        metric.update(outputs[rows], targets[rows])
    return metric.compute()


FIRST = [2.0, 1.0, 0.5, -1.0]
SECOND = [40.0, 30.0, 20.0, 41.0]


def test_auroc_and_auprc_by_hand():
    """First condition: found at places 1 and 3 of the ranking. Second: at place 4 only.

    AUROC: 3 of 4 pairs are in order, 0 of 3. Average precision: (1/1 + 2/3) / 2 and 1/4. The third never
    occurs and the fourth always does: they do not count. Logits of 40 are not ties.
    """
    outputs = [[a, b, 0.0, 0.0] for a, b in zip(FIRST, SECOND, strict=True)]
    targets = [[1, 0, 0, 1], [0, 0, 0, 1], [1, 1, 0, 1], [0, 0, 0, 1]]
    assert score(AUROC(), outputs, targets) == pytest.approx((3 / 4 + 0) / 2)
    assert score(AUPRC(), outputs, targets) == pytest.approx(((1 + 2 / 3) / 2 + 1 / 4) / 2)


def test_each_condition_is_scored_alone_too():
    outputs = [[3.0, 0.0], [1.0, 1.0], [2.0, 2.0], [0.0, 3.0]]
    targets = [[1, 0], [1, 0], [0, 0], [0, 1]]
    metrics = metrics_of(["Mass", "Nodule"])
    alone = ["auroc Mass", "auroc Nodule", "auprc Mass", "auprc Nodule"]
    assert list(metrics) == ["auroc", "auprc", *alone]
    scores = {name: score(make(), outputs, targets) for name, make in metrics.items()}
    assert scores["auroc Mass"] == pytest.approx(3 / 4)
    assert scores["auroc Nodule"] == scores["auprc Nodule"] == 1.0
    assert scores["auprc Mass"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["auroc"] == pytest.approx((3 / 4 + 1) / 2)


def test_conditions_have_the_names_of_the_file(tmp_path, cxr8_file):
    assert list(Cxr8(data=cxr8_file, clients=2, conditions=2).build(0).metrics)[2:] == [
        *("auroc 1", "auroc 2", "auprc 1", "auprc 2"),
    ]
    path = str(tmp_path / "named.npz")
    np.savez(path, **cxr8_records(), label_names=np.array(["Mass", "Nodule", "Hernia"]))
    assert list(Cxr8(data=path, clients=2, conditions=2).build(0).metrics)[2:] == [
        *("auroc Mass", "auroc Nodule", "auprc Mass", "auprc Nodule"),
    ]


@pytest.mark.parametrize("metric", [AUROC, AUPRC])
def test_scores_without_a_value_are_not_a_number(metric):
    assert np.isnan(metric().compute())
    assert np.isnan(score(metric(), [[0.1], [0.2]], [[1], [1]]))
    assert np.isnan(score(metric(), [[0.1], [float("nan")]], [[1], [0]]))


# Runs

SHORT = {
    "training": LocalTraining(point_epochs=1, curve_epochs=1, batch_size=16),
    "run": Run(updates=3, evaluate_every=3),
}


@pytest.mark.parametrize("method", ["fedasync", "asyncbezier"])
def test_femnist_runs(femnist_file, method):
    task = Femnist(data=femnist_file, clients=3, min_examples=5, max_examples=60, max_test=20).build(0)
    summary = simulate(task, method, **SHORT).summary
    assert summary["updates"] == 3
    assert summary["metric"] == "accuracy"
    assert 0.0 <= summary["final"] <= 1.0
    assert len(summary["per_client"]) == 3


@pytest.mark.parametrize("method", ["fedasync", "asyncbezier"])
def test_cxr8_runs(cxr8_file, method):
    task = Cxr8(data=cxr8_file, clients=3, image_size=16, max_examples=60).build(0)
    result = simulate(task, method, **SHORT)
    assert result.summary["updates"] == 3
    assert result.summary["metric"] == "auroc"
    assert 0.0 <= result.trace[-1]["auprc"] <= 1.0


def test_tasks_can_be_sent_to_other_processes(femnist_file, cxr8_file):
    tasks = [
        Femnist(data=femnist_file, clients=2, min_examples=5).build(0),
        Cxr8(data=cxr8_file, clients=2, image_size=16).build(0),
    ]
    for task in tasks:
        copy = pickle.loads(pickle.dumps(task))
        rows = torch.arange(3)
        assert torch.equal(copy.test.batch(rows)[0], task.test.batch(rows)[0])
        assert torch.equal(*(next(one.build_model(0).parameters()) for one in (copy, task)))


def test_a_model_starts_without_weights():
    assert count(make_model(8, "x1.5", {})) == 3_503_624 - 992 * 1025


def test_scores_tell_large_logits_apart():
    """Probabilities of logits above about 37 are all 1; the order of the logits is not lost."""
    outputs, targets = [[40.0], [42.0], [41.0], [43.0]], [[0], [1], [0], [1]]
    assert score(AUROC(), outputs, targets) == 1.0
    assert score(AUPRC(), outputs, targets) == 1.0
    assert score(AUROC(), [[50.0]] * 4, targets) == 0.5  # equal logits are still ties
