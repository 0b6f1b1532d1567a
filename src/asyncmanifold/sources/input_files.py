"""Find the files of a source, check their columns, and show progress while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from asyncmanifold.errors import InputError

File = TypeVar("File")

Show = Callable[[int, int | None], None]
"""Takes the number of parts done (files, rows or images), and the total if it is known."""


def find_files(source: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the file, or the files below a folder, sorted by name, that end in one of ``suffixes``."""
    files = [source] if source.is_file() else sorted(source.rglob("*"))
    return [file for file in files if file.suffix in suffixes]


def files_with_progress(files: Sequence[File], show: Show) -> Iterator[File]:
    """Yield the files, and show progress after each."""
    for number, file in enumerate(files, start=1):
        yield file
        show(number, len(files))


def check_columns(where: str, present: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a table that lacks some of the columns."""
    if missing := [column for column in columns if column not in present]:
        names = ", ".join(repr(column) for column in missing)
        raise InputError(f"{where}: no column {names} (there are: {', '.join(present) or 'none'})")
