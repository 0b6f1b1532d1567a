"""Which jobs are out right now, in a small file beside the trace, for whoever watches the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import perf_counter

NAME = "live.json"
MOST_JOBS = 1_000
INTERVAL = 1.0
SHARE = 100.0
"""The pause after writing is at least this many times as long as writing took: at most 1 % of the time."""


class LiveJobs:
    """Writes the jobs that are out, at most once per second; it is no record, and nothing depends on it."""

    def __init__(self, directory: Path | None) -> None:
        """Write into a run's directory; without one, nowhere."""
        self._path = None if directory is None else directory / NAME
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Whether ``show`` is worth calling now."""
        return self._path is not None and perf_counter() >= self._next

    def show(self, time: float, count: int, jobs: Iterable[tuple[int, float]]) -> None:
        """Write the number of jobs that are out, and (client, when it was sent) of the first of them."""
        if self._path is None:
            return
        start = perf_counter()
        out = [[client, round(sent, 3)] for client, sent in islice(jobs, MOST_JOBS)]
        draft = self._path.with_name(NAME + ".draft")
        with suppress(OSError):  # a full disk must not end the run here: the trace will say so
            draft.write_text(json.dumps({"time": round(time, 3), "count": count, "jobs": out}))
            os.replace(draft, self._path)
        now = perf_counter()
        self._next = now + max(INTERVAL, SHARE * (now - start))

    def close(self) -> None:
        """Remove the file: no job is out when a run has ended."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
