"""Convert public datasets into the files that tasks read."""

from __future__ import annotations

from pathlib import Path

from asyncmanifold.errors import InputError
from asyncmanifold.sources import fedscale, femnist_images, nih, shakespeare_speeches
from asyncmanifold.sources.hugging_face import find_rows, is_hub_name
from asyncmanifold.sources.input_files import Show, find_files
from asyncmanifold.sources.leaf import leaf_files

__all__ = ["SOURCES", "prepare"]


SOURCES = {
    "femnist": "LEAF's folder or .json file, flwrlabs/femnist or its parquet files, or an .npz file",
    "shakespeare": "LEAF's folder or .json file, flwrlabs/shakespeare or its .csv or parquet files, a folder "
    "of .txt plays, or a .jsonl or .jsonl.gz file",
    "cxr8": "NIH's folder of PNG files with Data_Entry_2017.csv, or an .npz file",
    "devices": "a folder with FedScale's client_device_capacity or client_behave_trace, or both",
}
"""What each dataset can be prepared from."""

SUFFIXES = {
    "femnist": (".npz",),
    "shakespeare": (".jsonl", ".jsonl.gz"),
    "cxr8": (".npz",),
    "devices": (".jsonl",),
}
HUB = ("femnist", "shakespeare")
"""Datasets that the Hugging Face Hub has."""


def prepare(dataset: str, source: str, out: Path, show: Show | None = None) -> str:
    """Write ``out`` from a path, or a dataset of the Hugging Face Hub; return one line about it.

    ``show`` is called with the number of parts done and, if known, their total. Any error is an
    ``InputError`` of one line, and leaves ``out`` unchanged.
    """
    if dataset not in SOURCES:
        raise InputError(f"no dataset {dataset!r}: must be one of {', '.join(SOURCES)}")
    if not out.name.endswith(SUFFIXES[dataset]):
        raise InputError(f"{out}: must end in {' or '.join(SUFFIXES[dataset])}")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder")
    path = Path(source)
    if not path.exists() and not (is_hub_name(source) and dataset in HUB):
        raise InputError(f"{source}: no such path; expected {SOURCES[dataset]}")
    preparation = PREPARATIONS[dataset]
    try:
        line = preparation(path, source, out, show or (lambda done, total: None))
    except OSError as error:
        where = error.filename or f"{source} to {out}"
        raise InputError(f"{where}: {error.strerror or error}") from error
    if line is None:
        raise InputError(f"{source}: expected {SOURCES[dataset]}")
    return line


def _femnist(path: Path, source: str, out: Path, show: Show) -> str | None:
    """Write FEMNIST; return None if the path is in none of its formats."""
    if path.exists() and path.suffix == ".npz":
        return femnist_images.rewrite_femnist(path, out, show)
    if files := leaf_files(path):
        blocks = femnist_images.leaf_blocks(files, show)
    elif rows := find_rows(source, (".parquet",), femnist_images.COLUMNS):
        blocks = femnist_images.row_blocks(rows, show)
    else:
        return None
    return femnist_images.write_images(blocks, out, source)


def _shakespeare(path: Path, source: str, out: Path, show: Show) -> str | None:
    """Write Shakespeare's speeches; return None if the path is in none of their formats."""
    if path.exists() and path.name.endswith(SUFFIXES["shakespeare"]):
        speeches = shakespeare_speeches.stored_speeches(path, show)
    elif files := leaf_files(path):
        speeches = shakespeare_speeches.leaf_speeches(files, show)
    elif rows := find_rows(source, (".parquet", ".csv"), shakespeare_speeches.COLUMNS):
        speeches = shakespeare_speeches.row_speeches(rows, show)
    elif plays := find_files(path, (".txt",)):
        speeches = shakespeare_speeches.play_speeches(plays, show)
    else:
        return None
    return shakespeare_speeches.write_speeches(speeches, out, source)


def _cxr8(path: Path, source: str, out: Path, show: Show) -> str | None:
    """Write ChestX-ray14; return None if the path is in none of its formats."""
    if path.suffix == ".npz":
        return nih.rewrite_cxr8(path, out, show)
    table = nih.find_table(path) if path.is_dir() else None
    return None if table is None else nih.prepare_folder(path, table, out, show)


def _devices(path: Path, source: str, out: Path, show: Show) -> str | None:
    """Write devices; return None if the folder has none of FedScale's files."""
    files = fedscale.find_traces(path)
    return fedscale.write_devices(files, out, show) if files else None


PREPARATIONS = {"femnist": _femnist, "shakespeare": _shakespeare, "cxr8": _cxr8, "devices": _devices}
