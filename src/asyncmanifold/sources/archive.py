"""The .npz files that tasks read: stored as they are, so that the images can be mapped into memory."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from asyncmanifold.errors import InputError
from asyncmanifold.files import replacing
from asyncmanifold.sources.input_files import Show
from asyncmanifold.tasks.npz import Records, read_header, read_npz

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


def rewrite_npz(
    source: Path,
    out: Path,
    size: int,
    names: Sequence[str],
    check: Callable[[str, Records], None],
    show: Show,
) -> Records:
    """Write a file's images and records so that they can be mapped into memory; return the records.

    The records called ``names`` must be there, with a row for each image; ``check`` refuses wrong ones.
    """
    path, shape = str(source), _image_shape(source, size)
    records = read_npz(path, names)
    for name in _record_names(source):
        if name not in ("images", *records):
            records |= read_npz(path, (name,))
    check(path, records)
    first = names[0]
    if len(records[first]) != shape[0]:
        raise InputError(f"{path}: record {first!r} has {len(records[first])} rows, but 'images' {shape[0]}")
    write_npz(out, shape, _image_blocks(source, shape), records)
    show(shape[0], shape[0])
    return records


def _record_names(path: Path) -> list[str]:
    """Return the names of a file's records."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [member.removesuffix(".npy") for member in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise InputError(f"{path}: not an .npz file, or cut off") from error


def _image_shape(path: Path, size: int) -> Shape:
    """Return the shape of a file's images without reading them; wrong ones are refused."""
    if "images" not in (names := _record_names(path)):
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
        raise InputError(f"{path}: record 'images' is in Fortran order, must be in C order")
    return shape


def _image_blocks(path: Path, shape: Shape) -> Iterator[Images]:
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
