"""Public forms of the data, turned into the files that the tasks read."""

from __future__ import annotations

from pathlib import Path

from asyncmanifold.errors import InputError
from asyncmanifold.sources import femnist, nih, shakespeare
from asyncmanifold.sources.hugging_face import fetch, is_hub_name, read_tables, table_files
from asyncmanifold.sources.leaf import leaf_files
from asyncmanifold.sources.progress import Show

__all__ = ["SOURCES", "prepare"]


SOURCES = {
    "femnist": "LEAF's folder or .json file, flwrlabs/femnist or its parquet files, or an .npz file",
    "shakespeare": "LEAF's folder or .json file, flwrlabs/shakespeare or its .csv or parquet files, a folder "
    "of .txt plays, or a .jsonl or .jsonl.gz file",
    "cxr8": "NIH's folder of PNG files with Data_Entry_2017.csv, or an .npz file",
}
"""What each dataset can be prepared from."""

SUFFIXES = {"femnist": (".npz",), "shakespeare": (".jsonl", ".jsonl.gz"), "cxr8": (".npz",)}


def prepare(dataset: str, source: str, out: Path, show: Show | None = None) -> str:
    """Write ``out`` from a path, or a set of the Hugging Face Hub; return one line about it.

    ``show`` is told how many parts are done, and of how many if that is known. Any fault is a
    ``ValueError`` of one line, and leaves ``out`` as it was.
    """
    if dataset not in SOURCES:
        raise InputError(f"no dataset {dataset!r}: must be one of {', '.join(SOURCES)}")
    if not out.name.endswith(SUFFIXES[dataset]):
        raise InputError(f"{out}: must end in {' or '.join(SUFFIXES[dataset])}")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder")
    path = Path(source)
    if not path.exists() and not (is_hub_name(source) and dataset != "cxr8"):
        raise InputError(f"{source}: no such path; {_understood(dataset)}")
    preparation = {"femnist": _femnist, "shakespeare": _shakespeare, "cxr8": _cxr8}[dataset]
    try:
        return preparation(path, source, out, show or (lambda done, total: None))
    except OSError as error:
        raise InputError(f"{error.filename or out}: {error.strerror or error}") from error


def _femnist(path: Path, source: str, out: Path, show: Show) -> str:
    if not path.exists():
        rows = fetch(source, femnist.COLUMNS)
        return femnist.write(femnist.row_blocks(rows, show), out, source)
    if path.suffix == ".npz":
        return femnist.rewrite(path, out, show)
    if files := leaf_files(path):
        return femnist.write(femnist.leaf_blocks(files, show), out, source)
    if tables := table_files(path, (".parquet",)):
        rows = read_tables(tables, femnist.COLUMNS)
        return femnist.write(femnist.row_blocks(rows, show), out, source)
    raise InputError(f"{source}: {_understood('femnist')}")


def _shakespeare(path: Path, source: str, out: Path, show: Show) -> str:
    if not path.exists():
        rows = fetch(source, shakespeare.COLUMNS)
        return shakespeare.write(shakespeare.row_speeches(rows, show), out, source)
    if path.name.endswith(SUFFIXES["shakespeare"]):
        return shakespeare.write(shakespeare.stored_speeches(path, show), out, source)
    if files := leaf_files(path):
        return shakespeare.write(shakespeare.leaf_speeches(files, show), out, source)
    if tables := table_files(path, (".parquet", ".csv")):
        rows = read_tables(tables, shakespeare.COLUMNS)
        return shakespeare.write(shakespeare.row_speeches(rows, show), out, source)
    if plays := table_files(path, (".txt",)):
        return shakespeare.write(shakespeare.play_speeches(plays, show), out, source)
    raise InputError(f"{source}: {_understood('shakespeare')}")


def _cxr8(path: Path, source: str, out: Path, show: Show) -> str:
    if path.suffix == ".npz":
        return nih.rewrite(path, out, show)
    table = nih.find_table(path) if path.is_dir() else None
    if table is None:
        raise InputError(f"{source}: {_understood('cxr8')}")
    return nih.prepare_folder(path, table, out, show)


def _understood(dataset: str) -> str:
    return f"understood is {SOURCES[dataset]}"
