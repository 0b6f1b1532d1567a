"""Read speeches from the plain text of plays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncmanifold.errors import InputError

Speech = dict[str, Any]
"""One line of the written file: at least play, speaker and lines."""

LAYOUTS = "a speaker followed by a tab, or in capitals and followed by a period or colon, or alone on a line"

_NAME = r"[A-Z][A-Z0-9 ,'’&-]*[A-Z0-9]"
_TAB = re.compile(r"([A-Z][^\t]*?)[ ]*\t\s*(.*)")
_PERIOD = re.compile(rf"[ ]{{0,4}}({_NAME})[.:][ ]+(\S.*)")
_ALONE = re.compile(rf"\s*({_NAME})[.:]?\s*()")
_HEADING = re.compile(r"\s*(?:(?i:ACT|SCENE)[ .:]+(?:[IVXLC]+|\d+)\b.*|(?:THE )?END|FINIS)\W*")
_MOVEMENT = re.compile(r"\s*(?:Enter|Re-enter|Exit|Exeunt|Flourish|Alarum)s?\b.*")
_DIRECTION = re.compile(r"\[[^\]]*\]|<<[^>]*>>")


def speech(play: str, speaker: str, lines: list[str]) -> Speech:
    """Return a speech in the form in which it is written."""
    return {"play": play, "speaker": speaker, "lines": lines}


def read_play(path: Path) -> Iterator[Speech]:
    """Yield the speeches of a text file, which holds one play; the file's name is the play's title.

    A speech lasts until the next speaker, act or scene. Stage directions are dropped: text in
    brackets, and lines that begin with Enter, Exit, Exeunt and the like. If there are acts or scenes,
    everything before the first one is ignored.
    """
    speeches = [(speaker, spoken) for speaker, spoken in _split_turns(_text(path)) if speaker and spoken]
    if not speeches:
        raise InputError(f"{path}: no speeches; expected {LAYOUTS}")
    yield from (speech(path.stem, speaker, spoken) for speaker, spoken in speeches)


def _split_turns(text: str) -> list[tuple[str, list[str]]]:
    """Return each speaker with the lines until the next one; after a heading the speaker is empty."""
    lines = _DIRECTION.sub("", text).splitlines()
    first = next((number for number, line in enumerate(lines) if _HEADING.fullmatch(line)), 0)
    turns: list[tuple[str, list[str]]] = [("", [])]
    for line in lines[first:]:
        words = line
        if _HEADING.fullmatch(line):
            turns.append(("", []))
            continue
        if found := _TAB.fullmatch(line) or _PERIOD.fullmatch(line) or _ALONE.fullmatch(line):
            speaker, words = found.groups()
            turns.append((speaker, []))
        if words.strip() and not _MOVEMENT.fullmatch(words):
            turns[-1][1].append(words.strip())
    return turns


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
