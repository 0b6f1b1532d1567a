"""Read Shakespeare's speeches from LEAF's files, Hugging Face's, texts of plays, or a .jsonl file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, cast

from asyncmanifold.errors import InputError
from asyncmanifold.files import replacing
from asyncmanifold.sources.hugging_face import Batch, group_rows
from asyncmanifold.sources.input_files import Show, files_with_progress
from asyncmanifold.sources.leaf import LeafFile, read_leaf
from asyncmanifold.sources.plays import Speech, read_play, speech
from asyncmanifold.sources.windows import check_window, join_windows, play_and_speaker
from asyncmanifold.tasks.shakespeare import read_corpus

COLUMNS = ("character_id", "x", "y")


def leaf_speeches(files: Sequence[LeafFile], show: Show) -> Iterator[Speech]:
    """Yield the running text of each user, joined from windows.

    Windows of test files whose text is in the user's training files are left out: older versions of LEAF
    split at random, so that test windows lie within the training text.
    """
    known: dict[str, str] = {}
    for file in files_with_progress(files, show):
        for user in read_leaf(file.path):
            play, speaker = play_and_speaker(user.name, user.groups, user.where)
            text = known.get(user.name, "")
            windows = (
                check_window(x, y, f"{user.where}, window {n}")
                for n, (x, y) in enumerate(zip(user.x, user.y, strict=True))
            )
            found = list(join_windows((x, y) for x, y in windows if not text or (x + y).strip() not in text))
            known[user.name] = "\n".join([text, *found])
            yield from _speeches(play, speaker, found)


def row_speeches(batches: Iterable[Batch], show: Show) -> Iterator[Speech]:
    """Yield the running texts of Hugging Face's rows, user by user."""
    for user, rows in group_rows("character_id", batches, show):
        play, speaker = play_and_speaker(user, (), f"{rows[0][0]}, character_id {user!r}")
        windows = (check_window(row["x"], row["y"], where) for where, row in rows)
        yield from _speeches(play, speaker, join_windows(windows))


def _speeches(play: str, speaker: str, pieces: Iterable[str]) -> Iterator[Speech]:
    """Yield the texts without empty lines and without the spaces that older LEAF puts before lines."""
    for piece in pieces:
        if lines := [line.strip() for line in piece.split("\n") if line.strip()]:
            yield speech(play, speaker, lines)


def play_speeches(files: Sequence[Path], show: Show) -> Iterator[Speech]:
    """Yield the speeches of text files, one play per file."""
    for file in files_with_progress(files, show):
        yield from read_play(file)


def stored_speeches(path: Path, show: Show) -> Iterator[Speech]:
    """Check a .jsonl or .jsonl.gz file as the task does, then yield its objects unchanged."""
    read_corpus(str(path))
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        yield from (json.loads(line) for line in file if line.strip())
    show(1, 1)


def write_speeches(speeches: Iterable[Speech], out: Path, source: str) -> str:
    """Write speeches to a file; return a one-line description."""
    count = 0
    speakers: set[tuple[str, str]] = set()
    with replacing(out) as draft, draft.open("wb") as raw, _open_output(raw, out.suffix == ".gz") as file:
        for entry in speeches:
            count += 1
            speakers.add((entry["play"], entry["speaker"]))
            file.write(json.dumps(entry).encode() + b"\n")
        if not count:
            raise InputError(f"{source}: no speeches")
    plays = {play for play, _ in speakers}
    return f"shakespeare: {count:,} speeches, {len(speakers):,} speakers, {len(plays):,} plays"


def _open_output(file: IO[bytes], is_compressed: bool) -> AbstractContextManager[IO[bytes]]:
    """Open the output; gzip stores no name and no time, so that equal content gives equal bytes."""
    if not is_compressed:
        return nullcontext(file)
    return cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
