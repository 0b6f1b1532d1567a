"""Read ChestX-ray14 from the NIH's folder of PNG files and its table, or from an .npz file."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from asyncmanifold.errors import InputError
from asyncmanifold.sources.archive import Images, rewrite_npz, write_npz
from asyncmanifold.sources.input_files import Show, check_columns
from asyncmanifold.tasks.cxr8 import STORED_SIZE
from asyncmanifold.tasks.npz import Arrays, check_integers
from asyncmanifold.tasks.optional import import_optional

FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"),
    *("Pneumothorax", "Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
"""The label columns; ChestX-ray8 has the first 8."""
NONE = "No Finding"
TABLES = "Data_Entry_2017*.csv"
COLUMNS = ("Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "View Position")
SEX = ("Patient Gender", "Patient Sex")
"""The same column, as named in the first table and in the one of 2020."""
MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
AT_ONCE = 256
WORKERS = 2


class Xray(NamedTuple):
    """One row of the table."""

    name: str
    findings: tuple[int, ...]
    follow_up: int
    patient: int
    age: int
    sex: str
    view: str


def find_table(folder: Path) -> Path | None:
    """Return the table below a folder, the corrected one of 2020 if there are two."""
    tables = sorted(folder.rglob(TABLES), key=lambda path: path.name)
    return tables[-1] if tables else None


def prepare_folder(folder: Path, table: Path, out: Path, show: Show) -> str:
    """Write the X-rays of a folder; return a description that counts rows of the table without a file."""
    import_optional("PIL.Image", "cxr8 from PNG files")
    rows = read_table(table)
    files = find_images(folder)
    if unknown := sorted(files.keys() - {row.name for row in rows}):
        raise InputError(f"{files[unknown[0]]}: not in {table} ({len(unknown)} such files)")
    present = [row for row in rows if row.name in files]
    shape = (len(present), STORED_SIZE, STORED_SIZE)
    images = _shrink_images([files[row.name] for row in present], show)
    records = _records(present)
    write_npz(out, shape, images, records)
    words = _summary(records)
    if missing := len(rows) - len(present):
        words += f" ({missing:,} of the {len(rows):,} in {table.name} have no PNG file here)"
    return words


def find_images(folder: Path) -> dict[str, Path]:
    """Return the PNG files below a folder by name."""
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.png")):
        if path.name in files:
            raise InputError(f"{path}: there is also {files[path.name]}")
        files[path.name] = path
    if not files:
        raise InputError(f"{folder}: no PNG files")
    return files


def read_table(path: Path) -> list[Xray]:
    """Return the rows of NIH's table; any error is an ``InputError`` of one line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            present = reader.fieldnames or []
            sex = next((name for name in SEX if name in present), SEX[0])
            check_columns(str(path), present, (*COLUMNS, sex))
            rows = [_parse_row(row, sex, f"{path}, line {reader.line_num}") for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a .csv file: {error}") from error
    seen: set[str] = set()
    for row in rows:
        if row.name in seen:
            raise InputError(f"{path}: {row.name} occurs twice")
        seen.add(row.name)
    return rows


def _parse_row(row: dict[str, str | None], sex: str, where: str) -> Xray:
    if any(row[column] is None for column in (*COLUMNS, sex)):
        raise InputError(f"{where}: too few columns")
    cells = {column: (row[column] or "").strip() for column in (*COLUMNS, sex)}
    return Xray(
        name=cells["Image Index"],
        findings=_parse_findings(cells["Finding Labels"], where),
        follow_up=_parse_number(cells["Follow-up #"], "Follow-up #", where),
        patient=_parse_number(cells["Patient ID"], "Patient ID", where, highest=np.iinfo(np.int32).max),
        # The first table has ages such as 058Y.
        age=_parse_number(cells["Patient Age"].removesuffix("Y"), "Patient Age", where),
        sex=cells[sex],
        view=cells["View Position"],
    )


def _parse_findings(cell: str, where: str) -> tuple[int, ...]:
    found = [] if cell == NONE else cell.split("|")
    for finding in found:
        if finding not in FINDINGS:
            allowed = ", ".join((*FINDINGS, NONE))
            raise InputError(f"{where}: unknown finding {finding!r}, must be one of {allowed}")
    return tuple(int(finding in found) for finding in FINDINGS)


def _parse_number(cell: str, column: str, where: str, highest: int = np.iinfo(np.int16).max) -> int:
    if not (cell.isascii() and cell.isdigit() and int(cell) <= highest):
        raise InputError(f"{where}: {column} is {cell!r}, must be a whole number from 0 to {highest}")
    return int(cell)


def _records(rows: Sequence[Xray]) -> Arrays:
    return {
        "labels": np.array([row.findings for row in rows], np.uint8),
        "label_names": np.array(FINDINGS),
        "patient_id": np.array([row.patient for row in rows], np.int32),
        "follow_up": np.array([row.follow_up for row in rows], np.int16),
        "age": np.array([row.age for row in rows], np.int16),
        "sex": np.array([row.sex for row in rows]),
        "view": np.array([row.view for row in rows]),
        "names": np.array([row.name for row in rows]),
    }


def _shrink_images(paths: Sequence[Path], show: Show) -> Iterator[Images]:
    """Yield the images in order, decoded by two threads, with few in memory at a time."""
    with ThreadPoolExecutor(WORKERS) as pool:
        for first in range(0, len(paths), AT_ONCE):
            some = paths[first : first + AT_ONCE]
            yield np.stack(list(pool.map(shrink_image, some)))
            show(first + len(some), len(paths))


def shrink_image(path: Path) -> Images:
    """Return a square PNG file as grey bytes, each the mean of a square of pixels."""
    pillow = import_optional("PIL.Image", "cxr8 from PNG files")
    try:
        with pillow.open(path) as picture:
            picture.load()
            mode, (width, height) = picture.mode, picture.size
            if mode in MODES and width == height >= STORED_SIZE:
                grey = picture.convert("L")
                size = (STORED_SIZE, STORED_SIZE)
                return np.array(grey.resize(size, pillow.Resampling.BOX), np.uint8)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable PNG file") from error
    if mode not in MODES:
        raise InputError(f"{path}: pixels have mode {mode}, must have 8 bits")
    raise InputError(f"{path}: {width}×{height}, must be square and at least {STORED_SIZE}×{STORED_SIZE}")


def rewrite_cxr8(source: Path, out: Path, show: Show) -> str:
    """Check an .npz file and write it so that it can be mapped into memory."""
    return _summary(rewrite_npz(source, out, STORED_SIZE, ("labels", "patient_id"), _check_records, show))


def _check_records(path: str, records: Arrays) -> None:
    check_integers(path, "labels", records["labels"], dimensions=2, highest=1)
    check_integers(path, "patient_id", records["patient_id"])
    columns = records["labels"].shape[1]
    if (names := records.get("label_names")) is not None and len(names) != columns:
        raise InputError(
            f"{path}: record 'label_names' has {len(names)} rows, but 'labels' {columns} columns"
        )


def _summary(records: Arrays) -> str:
    patients = len(np.unique(records["patient_id"]))
    return f"cxr8: {len(records['labels']):,} X-rays of {patients:,} patients"
