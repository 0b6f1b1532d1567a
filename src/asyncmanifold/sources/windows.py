"""Join LEAF's windows, 80 characters and the next one, to running text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from asyncmanifold.errors import InputError

WINDOW = 80
FARTHEST = WINDOW // 2
"""The largest shift between two windows that are joined: LEAF may have dropped those between."""

TITLES = (
    "ALL'S WELL THAT ENDS WELL",
    "ANTONY AND CLEOPATRA",
    "AS YOU LIKE IT",
    "THE COMEDY OF ERRORS",
    "CORIOLANUS",
    "CYMBELINE",
    "HAMLET, PRINCE OF DENMARK",
    "HAMLET",
    "HENRY THE FOURTH",
    "HENRY IV",
    "HENRY THE FIFTH",
    "HENRY THE SIXTH",
    "HENRY THE EIGHTH",
    "JOHN",
    "JULIUS CAESAR",
    "LEAR",
    "LOVE'S LABOUR'S LOST",
    "MACBETH",
    "MEASURE FOR MEASURE",
    "THE MERCHANT OF VENICE",
    "THE MERRY WIVES OF WINDSOR",
    "A MIDSUMMER NIGHT'S DREAM",
    "MUCH ADO ABOUT NOTHING",
    "OTHELLO, MOOR OF VENICE",
    "OTHELLO, THE MOOR OF VENICE",
    "PERICLES, PRINCE OF TYRE",
    "RICHARD THE SECOND",
    "RICHARD III",
    "RICHARD THE THIRD",
    "ROMEO AND JULIET",
    "THE TAMING OF THE SHREW",
    "THE TEMPEST",
    "TIMON OF ATHENS",
    "TITUS ANDRONICUS",
    "TROILUS AND CRESSIDA",
    "TWELFTH NIGHT; OR, WHAT YOU WILL",
    "THE TWO GENTLEMEN OF VERONA",
    "THE WINTER'S TALE",
)
"""The titles of the plays in the edition that LEAF reads (Project Gutenberg's no. 100)."""


def join_windows(windows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield running texts; a new one starts if a window overlaps the previous one by less than half."""
    pieces: list[str] = []
    before = ""
    for x, y in windows:
        step = _shift_between(before, x)
        if step is None:
            if pieces:
                yield "".join(pieces)
            pieces = [x, y]
        else:
            pieces += [x[len(before) - step :], y]
        before = x + y
    if pieces:
        yield "".join(pieces)


def _shift_between(before: str, x: str) -> int | None:
    """Return by how many characters a window is shifted, or None if it does not overlap."""
    if not before:
        return None
    return next((step for step in range(1, FARTHEST + 1) if x.startswith(before[step:])), None)


def check_window(x: object, y: object, where: str) -> tuple[str, str]:
    """Return a window, or raise ``InputError`` if it has the wrong form."""
    if not isinstance(x, str) or len(x) != WINDOW:
        found = f"{len(x)} characters" if isinstance(x, str) else "not a string"
        raise InputError(f"{where}: x is {found}, must be {WINDOW} characters")
    if not isinstance(y, str) or len(y) != 1:
        raise InputError(f"{where}: y is {y!r}, must be one character")
    return x, y


def play_and_speaker(user: str, plays: Sequence[str], where: str) -> tuple[str, str]:
    """Split a user's name, PLAY_SPEAKER, into play and speaker.

    If ``plays`` has one entry, that is the play; if several, the longest that the name begins with. Otherwise
    the name must begin with one of ``TITLES``, possibly after "The tragedy of", "King" and the like.
    """
    name = _key(user)
    known = plays if len(plays) == 1 else [play for play in plays if f"{name}_".startswith(f"{_key(play)}_")]
    if known:
        play = max(known, key=len)
    elif found := _TITLE.match(f"{name}_"):
        play = found[1].replace("_", " ")
    else:
        raise InputError(f"{where}: this name does not begin with the title of a known play")
    speaker = name.removeprefix(f"{_key(play)}_")
    return play, speaker.replace("_", " ")


def _key(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name).strip("_").upper()


_BEFORE_TITLE = (
    r"(?:(?:THE_)?(?:FIRST_PART|SECOND_PART|THIRD_PART|TRAGEDY|LIFE|HISTORY|COMEDY)_OF_)?(?:KING_)?"
)
_LONGEST_FIRST = sorted((_key(title) for title in TITLES), key=len, reverse=True)
_TITLE = re.compile(rf"({_BEFORE_TITLE}(?:{'|'.join(_LONGEST_FIRST)}))_")
