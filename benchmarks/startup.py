"""The start of ``asyncmanifold --help`` over that of a Python that does nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

REPEATS = 15


def main() -> None:
    commands = {
        "help": [str(Path(sys.executable).with_name("asyncmanifold")), "--help"],
        "bare": [sys.executable, "-c", "pass"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for repeat in range(-1, REPEATS):
        for name, command in commands.items():
            started = perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if repeat >= 0:  # one to warm up
                seconds[name].append(perf_counter() - started)
    shown, bare = median(seconds["help"]), median(seconds["bare"])
    detail = f"{shown * 1e3:.0f} over {bare * 1e3:.0f} ms, medians of {REPEATS}"
    print(json.dumps({"help_over_bare_python": {"value": shown / bare, "detail": detail}}))


if __name__ == "__main__":
    main()
