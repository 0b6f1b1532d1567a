"""Arrays out of .npz files that others made: checked, and never a pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

Records = dict[str, npt.NDArray[Any]]


def read_npz(path: str, names: Sequence[str]) -> Records:
    """Return the named arrays of a file; any fault is a ``ValueError`` of one line.

    The arrays must have a row for each example, so all have the same length. Others are not read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = {name: _read(archive, name, path) for name in names}
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: not an .npz file, or cut off") from error
    first = names[0]
    for name, record in records.items():
        if record.ndim == 0 or len(record) != len(records[first]):
            found = "no rows" if record.ndim == 0 else f"{len(record)} rows"
            raise ValueError(f"{path}: record {name!r} has {found}, but {first!r} has {len(records[first])}")
    return records


def _read(archive: zipfile.ZipFile, name: str, path: str) -> npt.NDArray[Any]:
    if f"{name}.npy" not in archive.namelist():
        present = ", ".join(member.removesuffix(".npy") for member in archive.namelist())
        raise ValueError(f"{path}: no record {name!r} (there are: {present or 'none'})")
    try:
        with archive.open(f"{name}.npy") as file:
            record: npt.NDArray[Any] = npy.read_array(file, allow_pickle=False)
            return record
    except (
        *(ValueError, EOFError, NotImplementedError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error),
    ) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: record {name!r} cannot be read: {reason}") from error


def check_images(path: str, images: npt.NDArray[Any], size: int) -> None:
    """Refuse images that are not (N, size, size) bytes."""
    if images.dtype != np.uint8 or images.shape[1:] != (size, size):
        raise ValueError(
            f"{path}: record 'images' is {images.dtype} {images.shape}, must be uint8 (N, {size}, {size})"
        )
    if len(images) == 0:
        raise ValueError(f"{path}: record 'images' is empty")


def check_integers(
    path: str, name: str, record: npt.NDArray[Any], dimensions: int = 1, highest: int | None = None
) -> None:
    """Refuse an array that is not whole numbers, or not between 0 and ``highest``."""
    if record.dtype.kind not in "iub" or record.ndim != dimensions:
        raise ValueError(
            f"{path}: record {name!r} is {record.dtype} {record.shape}, must be whole numbers "
            f"in {dimensions} dimension{'s' if dimensions > 1 else ''}"
        )
    if highest is not None and record.size and (record.min() < 0 or record.max() > highest):
        wrong = record[(record < 0) | (record > highest)].flat[0]
        raise ValueError(f"{path}: record {name!r} contains {wrong}, must be from 0 to {highest}")
