"""The .npz files that tasks read: stored as they are, so that the images can be mapped into memory."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from asyncmanifold.errors import InputError
from asyncmanifold.files import replacing
from asyncmanifold.tasks.npz import read_header

Images = npt.NDArray[np.uint8]
Shape = tuple[int, ...]
BLOCK = 1 << 20
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time stamp of every record: equal content gives equal bytes."""


def write_npz(
    out: Path, shape: Shape, images: Iterable[Images], records: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Write images block by block, and then the other records; the file appears whole or not at all."""
    with replacing(out) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
        _store(archive, "images", np.dtype(np.uint8), shape, (block.tobytes() for block in images))
        for name, record in records.items():
            _store(archive, name, record.dtype, record.shape, [record.tobytes()])


def _store(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: Shape, blocks: Iterable[bytes]
) -> None:
    header = io.BytesIO()
    form = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(header, form)
    member = zipfile.ZipInfo(f"{name}.npy", EPOCH)
    member.file_size = len(header.getvalue()) + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    expected = member.file_size
    with archive.open(member, "w") as file:
        written = file.write(header.getvalue())
        for block in blocks:
            written += file.write(block)
    if written != expected:
        raise RuntimeError(f"record {name!r} has {written} bytes, announced were {expected}")


def record_names(path: Path) -> list[str]:
    """Return the names of a file's records; a file that is none is one line."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [member.removesuffix(".npy") for member in archive.namelist()]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        raise InputError(f"{path}: not an .npz file, or cut off") from error


def image_shape(path: Path, size: int) -> Shape:
    """Return the shape of a file's images without reading them; wrong ones are refused."""
    if "images" not in (names := record_names(path)):
        raise InputError(f"{path}: no record 'images' (there are: {', '.join(names) or 'none'})")
    with zipfile.ZipFile(path) as archive:
        try:
            with archive.open("images.npy") as file:
                shape, in_columns, dtype = read_header(file)
        except (ValueError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: record 'images' cannot be read: {reason}") from error
    if dtype != np.uint8 or shape[1:] != (size, size):
        raise InputError(f"{path}: record 'images' is {dtype} {shape}, must be uint8 (N, {size}, {size})")
    if shape[0] == 0:
        raise InputError(f"{path}: record 'images' is empty")
    if in_columns:
        raise InputError(f"{path}: record 'images' is in Fortran's order, must be in C's")
    return shape


def image_blocks(path: Path, shape: Shape) -> Iterator[Images]:
    """Yield the bytes of a file's images, a few at a time."""
    left = int(np.prod(shape, dtype=np.int64))
    try:
        with zipfile.ZipFile(path) as archive, archive.open("images.npy") as file:
            read_header(file)
            while left and (block := file.read(min(BLOCK, left))):
                left -= len(block)
                yield np.frombuffer(block, np.uint8)
    except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: record 'images' cannot be read: {reason}") from error
    if left:
        raise InputError(f"{path}: record 'images' is cut off, {left} bytes are missing")
