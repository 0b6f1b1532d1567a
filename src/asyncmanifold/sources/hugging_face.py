"""Sets of the Hugging Face Hub: fetched, or from parquet and .csv files that somebody fetched."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asyncmanifold.errors import InputError
from asyncmanifold.sources.optional import needed

ROWS = 1000
PATIENCE = 10.0
"""Seconds to wait for the Hub's first answer."""


class Batch(NamedTuple):
    """Some rows that follow each other, and how many there are in all, if that is known."""

    rows: list[dict[str, Any]]
    first: int
    """The number of the first row within its file."""
    total: int | None
    where: str


def is_hub_name(source: str) -> bool:
    """Say whether a text looks like ``owner/name``."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None


def table_files(source: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the file, or the files below a folder, in order of name, that end in one of ``suffixes``."""
    files = [source] if source.is_file() else sorted(source.rglob("*"))
    return [file for file in files if file.suffix in suffixes]


def read_tables(files: Sequence[Path], columns: Sequence[str]) -> Iterator[Batch]:
    """Yield the rows of parquet or .csv files."""
    for file in files:
        yield from (_read_csv if file.suffix == ".csv" else _read_parquet)(file, columns)


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[Batch]:
    parquet = needed("pyarrow.parquet", f"{path}: parquet")
    first = 0
    try:
        with parquet.ParquetFile(path) as file:
            _check_columns(str(path), file.schema_arrow.names, columns)
            for batch in file.iter_batches(ROWS, columns=list(columns)):
                yield Batch(batch.to_pylist(), first, None, str(path))
                first += batch.num_rows
    except needed("pyarrow", f"{path}: parquet").ArrowException as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a parquet file, or cut off: {reason}") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or ' '.join(str(error).split())}") from error


def _read_csv(path: Path, columns: Sequence[str]) -> Iterator[Batch]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            _check_columns(str(path), reader.fieldnames or [], columns)
            first, rows = 0, []
            for number, row in enumerate(reader):
                rows.append({column: row[column] for column in columns})
                if len(rows) == ROWS:
                    yield Batch(rows, first, None, str(path))
                    first, rows = number + 1, []
            if rows:
                yield Batch(rows, first, None, str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a .csv file, or cut off: {error}") from error


def fetch(name: str, columns: Sequence[str]) -> Iterator[Batch]:
    """Yield the rows of a set of the Hub, from the cache if it has been fetched before."""
    datasets = needed("datasets", f"{name} from the Hugging Face Hub")
    hub = needed("huggingface_hub", f"{name} from the Hugging Face Hub")
    try:
        # The loader asks six times, half a minute in all, before it gives up: ask once before.
        if not hub.constants.HF_HUB_OFFLINE:
            hub.HfApi().dataset_info(name, timeout=PATIENCE)
        table = datasets.load_dataset(name, split="train")
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "").strip() or type(error).__name__
        raise InputError(
            f"{name}: no such path, and not to be had from the Hugging Face Hub ({reason}); without a "
            f"network, give the path of a copy"
        ) from error
    _check_columns(name, table.column_names, columns)
    batches = table.select_columns(list(columns)).with_format("arrow").iter(ROWS)
    for number, batch in enumerate(batches):
        yield Batch(batch.to_pylist(), number * ROWS, len(table), name)


def _check_columns(where: str, present: Sequence[str], columns: Sequence[str]) -> None:
    if missing := [column for column in columns if column not in present]:
        names = ", ".join(repr(column) for column in missing)
        raise InputError(f"{where}: no column {names} (there are: {', '.join(present) or 'none'})")
