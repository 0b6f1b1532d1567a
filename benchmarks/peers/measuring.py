"""One run of one system: started, watched for its memory, and read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.environments import last_line
from peers.problem import BATCH_SIZE, CONCURRENCY, PASSES_FILE, Size
from peers.processes import resident_bytes

HERE = Path(__file__).resolve().parent
LONGEST_RUN = 900.0
"""Seconds after which a run is given up."""
SAMPLE_EVERY = 0.2
"""Seconds between two looks at the memory of all processes of a run."""
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "WANDB_MODE": "disabled",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Measurement:
    """One run's cost of an update: a client's training and all that the system does for it."""

    cpu_ms_per_update: float
    wall_ms_per_update: float
    peak_mb: float
    versions: dict[str, str]


class Failed(Exception):  # noqa: N818 - an outcome, not an error
    """A run that gave no measurement, with the reason."""


def measure(command: list[str], size: Size, folder: Path, is_parallel: bool) -> Measurement:
    """Run a script in ``folder`` and return what it measured."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        passes, out, errors = (Path(name) / part for part in ("passes", "out", "errors"))
        environment = os.environ | SETTINGS | {PASSES_FILE: str(passes)}
        with out.open("w") as stdout, errors.open("w") as stderr:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=stdout,
                stderr=stderr,
                process_group=0,  # to be ended as a whole; in the same session, so of the same priority
            )
            peak = _watch(process)
        if process.returncode:
            reason = last_line(errors.read_text()) or last_line(out.read_text())
            raise Failed(reason or f"ended with {process.returncode}")
        return read(json.loads(last_line(out.read_text())), size, peak, is_parallel)


def read(printed: dict[str, Any], size: Size, peak_bytes: int, is_parallel: bool) -> Measurement:
    """Return a script's figures for one update; raise ``Failed`` where it did not do the work it should.

    A system that trains several clients at once may have trained a few more or less than it absorbed between
    the two readings: an update is what belongs to one client's training.
    """
    if printed["batch_sizes"] != [BATCH_SIZE]:
        raise Failed(f"trained on batches of {printed['batch_sizes']}, not {BATCH_SIZE}")
    trained = printed["passes"] / size.steps
    if abs(trained - printed["updates"]) > (CONCURRENCY if is_parallel else 0):
        raise Failed(f"made {printed['passes']} steps for {printed['updates']} updates of {size.steps}")
    return Measurement(
        1e3 * printed["cpu_seconds"] / trained,
        1e3 * printed["wall_seconds"] / trained,
        peak_bytes / 1e6,
        printed["versions"],
    )


def _watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end and return the most memory that all processes together were seen to use."""
    peak, started = 0, time.monotonic()
    while True:
        try:
            process.wait(timeout=SAMPLE_EVERY)
            return peak
        except subprocess.TimeoutExpired:
            peak = max(peak, resident_bytes(process.pid))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if time.monotonic() - started > LONGEST_RUN:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Failed(f"took more than {LONGEST_RUN:.0f} s")
