"""From a run's directory to its pictures: repeat the run, measure the losses, write the page."""

from __future__ import annotations

import sys
from pathlib import Path

from asyncmanifold.configuration.config import load_config
from asyncmanifold.errors import InputError
from asyncmanifold.landscape.measure import measure
from asyncmanifold.landscape.replay import (
    choose_update,
    differs,
    read_updates,
    replay,
)
from asyncmanifold.progress import RunWatcher, display
from asyncmanifold.report.landscape import write_landscape
from asyncmanifold.threads import torch_threads

OTHER = (
    "the repeated run differs from its trace (another version of torch, or another data file?): "
    "the pictures show the repeated one"
)


def draw_landscape(
    directory: Path,
    *,
    update: int | None = None,
    grid: int = 25,
    examples: int = 512,
    out: Path | None = None,
    data: str | None = None,
    workers: int = 1,
    quiet: bool = False,
) -> Path:
    """Write landscape.html, landscape.json and figures/landscape-*.svg about a run; return the page's path.

    ``update`` is which of the run's updates to draw; by default one in the middle, see ``choose_update``.
    Losses are taken on ``grid`` × ``grid`` points and on at most ``examples`` examples. ``out`` is the
    folder to write to, by default the run's own. A ``InputError`` says in one line what is wrong.
    """
    if grid < 2:
        raise InputError(f"--grid {grid}: must be at least 2")
    updates = read_updates(directory)
    config = load_config(str(directory / "config.toml"), data=data)
    recorded = choose_update(updates, update, is_curve=config.method.embedding.points > 1)
    out = out or directory
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}") from error
    task = config.build_task()
    with torch_threads():
        with display(config.method_name, recorded["update"], quiet=quiet) as shown:
            moment = replay(config, task, recorded["update"], workers=workers, observer=RunWatcher(shown))
        is_other = differs(recorded, moment.record)
        if is_other:
            print(f"asyncmanifold: {directory}: {OTHER}", file=sys.stderr)
        landscape = measure(config, task, moment, grid=grid, examples=examples, quiet=quiet, differs=is_other)
    return write_landscape(landscape, out)
