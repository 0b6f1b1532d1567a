"""FEMNIST prepared from LEAF's files, Hugging Face's and .npz files; files that are faulty."""

import io
import json
import sys
import zipfile

import datasets
import huggingface_hub
import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from asyncmanifold.sources import prepare
from asyncmanifold.tasks.femnist import Femnist
from asyncmanifold.tasks.npz import read_npz

NAMES = ("images", "labels", "user", "is_test")


def picture(ink: int) -> list[float]:
    """White, but for the first pixel, which is ``ink`` / 255, and the last one, which is black."""
    return [ink / 255, *[1.0] * 782, 0.0]


def leaf(**users) -> dict:
    data = {
        user: {"x": [picture(ink) for ink in inks], "y": labels} for user, (inks, labels) in users.items()
    }
    counts = [len(entry["y"]) for entry in data.values()]
    return {"users": list(data), "num_samples": counts, "user_data": data}


def write(path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def split_folder(path):
    write(path / "data/train/all_data_0_train.json", leaf(f1=([10, 20], [0, 61]), f2=([30], [35])))
    write(path / "data/test/all_data_0_test.json", leaf(f1=([40], [9]), f2=([50], [36])))
    write(path / "data/all_data/all_data_0.json", "not read")
    return path


def prepared(source, out):
    words = prepare("femnist", str(source), out)
    return words, read_npz(str(out), NAMES), read_npz(str(out), ("user_names",))["user_names"].tolist()


def refusal(source, tmp_path, out="out.npz") -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each test looks at the text
        prepare("femnist", str(source), tmp_path / out)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out*"))
    return str(caught.value)


# LEAF


@pytest.mark.parametrize("below", ["", "data"])
def test_leafs_split_is_kept(tmp_path, below):
    words, records, writers = prepared(split_folder(tmp_path / "femnist") / below, tmp_path / "out.npz")
    assert words == "femnist: 5 images, 5 classes, 2 writers"
    assert writers == ["f1", "f2"]
    assert records["labels"].tolist() == [0, 61, 35, 9, 36]
    assert records["user"].tolist() == [0, 0, 1, 0, 1]
    assert records["is_test"].tolist() == [0, 0, 0, 1, 1]
    expected = np.full((5, 28, 28), 255, np.uint8)
    expected[:, 0, 0] = [10, 20, 30, 40, 50]
    expected[:, 27, 27] = 0
    assert records["images"].dtype == np.uint8
    assert np.array_equal(records["images"], expected)


def test_without_a_split_every_tenth_image_of_a_writer_is_for_the_test(tmp_path):
    write(tmp_path / "in/all_data_0.json", leaf(a=(range(6), [1] * 6), b=(range(10), [2] * 10)))
    write(tmp_path / "in/all_data_1.json", leaf(a=(range(15), [3] * 15)))
    _, records, _ = prepared(tmp_path / "in", tmp_path / "out.npz")
    assert np.flatnonzero(records["is_test"]).tolist() == [15, 16 + 3, 16 + 13]
    _, single, _ = prepared(tmp_path / "in/all_data_1.json", tmp_path / "out.npz")
    assert np.flatnonzero(single["is_test"]).tolist() == [9]


def test_a_prepared_file_can_be_mapped_repeated_and_trained_on(tmp_path):
    write(tmp_path / "in.json", leaf(**{f"f{n}": (range(30), list(range(30))) for n in range(4)}))
    parts = []
    prepare("femnist", str(tmp_path / "in.json"), tmp_path / "out.npz", lambda *part: parts.append(part))
    assert parts == [(1, 1)]
    with zipfile.ZipFile(tmp_path / "out.npz") as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
        start = archive.read("images.npy")
    content = (tmp_path / "out.npz").read_bytes()
    assert start in content
    prepare("femnist", str(tmp_path / "in.json"), tmp_path / "out.npz")
    assert (tmp_path / "out.npz").read_bytes() == content
    task = Femnist(data=str(tmp_path / "out.npz"), clients=2, partition="writer", min_examples=2).build(0)
    assert len(task.clients) == 2
    assert len(task.test) == 12


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"users": ["a"], "user_da', "line 1, column 18: not JSON, or cut off: "),
        ("[]", ": not an object with users and user_data"),
        ({"user_data": {}}, ": no 'users'"),
        ({"users": []}, ": no 'user_data'"),
        ({"users": {}, "user_data": {}}, ": 'users' must be a list"),
        ({"users": [3], "user_data": {}}, ": 'users' must be strings"),
        ({"users": ["a"], "user_data": {}}, ", user 'a': nothing in 'user_data'"),
        ({"users": ["a"], "user_data": {"a": 3}}, ", user 'a': not an object with x and y"),
        ({"users": ["a"], "user_data": {"a": {"x": []}}}, ", user 'a': no 'y'"),
        ({"users": ["a"], "user_data": {"a": {"x": [], "y": 3}}}, ", user 'a': 'y' must be a list"),
        (leaf(a=([1, 2], [0])), ", user 'a': 2 x, but 1 y"),
        (leaf(a=([1, 2], [0, 62])), ", user 'a', image 1: label 62, must be from 0 to 61"),
        (leaf(a=([1], ["0"])), ", user 'a', image 0: label '0', must be from 0 to 61"),
        (leaf(a=([1, 510], [0, 0])), ", user 'a', image 1: pixel 0 is 2.0, must be from 0 to 1"),
        (leaf(a=([1], [0])), ": no test images; without a split, every 10th of a writer is one"),
        (leaf(), ": no images"),
    ],
)
def test_wrong_leaf_files_are_one_line(tmp_path, content, expected):
    write(tmp_path / "in.json", content)
    message = refusal(tmp_path / "in.json", tmp_path)
    assert message.startswith(f"{tmp_path / 'in.json'}")
    assert expected in message


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ([1.0] * 783, "783 pixels, must be 784"),
        (3, "not a list of pixels, must be 784"),
    ],
)
def test_an_image_of_the_wrong_size_is_named(tmp_path, image, expected):
    content = leaf(a=([1, 2], [0, 0]))
    content["user_data"]["a"]["x"][1] = image
    write(tmp_path / "in.json", content)
    assert refusal(tmp_path / "in.json", tmp_path).endswith(f", user 'a', image 1: {expected}")


