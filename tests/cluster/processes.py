"""Who has started whom on this machine."""

import os
import time
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    children = [
        int(path.name) for path in Path("/proc").glob("[0-9]*") if _status(path.name)["PPid"] == str(pid)
    ]
    return [*children, *(child for found in children for child in descendants(found))]


def is_alive(pid: int) -> bool:
    """Return whether a process is there and has not ended; who buries it is not our business."""
    return _status(pid)["State"][:1] not in ("Z", "X")


def trainers(pid: int | None = None) -> list[int]:
    """Return the processes of actors that train."""
    named = {child: _title(child) for child in descendants(pid or os.getpid())}
    return [child for child, title in named.items() if title.startswith("ray::TrainingActor")]


def trainers_seen(seconds: float = 20.0) -> list[int]:
    """Return the actors that train as soon as one is found; a look at /proc has missed all of them once."""
    until = time.monotonic() + seconds
    while not (found := trainers()):
        assert time.monotonic() < until, (
            f"no trainer among {[_title(pid) for pid in descendants(os.getpid())]}"
        )
        time.sleep(0.1)
    return found


def trainers_left() -> list[int]:
    """Return the actors that are still there after a while: Ray ends them, but does not wait for it."""
    return left_alive(trainers())


def left_alive(pids: list[int], seconds: float = 20.0) -> list[int]:
    """Return which of these processes have not ended after a while."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _status(pid: int | str) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {"PPid": "", "State": "X"}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
