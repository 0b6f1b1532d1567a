"""Write the .npz files that tasks read: uncompressed, so that the images can be mapped into memory."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from asyncmanifold.errors import InputError
from asyncmanifold.files import replacing
from asyncmanifold.sources.input_files import Show
from asyncmanifold.tasks.npz import Arrays, check_images, open_record, read_header, read_npz, record_names

Images = npt.NDArray[np.uint8]
Shape = tuple[int, ...]
BLOCK = 1 << 20
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time stamp of every record, so that equal content gives equal bytes."""


def write_npz(
    out: Path, shape: Shape, images: Iterable[Images], records: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Write images block by block, then the other records; the file is written completely or not at all."""
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
        raise RuntimeError(f"record {name!r} has {written} bytes, expected {expected}")


def rewrite_npz(
    source: Path,
    out: Path,
    size: int,
    names: Sequence[str],
    check: Callable[[str, Arrays], None],
    show: Show,
) -> Arrays:
    """Write a file's images and records so that they can be mapped into memory; return the records.

    The records ``names`` must exist, with one row per image; ``check`` refuses wrong ones.
    """
    path = str(source)
    shape, records = _image_shape(path, size), read_npz(path, names)
    for name in record_names(path):
        if name not in ("images", *records):
            records |= read_npz(path, (name,))
    check(path, records)
    first = names[0]
    if len(records[first]) != shape[0]:
        raise InputError(f"{path}: record {first!r} has {len(records[first])} rows, but 'images' {shape[0]}")
    write_npz(out, shape, _image_blocks(path, shape), records)
    show(shape[0], shape[0])
    return records


def _image_shape(path: str, size: int) -> Shape:
    """Return the shape of a file's images without reading them; refuse a wrong shape."""
    with open_record(path, "images") as (file, _):
        shape, in_columns, dtype = read_header(file)
    check_images(path, dtype, shape, size)
    if in_columns:
        raise InputError(f"{path}: record 'images' is in Fortran order, must be in C order")
    return shape


def _image_blocks(path: str, shape: Shape) -> Iterator[Images]:
    """Yield the bytes of a file's images, a few at a time."""
    left = int(np.prod(shape, dtype=np.int64))
    with open_record(path, "images") as (file, _):
        read_header(file)
        while left and (block := file.read(min(BLOCK, left))):
            left -= len(block)
            yield np.frombuffer(block, np.uint8)
    if left:
        raise InputError(f"{path}: record 'images' is cut off, {left} bytes are missing")
