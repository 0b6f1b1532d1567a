"""FEMNIST out of LEAF's files, Hugging Face's, or an .npz file."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncmanifold.errors import InputError
from asyncmanifold.sources.archive import Images, image_blocks, image_shape, record_names, write_npz
from asyncmanifold.sources.hugging_face import Batch
from asyncmanifold.sources.leaf import LeafFile, read_leaf
from asyncmanifold.sources.optional import needed
from asyncmanifold.sources.progress import Show
from asyncmanifold.tasks.femnist import CLASSES
from asyncmanifold.tasks.npz import Records, check_integers, read_npz

Labels = npt.NDArray[np.int16]

SIZE = 28
PIXELS = SIZE * SIZE
COLUMNS = ("image", "writer_id", "character")
TEST_EVERY = 10
"""Where there is no split, every so many-th image of a writer is a test image."""


class Block(NamedTuple):
    """Some images of one writer."""

    writer: str
    images: Images
    labels: Labels
    is_test: bool | None
    """None where the source has no split."""


def leaf_blocks(files: Sequence[LeafFile], show: Show) -> Iterator[Block]:
    """Yield the users of LEAF's files; no more than one file is in memory at a time."""
    for number, file in enumerate(files, start=1):
        for user in read_leaf(file.path):
            if user.x:
                labels = [_label(label, n, user.where) for n, label in enumerate(user.y)]
                images = _from_pixels(user.x, user.where)
                yield Block(user.name, images, np.array(labels, np.int16), file.is_test)
        show(number, len(files))


def _label(label: object, number: int, where: str) -> int:
    if not isinstance(label, int) or not 0 <= label < CLASSES:
        raise InputError(f"{where}, image {number}: label {label!r}, must be from 0 to {CLASSES - 1}")
    return label


def _from_pixels(x: list[Any], where: str) -> Images:
    """Return lists of numbers from 0 to 1 as bytes."""
    for number, image in enumerate(x):
        if not isinstance(image, list) or len(image) != PIXELS:
            found = f"{len(image)} pixels" if isinstance(image, list) else "not a list of pixels"
            raise InputError(f"{where}, image {number}: {found}, must be {PIXELS}")
    try:
        pixels = np.array(x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: pixels must be numbers") from error
    if pixels.ndim != 2:
        raise InputError(f"{where}: pixels must be numbers")
    if (wrong := ~((pixels >= 0.0) & (pixels <= 1.0))).any():
        number, pixel = np.argwhere(wrong)[0]
        raise InputError(
            f"{where}, image {number}: pixel {pixel} is {pixels[number, pixel]}, must be from 0 to 1"
        )
    return np.rint(pixels * 255.0).astype(np.uint8).reshape(-1, SIZE, SIZE)


def row_blocks(batches: Iterable[Batch], show: Show) -> Iterator[Block]:
    """Yield the rows of Hugging Face's form, writer by writer."""
    done = 0
    for batch in batches:
        numbered = enumerate(batch.rows, start=batch.first)
        for writer, group in groupby(numbered, key=lambda numbered_row: numbered_row[1]["writer_id"]):
            rows = list(group)
            if not isinstance(writer, str):
                raise InputError(f"{batch.where}, row {rows[0][0]}: writer_id {writer!r} must be a text")
            images = [_from_picture(row["image"], f"{batch.where}, row {number}") for number, row in rows]
            labels = [_label(row["character"], number, batch.where) for number, row in rows]
            yield Block(writer, np.stack(images), np.array(labels, np.int16), None)
        done += len(batch.rows)
        show(done, batch.total)


def _from_picture(value: object, where: str) -> Images:
    pillow = needed("PIL.Image", "reading images")
    content = value.get("bytes") if isinstance(value, dict) else None
    if not isinstance(content, bytes):
        raise InputError(f"{where}: 'image' holds no picture")
    try:
        with pillow.open(io.BytesIO(content)) as picture:
            pixels: Images = np.asarray(picture.convert("L"))
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{where}: 'image' is not a readable picture") from error
    if pixels.shape != (SIZE, SIZE):
        height, width = pixels.shape
        raise InputError(f"{where}: 'image' is {width}×{height}, must be {SIZE}×{SIZE}")
    return pixels


def write(blocks: Iterable[Block], out: Path, source: str) -> str:
    """Write the blocks to a file; return what was written, in words."""
    images: list[Images] = []
    labels: list[Labels] = []
    user: list[npt.NDArray[np.int32]] = []
    is_test: list[npt.NDArray[np.uint8]] = []
    writers: dict[str, int] = {}
    seen: Counter[str] = Counter()
    for block in blocks:
        images.append(block.images)
        labels.append(block.labels)
        number = writers.setdefault(block.writer, len(writers))
        user.append(np.full(len(block.labels), number, np.int32))
        is_test.append(_is_test(block, seen[block.writer]))
        seen[block.writer] += len(block.labels)
    if not images:
        raise InputError(f"{source}: no images")
    records: Records = {
        "labels": np.concatenate(labels),
        "user": np.concatenate(user),
        "user_names": np.array(list(writers)),
        "is_test": np.concatenate(is_test),
    }
    _check_split(source, records)
    write_npz(out, (len(records["labels"]), SIZE, SIZE), images, records)
    return _in_words(records)


def _is_test(block: Block, seen: int) -> npt.NDArray[np.uint8]:
    count = len(block.labels)
    if block.is_test is not None:
        return np.full(count, block.is_test, np.uint8)
    tenth: npt.NDArray[np.bool_] = np.arange(seen, seen + count) % TEST_EVERY == TEST_EVERY - 1
    return tenth.astype(np.uint8)


def rewrite(source: Path, out: Path, show: Show) -> str:
    """Check an .npz file and write it so that it can be mapped into memory."""
    shape = image_shape(source, SIZE)
    path = str(source)
    records = read_npz(path, ("labels", "user", "is_test"))
    for name in record_names(source):
        if name not in ("images", *records):
            records |= read_npz(path, (name,))
    check_integers(path, "labels", records["labels"], highest=CLASSES - 1)
    highest = len(records["user_names"]) - 1 if "user_names" in records else None
    check_integers(path, "user", records["user"], highest=highest)
    check_integers(path, "is_test", records["is_test"], highest=1)
    if len(records["labels"]) != shape[0]:
        raise InputError(
            f"{path}: record 'labels' has {len(records['labels'])} rows, but 'images' {shape[0]}"
        )
    _check_split(path, records)
    write_npz(out, shape, image_blocks(source, shape), records)
    show(shape[0], shape[0])
    return _in_words(records)


def _check_split(source: str, records: Records) -> None:
    if not records["is_test"].any():
        raise InputError(
            f"{source}: no test images; without a split, every {TEST_EVERY}th of a writer is one"
        )
    if records["is_test"].all():
        raise InputError(f"{source}: no training images")


def _in_words(records: Records) -> str:
    classes, writers = len(np.unique(records["labels"])), len(np.unique(records["user"]))
    return f"femnist: {len(records['labels']):,} images, {classes} classes, {writers:,} writers"
