"""Read FEMNIST from LEAF's files, from Hugging Face's, or from an .npz file."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncmanifold.errors import InputError
from asyncmanifold.sources.archive import Images, rewrite_npz, write_npz
from asyncmanifold.sources.hugging_face import Batch, group_rows
from asyncmanifold.sources.input_files import Show, files_with_progress
from asyncmanifold.sources.leaf import LeafFile, read_leaf
from asyncmanifold.tasks.femnist import CLASSES
from asyncmanifold.tasks.npz import Arrays, check_integers
from asyncmanifold.tasks.optional import import_optional

Labels = npt.NDArray[np.int16]

SIZE = 28
PIXELS = SIZE * SIZE
COLUMNS = ("image", "writer_id", "character")
TEST_EVERY = 10
"""If the source has no split, every tenth image of a writer is a test image."""


class ImageBlock(NamedTuple):
    """Some images of one writer."""

    writer: str
    images: Images
    labels: Labels
    is_test: bool | None
    """None if the source has no split."""


def leaf_blocks(files: Sequence[LeafFile], show: Show) -> Iterator[ImageBlock]:
    """Yield the images of LEAF's files, user by user; only one file is in memory at a time."""
    for file in files_with_progress(files, show):
        for user in read_leaf(file.path):
            if user.x:
                labels = [_check_label(label, f"{user.where}, image {n}") for n, label in enumerate(user.y)]
                images = _images_from_pixels(user.x, user.where)
                yield ImageBlock(user.name, images, np.array(labels, np.int16), file.is_test)


def _check_label(label: object, where: str) -> int:
    if not isinstance(label, int) or not 0 <= label < CLASSES:
        raise InputError(f"{where}: label {label!r}, must be from 0 to {CLASSES - 1}")
    return label


def _images_from_pixels(x: list[Any], where: str) -> Images:
    """Return lists of numbers from 0 to 1 as images of bytes."""
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


def row_blocks(batches: Iterable[Batch], show: Show) -> Iterator[ImageBlock]:
    """Yield the images of Hugging Face's rows, writer by writer."""
    for writer, rows in group_rows("writer_id", batches, show):
        images = [_decode_image(row["image"], where) for where, row in rows]
        labels = [_check_label(row["character"], where) for where, row in rows]
        yield ImageBlock(writer, np.stack(images), np.array(labels, np.int16), None)


def _decode_image(value: object, where: str) -> Images:
    pillow = import_optional("PIL.Image", "reading images")
    content = value.get("bytes") if isinstance(value, dict) else None
    if not isinstance(content, bytes):
        raise InputError(f"{where}: 'image' holds no image")
    try:
        with pillow.open(io.BytesIO(content)) as picture:
            pixels: Images = np.asarray(picture.convert("L"))
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{where}: 'image' is not a readable image") from error
    if pixels.shape != (SIZE, SIZE):
        height, width = pixels.shape
        raise InputError(f"{where}: 'image' is {width}×{height}, must be {SIZE}×{SIZE}")
    return pixels


def write_images(blocks: Iterable[ImageBlock], out: Path, source: str) -> str:
    """Write the blocks to a file; return a one-line description."""
    held, is_test = [], []
    seen: Counter[str] = Counter()
    for block in blocks:
        held.append(block)
        is_test.append(_is_test(block, seen[block.writer]))
        seen[block.writer] += len(block.labels)
    if not held:
        raise InputError(f"{source}: no images")
    writers = {name: number for number, name in enumerate(seen)}
    user = [np.full(len(block.labels), writers[block.writer], np.int32) for block in held]
    records: Arrays = {
        "labels": np.concatenate([block.labels for block in held]),
        "user": np.concatenate(user),
        "user_names": np.array(list(writers)),
        "is_test": np.concatenate(is_test),
    }
    _check_split(source, records)
    write_npz(out, (len(records["labels"]), SIZE, SIZE), (block.images for block in held), records)
    return _summary(records)


def _is_test(block: ImageBlock, seen: int) -> npt.NDArray[np.uint8]:
    count = len(block.labels)
    if block.is_test is not None:
        return np.full(count, block.is_test, np.uint8)
    tenth: npt.NDArray[np.bool_] = np.arange(seen, seen + count) % TEST_EVERY == TEST_EVERY - 1
    return tenth.astype(np.uint8)


def rewrite_femnist(source: Path, out: Path, show: Show) -> str:
    """Check an .npz file and write it so that it can be mapped into memory."""
    return _summary(rewrite_npz(source, out, SIZE, ("labels", "user", "is_test"), _check_records, show))


def _check_records(path: str, records: Arrays) -> None:
    check_integers(path, "labels", records["labels"], highest=CLASSES - 1)
    highest = len(records["user_names"]) - 1 if "user_names" in records else None
    check_integers(path, "user", records["user"], highest=highest)
    check_integers(path, "is_test", records["is_test"], highest=1)
    _check_split(path, records)


def _check_split(source: str, records: Arrays) -> None:
    if not records["is_test"].any():
        raise InputError(
            f"{source}: no test images; without a split, every {TEST_EVERY}th of a writer is one"
        )
    if records["is_test"].all():
        raise InputError(f"{source}: no training images")


def _summary(records: Arrays) -> str:
    classes, writers = len(np.unique(records["labels"])), len(np.unique(records["user"]))
    return f"femnist: {len(records['labels']):,} images, {classes} classes, {writers:,} writers"