@pytest.mark.parametrize("pixel", [None, "ink", [1.0]])
def test_pixels_that_are_no_numbers_are_refused(tmp_path, pixel):
    content = leaf(a=([1], [0]))
    content["user_data"]["a"]["x"][0] = [pixel] * 784
    write(tmp_path / "in.json", content)
    assert ", user 'a'" in refusal(tmp_path / "in.json", tmp_path)


def test_half_a_split_is_refused(tmp_path):
    write(tmp_path / "in/train/a.json", leaf(a=([1], [0])))
    assert (
        refusal(tmp_path / "in", tmp_path) == f"{tmp_path}/in/test: no .json files, but its sibling has some"
    )


# Hugging Face


def encoded(ink: int, side: int = 28, mode: str = "L") -> dict:
    image = Image.new("L", (side, side), 255)
    image.putpixel((1, 0), ink)
    content = io.BytesIO()
    image.convert(mode).save(content, "PNG")
    return {"bytes": content.getvalue(), "path": None}


def rows(count: int = 25) -> list[dict]:
    return [
        {
            "image": encoded(n, mode="RGB" if n % 2 else "L"),
            "writer_id": f"f{n // 20}",
            "hsf_id": 0,
            "character": n,
        }
        for n in range(count)
    ]


def check_rows(records, writers):
    assert records["images"][:, 0, 1].tolist() == list(range(25))
    assert records["images"][:, 5, 5].tolist() == [255] * 25
    assert records["labels"].tolist() == list(range(25))
    assert records["user"].tolist() == [0] * 20 + [1] * 5
    assert np.flatnonzero(records["is_test"]).tolist() == [9, 19]
    assert writers == ["f0", "f1"]


def test_parquet_files_are_read_in_order(tmp_path):
    (tmp_path / "in/data").mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows()[:7]), tmp_path / "in/data/train-0.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows()[7:]), tmp_path / "in/data/train-1.parquet")
    words, records, writers = prepared(tmp_path / "in", tmp_path / "out.npz")
    assert words == "femnist: 25 images, 25 classes, 2 writers"
    check_rows(records, writers)


def test_a_set_of_the_hub_is_fetched(tmp_path, monkeypatch):
    def load(name, split):
        assert (name, split) == ("flwrlabs/femnist", "train")
        table = datasets.Dataset.from_list(rows())
        return table.cast_column("image", datasets.Image())

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    _, records, writers = prepared("flwrlabs/femnist", tmp_path / "out.npz")
    check_rows(records, writers)


def test_without_a_network_the_hub_is_one_line(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("Name or service not known\nand so on")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    assert refusal("flwrlabs/femnist", tmp_path) == (
        "flwrlabs/femnist: no such path, and the Hugging Face Hub does not provide it (Name or service not "
        "known); without a network, give the path of a copy"
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"character": 62}, ", row 3: label 62, must be from 0 to 61"),
        ({"writer_id": None}, ", row 3: writer_id None must be a string"),
        ({"image": {"bytes": b"\x89PNG", "path": None}}, ", row 3: 'image' is not a readable image"),
        ({"image": {"bytes": None, "path": "a.png"}}, ", row 3: 'image' holds no image"),
        ({"image": encoded(0, side=27)}, ", row 3: 'image' is 27×27, must be 28×28"),
    ],
)
def test_wrong_rows_are_one_line(tmp_path, change, expected):
    table = rows()
    table[3] |= change
    parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "in.parquet")
    assert refusal(tmp_path / "in.parquet", tmp_path) == f"{tmp_path}/in.parquet{expected}"


def test_wrong_parquet_files_are_one_line(tmp_path):
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.table({"image": [1], "label": [2]}), path)
    assert refusal(path, tmp_path) == (
        f"{path}: no column 'writer_id', 'character' (there are: image, label)"
    )
    path.write_bytes(path.read_bytes()[:50])
    assert refusal(path, tmp_path).startswith(f"{path}: not a parquet file, or cut off: ")


