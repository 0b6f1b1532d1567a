"""X-rays prepared from the NIH's folder and from .npz files; files that are faulty."""

import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from asyncmanifold.sources import nih, prepare
from asyncmanifold.tasks.cxr8 import Cxr8
from asyncmanifold.tasks.npz import read_npz

HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
ROWS = (
    "00000001_000.png,Cardiomegaly|Hernia,0,1,058Y,M,PA,2682,2749,0.143,0.143,",
    "00000001_001.png,No Finding,1,1,58,M,AP,2894,2729,0.143,0.143,",
    "00000002_000.png,Atelectasis,0,2,81,F,PA,2500,2048,0.171,0.171,",
    "00000003_000.png,Mass,0,3,40,F,PA,2500,2048,0.171,0.171,",
)


def write_table(folder, rows=ROWS, header=HEADER, name="Data_Entry_2017.csv"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join([header, *rows]) + "\n")
    return folder / name


def save(path, image: Image.Image):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def pattern(side: int) -> np.ndarray:
    """Columns of 0 and 200 in turn, and a first row of squares that is 40 brighter."""
    image = np.tile(np.array([0, 200], np.uint8), (side, side // 2))
    image[: side // 128] += 40
    return image


@pytest.fixture
def folder(tmp_path):
    write_table(tmp_path / "in")
    save(tmp_path / "in/images_001/images/00000001_000.png", Image.fromarray(pattern(256)))
    save(tmp_path / "in/images_001/images/00000001_001.png", Image.new("RGBA", (128, 128), (7, 7, 7, 255)))
    save(tmp_path / "in/images_002/images/00000002_000.png", Image.new("L", (1024, 1024), 9))
    return tmp_path / "in"


def refusal(source, tmp_path, out="out.npz") -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each test looks at the text
        prepare("cxr8", str(source), tmp_path / out)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out*"))
    return str(caught.value)


def test_the_folder_becomes_records_in_the_order_of_the_table(folder, tmp_path):
    parts = []
    words = prepare("cxr8", str(folder), tmp_path / "out.npz", lambda *part: parts.append(part))
    assert words == ("cxr8: 3 X-rays of 2 patients (1 of the 4 in Data_Entry_2017.csv have no PNG file here)")
    assert parts == [(3, 3)]
    names = ("images", "labels", "patient_id", "follow_up", "age", "sex", "view", "names")
    records = read_npz(str(tmp_path / "out.npz"), names)
    assert records["images"].shape == (3, 128, 128)
    assert np.all(records["images"][0, 0] == 140)
    assert np.all(records["images"][0, 1:] == 100)
    assert np.all(records["images"][1] == 7)
    assert np.all(records["images"][2] == 9)
    assert [np.flatnonzero(row).tolist() for row in records["labels"]] == [[1, 13], [], [0]]
    assert records["labels"].shape == (3, 14)
    assert records["patient_id"].tolist() == [1, 1, 2]
    assert records["follow_up"].tolist() == [0, 1, 0]
    assert records["age"].tolist() == [58, 58, 81]
    assert records["sex"].tolist() == ["M", "M", "F"]
    assert records["view"].tolist() == ["PA", "AP", "PA"]
    assert records["names"].tolist() == ["00000001_000.png", "00000001_001.png", "00000002_000.png"]
    assert read_npz(str(tmp_path / "out.npz"), ("label_names",))["label_names"].tolist() == list(nih.FINDINGS)
    with zipfile.ZipFile(tmp_path / "out.npz") as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}


def test_images_pass_in_small_groups_and_are_trained_on(tmp_path, monkeypatch):
    monkeypatch.setattr(nih, "AT_ONCE", 4)
    rows = [f"{n:08}_000.png,Mass,0,{n},30,M,PA" for n in range(18)]
    write_table(tmp_path / "in", rows, HEADER.replace("Gender", "Sex"), "Data_Entry_2017_v2020.csv")
    for n in range(18):
        save(tmp_path / f"in/images/{n:08}_000.png", Image.new("L", (128, 128), n))
    parts = []
    words = prepare("cxr8", str(tmp_path / "in"), tmp_path / "out.npz", lambda *part: parts.append(part))
    assert words == "cxr8: 18 X-rays of 18 patients"
    assert parts == [(4, 18), (8, 18), (12, 18), (16, 18), (18, 18)]
    images = read_npz(str(tmp_path / "out.npz"), ("images",))["images"]
    assert images[:, 64, 64].tolist() == list(range(18))
    task = Cxr8(data=str(tmp_path / "out.npz"), clients=2, image_size=16).build(0)
    assert len(task.clients) == 2


def test_the_corrected_table_is_taken(folder, tmp_path):
    write_table(folder, ROWS[:3], name="Data_Entry_2017_v2020.csv")
    assert prepare("cxr8", str(folder), tmp_path / "out.npz") == "cxr8: 3 X-rays of 2 patients"


def test_images_that_are_not_in_the_table_or_twice_are_named(folder, tmp_path):
    stray = save(folder / "images_002/images/00000009_000.png", Image.new("L", (128, 128)))
    table = folder / "Data_Entry_2017.csv"
    assert refusal(folder, tmp_path) == f"{stray}: not in {table} (1 such files)"
    twice = stray.rename(stray.with_name("00000001_000.png"))
    first = folder / "images_001/images/00000001_000.png"
    assert refusal(folder, tmp_path) == f"{twice}: there is also {first}"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (256, 128)), "256×128, must be square and at least 128×128"),
        (Image.new("L", (64, 64)), "64×64, must be square and at least 128×128"),
        (Image.new("I;16", (128, 128)), "pixels have mode I;16, must have 8 bits"),
        (None, "not a readable PNG file"),
    ],
)
def test_images_of_the_wrong_kind_are_named(folder, tmp_path, image, expected):
    path = folder / "images_002/images/00000002_000.png"
    if image is None:
        path.write_bytes(path.read_bytes()[:200])
    else:
        image.save(path)
    assert refusal(folder, tmp_path) == f"{path}: {expected}"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("a.png,Cough,0,1,58,M,PA", "line 2: unknown finding 'Cough', must be one of Atelectasis, "),
        (
            "a.png,Mass,first,1,58,M,PA",
            "line 2: Follow-up # is 'first', must be a whole number from 0 to 32767",
        ),
        (
            "a.png,Mass,0,-1,58,M,PA",
            "line 2: Patient ID is '-1', must be a whole number from 0 to 2147483647",
        ),
        (
            "a.png,Mass,0,1,99999,M,PA",
            "line 2: Patient Age is '99999', must be a whole number from 0 to 32767",
        ),
        ("a.png,Mass,0", "line 2: too few columns"),
    ],
)
def test_wrong_rows_are_one_line(folder, tmp_path, row, expected):
    table = write_table(folder, [row])
    assert refusal(folder, tmp_path).startswith(f"{table}, {expected}")


