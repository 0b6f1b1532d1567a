"""Whether a process is at work on a run: it keeps the run's directory locked."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from time import sleep

TRIES = 10
TRY_SECONDS = 0.05


def is_locked(path: Path) -> bool:
    """Return whether a process is alive that writes to a run's directory."""
    try:
        place = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(place)


def lock(path: Path) -> int:
    """Lock a run's directory until the returned file is closed; raise ``OSError`` if another process has it.

    Whoever asks ``is_locked`` holds a lock for a moment: that is waited for.
    """
    place = os.open(path, os.O_RDONLY)
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return place
        except OSError:
            if not left:
                os.close(place)
                raise
            sleep(TRY_SECONDS)
    raise AssertionError  # the last try returns or raises
