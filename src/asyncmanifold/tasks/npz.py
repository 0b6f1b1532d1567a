"""Read arrays from untrusted .npz files: checked, and never unpickled."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from asyncmanifold.errors import InputError

Arrays = dict[str, npt.NDArray[Any]]
MAPPED_BYTES = 1 << 26
"""Arrays of at least this size are mapped into memory; smaller ones are read and their checksum verified."""
LENGTHS_OFFSET = 26
"""The offset in a zip file's local header of the lengths of its variable fields."""
UNREADABLE = (ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a faulty record may raise."""


def read_npz(path: str, names: Sequence[str]) -> Arrays:
    """Return the named arrays of a file; any error is an ``InputError`` of one line.

    The arrays must have one row per example, so all have the same length. Others are not read. Large,
    uncompressed arrays are mapped into memory: a row is read when it is used.
    """
    records = {name: _read(path, name) for name in names}
    first = names[0]
    for name, record in records.items():
        if record.ndim == 0 or len(record) != len(records[first]):
            found = "no rows" if record.ndim == 0 else f"{len(record)} rows"
            raise InputError(f"{path}: record {name!r} has {found}, but {first!r} has {len(records[first])}")
    return records


@contextmanager
def _open_archive(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        raise InputError(f"{path}: not an .npz file, or cut off") from error


@contextmanager
def open_record(path: str, name: str) -> Iterator[tuple[IO[bytes], zipfile.ZipInfo]]:
    """Open one record of a file; any error, also while it is read, is an ``InputError`` of one line."""
    with _open_archive(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            present = ", ".join(record_names(path)) or "none"
            raise InputError(f"{path}: no record {name!r} (there are: {present})")
        try:
            with archive.open(f"{name}.npy") as file:
                yield file, archive.getinfo(f"{name}.npy")
        except UNREADABLE as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: record {name!r} cannot be read: {reason}") from error


def record_names(path: str) -> list[str]:
    """Return the names of a file's records."""
    with _open_archive(path) as archive:
        return [member.removesuffix(".npy") for member in archive.namelist()]


def _read(path: str, name: str) -> npt.NDArray[Any]:
    with open_record(path, name) as (file, member):
        if member.compress_type == zipfile.ZIP_STORED and member.file_size >= MAPPED_BYTES:
            return _map_array(file, member, path)
        return npy.read_array(file, allow_pickle=False)


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return an array's shape, whether it is in Fortran order, and its dtype; the data follows."""
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    return shape, is_fortran, dtype


def _map_array(file: IO[bytes], member: zipfile.ZipInfo, path: str) -> npt.NDArray[Any]:
    """Return an array mapped from a file; writing to it does not change the file."""
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise InputError("Object arrays cannot be loaded")
    if file.tell() + dtype.itemsize * prod(shape) != member.file_size:
        raise InputError(f"{member.file_size} bytes do not hold {dtype} {shape}")
    with Path(path).open("rb") as archive:
        archive.seek(member.header_offset + LENGTHS_OFFSET)
        name_length, extra_length = struct.unpack("<HH", archive.read(4))
    start = member.header_offset + LENGTHS_OFFSET + 4 + name_length + extra_length
    order: Literal["F", "C"] = "F" if is_fortran else "C"
    return np.memmap(path, dtype, "c", start + file.tell(), shape, order)


def check_images(path: str, dtype: np.dtype[Any], shape: tuple[int, ...], size: int) -> None:
    """Refuse images that are not (N, size, size) bytes."""
    if dtype != np.uint8 or shape[1:] != (size, size):
        raise InputError(f"{path}: record 'images' is {dtype} {shape}, must be uint8 (N, {size}, {size})")
    if shape[0] == 0:
        raise InputError(f"{path}: record 'images' is empty")


def check_integers(
    path: str, name: str, record: npt.NDArray[Any], dimensions: int = 1, highest: int | None = None
) -> None:
    """Refuse an array that does not hold integers, or integers not between 0 and ``highest``."""
    if record.dtype.kind not in "iub" or record.ndim != dimensions:
        raise InputError(
            f"{path}: record {name!r} is {record.dtype} {record.shape}, must be whole numbers "
            f"in {dimensions} dimension{'s' if dimensions > 1 else ''}"
        )
    if highest is not None and record.size and (record.min() < 0 or record.max() > highest):
        wrong = record[(record < 0) | (record > highest)].flat[0]
        raise InputError(f"{path}: record {name!r} contains {wrong}, must be from 0 to {highest}")