def test_wrong_tables_are_one_line(folder, tmp_path):
    table = write_table(folder, header="Image Index,Finding Labels,Patient ID,Patient Age,View Position")
    assert refusal(folder, tmp_path) == (
        f"{table}: no column 'Follow-up #', 'Patient Gender' "
        "(there are: Image Index, Finding Labels, Patient ID, Patient Age, View Position)"
    )
    write_table(folder, [ROWS[0], ROWS[0]])
    assert refusal(folder, tmp_path) == f"{table}: 00000001_000.png occurs twice"
    table.write_bytes(b"\xff\xff")
    assert refusal(folder, tmp_path).startswith(f"{table}: not a .csv file: ")


def test_folders_without_images_or_table_are_one_line(tmp_path):
    write_table(tmp_path / "in")
    assert refusal(tmp_path / "in", tmp_path) == f"{tmp_path}/in: no PNG files"
    (tmp_path / "empty").mkdir()
    expected = "expected NIH's folder of PNG files with Data_Entry_2017.csv, or an .npz file"
    assert refusal(tmp_path / "empty", tmp_path) == f"{tmp_path}/empty: {expected}"
    assert refusal("owner/name", tmp_path) == f"owner/name: no such path; {expected}"
    assert refusal(tmp_path / "in", tmp_path, "out.zip") == f"{tmp_path}/out.zip: must end in .npz"


def test_without_pillow_the_extra_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert refusal(folder, tmp_path) == (
        "cxr8 from PNG files needs the extra 'data': pip install 'asyncmanifold[data]'"
    )


# .npz files


def stored(**changes) -> dict[str, np.ndarray]:
    return {
        "images": np.arange(2 * 128 * 128, dtype=np.uint32).astype(np.uint8).reshape(2, 128, 128),
        "labels": np.eye(2, 14, dtype=np.uint8),
        "label_names": np.array(nih.FINDINGS),
        "patient_id": np.array([4, 5], np.int32),
    } | changes


def test_an_npz_file_is_rewritten_with_all_its_records(tmp_path):
    np.savez_compressed(tmp_path / "in.npz", **stored())
    assert prepare("cxr8", str(tmp_path / "in.npz"), tmp_path / "out.npz") == "cxr8: 2 X-rays of 2 patients"
    for name, record in stored().items():
        again = read_npz(str(tmp_path / "out.npz"), (name,))[name]
        assert again.dtype == record.dtype
        assert np.array_equal(again, record)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"images": np.zeros((2, 64, 64), np.uint8)},
            "record 'images' is uint8 (2, 64, 64), must be uint8 (N, 128, 128)",
        ),
        ({"images": stored()["images"][:1]}, "record 'labels' has 2 rows, but 'images' 1"),
        ({"labels": np.full((2, 14), 2)}, "record 'labels' contains 2, must be from 0 to 1"),
        ({"label_names": np.array(["Mass"])}, "record 'label_names' has 1 rows, but 'labels' 14 columns"),
        (
            {"patient_id": np.array([4.0, 5.0])},
            "record 'patient_id' is float64 (2,), must be whole numbers in 1 dimension",
        ),
    ],
)
def test_wrong_npz_files_are_one_line(tmp_path, changes, expected):
    np.savez(tmp_path / "in.npz", **stored(**changes))
    assert refusal(tmp_path / "in.npz", tmp_path) == f"{tmp_path}/in.npz: {expected}"