@pytest.mark.parametrize("module", ["pyarrow.parquet", "PIL.Image"])
def test_without_the_extra_parquet_files_name_it(tmp_path, monkeypatch, module):
    parquet.write_table(pyarrow.Table.from_pylist(rows()), tmp_path / "in.parquet")
    monkeypatch.setitem(sys.modules, module, None)
    message = refusal(tmp_path / "in.parquet", tmp_path)
    assert message.endswith(" needs the extra 'data': pip install 'asyncmanifold[data]'")


# .npz files


def stored(**changes) -> dict[str, np.ndarray]:
    return {
        "images": np.arange(4 * 784, dtype=np.uint32).astype(np.uint8).reshape(4, 28, 28),
        "labels": np.array([0, 1, 61, 3], np.int16),
        "user": np.array([0, 0, 1, 1], np.int32),
        "user_names": np.array(["f1", "f2"]),
        "is_test": np.array([0, 1, 0, 0], np.uint8),
    } | changes


def test_an_npz_file_is_rewritten_with_all_its_records(tmp_path):
    np.savez_compressed(tmp_path / "in.npz", **stored(source=np.array([7, 8])))
    words = prepare("femnist", str(tmp_path / "in.npz"), tmp_path / "out.npz")
    assert words == "femnist: 4 images, 4 classes, 2 writers"
    with zipfile.ZipFile(tmp_path / "out.npz") as archive:
        assert len(archive.namelist()) == 6
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
    for name, record in stored(source=np.array([7, 8])).items():
        again = read_npz(str(tmp_path / "out.npz"), (name,))[name]
        assert again.dtype == record.dtype
        assert np.array_equal(again, record)


def test_a_file_can_take_its_own_place(tmp_path):
    np.savez_compressed(tmp_path / "in.npz", **stored())
    prepare("femnist", str(tmp_path / "in.npz"), tmp_path / "in.npz")
    assert np.array_equal(read_npz(str(tmp_path / "in.npz"), ("images",))["images"], stored()["images"])
    assert [path.name for path in tmp_path.iterdir()] == ["in.npz"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"images": np.zeros((4, 28, 28))},
            "record 'images' is float64 (4, 28, 28), must be uint8 (N, 28, 28)",
        ),
        ({"images": np.zeros((0, 28, 28), np.uint8)}, "record 'images' is empty"),
        (
            {"images": np.asfortranarray(stored()["images"])},
            "record 'images' is in Fortran order, must be in C order",
        ),
        ({"images": stored()["images"][:3]}, "record 'labels' has 4 rows, but 'images' 3"),
        ({"labels": np.array([0, 1, 62, 3])}, "record 'labels' contains 62, must be from 0 to 61"),
        ({"user": np.array([0, 0, 2, 1])}, "record 'user' contains 2, must be from 0 to 1"),
        ({"user": np.array([0])}, "record 'user' has 1 rows, but 'labels' has 4"),
        ({"is_test": np.ones(4, np.uint8)}, "no training images"),
    ],
)
def test_wrong_npz_files_are_one_line(tmp_path, changes, expected):
    np.savez(tmp_path / "in.npz", **stored(**changes))
    assert refusal(tmp_path / "in.npz", tmp_path) == f"{tmp_path}/in.npz: {expected}"


def test_broken_npz_files_are_one_line(tmp_path):
    path = tmp_path / "in.npz"
    np.savez_compressed(path, labels=np.zeros(3))
    assert refusal(path, tmp_path) == f"{path}: no record 'images' (there are: labels)"
    path.write_bytes(b"PK")
    assert refusal(path, tmp_path) == f"{path}: not an .npz file, or cut off"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", b"nothing")
    assert refusal(path, tmp_path).startswith(f"{path}: record 'images' cannot be read: ")
    np.savez(path, **stored())
    content = bytearray(path.read_bytes())
    content[400] ^= 1
    path.write_bytes(content)
    assert refusal(path, tmp_path).startswith(f"{path}: record 'images' cannot be read: Bad CRC-32")


# What is asked for


def test_what_is_not_understood_is_one_line_that_lists_what_is(tmp_path):
    (tmp_path / "in").mkdir()
    expected = "expected LEAF's folder or .json file, flwrlabs/femnist or its parquet files, or an .npz file"
    assert refusal(tmp_path / "in", tmp_path) == f"{tmp_path}/in: {expected}"
    assert refusal(tmp_path / "none", tmp_path) == f"{tmp_path}/none: no such path; {expected}"
    (tmp_path / "in.txt").write_text("")
    assert refusal(tmp_path / "in.txt", tmp_path) == f"{tmp_path}/in.txt: {expected}"


def test_where_to_write_is_checked_first(tmp_path):
    assert refusal("none", tmp_path, "out.npy") == f"{tmp_path}/out.npy: must end in .npz"
    assert refusal("none", tmp_path / "x", "out.npz") == f"{tmp_path}/x: no such folder"
    with pytest.raises(
        ValueError, match=r"^no dataset 'mnist': must be one of femnist, shakespeare, cxr8, devices$"
    ):
        prepare("mnist", "none", tmp_path / "out.npz")
