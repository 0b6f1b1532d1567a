"""Datasets of the Hugging Face Hub: downloaded, or read from downloaded parquet and .csv files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from asyncmanifold.errors import InputError
from asyncmanifold.sources.input_files import Show, check_columns, find_files
from asyncmanifold.tasks.optional import import_optional

ROWS = 1000
TIMEOUT = 10.0
"""Seconds to wait for the Hub's first answer."""


PlacedRow = tuple[str, dict[str, Any]]
"""A row's location, for error messages, and the row."""


class Batch(NamedTuple):
    """Consecutive rows, and the total number of rows, if it is known."""

    rows: list[dict[str, Any]]
    first: int
    """The number of the first row within its file."""
    total: int | None
    where: str


def is_hub_name(source: str) -> bool:
    """Return whether a string looks like ``owner/name``."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None


def find_rows(source: str, suffixes: Sequence[str], columns: Sequence[str]) -> Iterable[Batch] | None:
    """Return the rows of the files at or below a path, or of a dataset of the Hub if there is no such path.

    None if the path has no files that end in one of ``suffixes``, which are ``.parquet`` and ``.csv``.
    """
    path = Path(source)
    if not path.exists():
        return _fetch_rows(source, columns)
    files = find_files(path, suffixes)
    batches = ((_read_csv if file.suffix == ".csv" else _read_parquet)(file, columns) for file in files)
    return chain.from_iterable(batches) if files else None


def group_rows(column: str, batches: Iterable[Batch], show: Show) -> Iterator[tuple[str, list[PlacedRow]]]:
    """Yield the values of a column, each with its consecutive rows."""
    for name, group in groupby(_rows_with_progress(batches, show), key=lambda placed: placed[1][column]):
        rows = list(group)
        if not isinstance(name, str):
            raise InputError(f"{rows[0][0]}: {column} {name!r} must be a string")
        yield name, rows


def _rows_with_progress(batches: Iterable[Batch], show: Show) -> Iterator[PlacedRow]:
    """Yield all rows, and show after each batch how many are done."""
    done = 0
    for batch in batches:
        for number, row in enumerate(batch.rows, start=batch.first):
            yield f"{batch.where}, row {number}", row
        done += len(batch.rows)
        show(done, batch.total)


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[Batch]:
    parquet = import_optional("pyarrow.parquet", f"{path}: parquet")
    first = 0
    try:
        with parquet.ParquetFile(path) as file:
            check_columns(str(path), file.schema_arrow.names, columns)
            for batch in file.iter_batches(ROWS, columns=list(columns)):
                yield Batch(batch.to_pylist(), first, None, str(path))
                first += batch.num_rows
    except import_optional("pyarrow", f"{path}: parquet").ArrowException as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a parquet file, or cut off: {reason}") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or ' '.join(str(error).split())}") from error


def _read_csv(path: Path, columns: Sequence[str]) -> Iterator[Batch]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            check_columns(str(path), reader.fieldnames or [], columns)
            for number, rows in enumerate(iter(lambda: list(islice(reader, ROWS)), [])):
                yield Batch(rows, number * ROWS, None, str(path))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a .csv file, or cut off: {error}") from error


def _fetch_rows(name: str, columns: Sequence[str]) -> Iterator[Batch]:
    """Yield the rows of a dataset of the Hub, from the cache if it has been fetched before."""
    datasets = import_optional("datasets", f"{name} from the Hugging Face Hub")
    hub = import_optional("huggingface_hub", f"{name} from the Hugging Face Hub")
    try:
        # The loader retries for half a minute before it gives up, so ask the Hub once before.
        if not hub.constants.HF_HUB_OFFLINE:
            hub.HfApi().dataset_info(name, timeout=TIMEOUT)
        table = datasets.load_dataset(name, split="train")
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "").strip() or type(error).__name__
        raise InputError(
            f"{name}: no such path, and the Hugging Face Hub does not provide it ({reason}); without a "
            f"network, give the path of a copy"
        ) from error
    check_columns(name, table.column_names, columns)
    batches = table.select_columns(list(columns)).with_format("arrow").iter(ROWS)
    for number, batch in enumerate(batches):
        yield Batch(batch.to_pylist(), number * ROWS, len(table), name)
