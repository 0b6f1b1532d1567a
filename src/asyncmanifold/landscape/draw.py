"""Draw the loss landscape of a run: repeat the run, measure the losses, write the page."""

from __future__ import annotations

import sys
from pathlib import Path

from asyncmanifold.configuration.config import load_config
from asyncmanifold.configuration.tables import read_toml
from asyncmanifold.errors import InputError
from asyncmanifold.landscape.losses import measure_landscape
from asyncmanifold.landscape.repeated_update import choose_update, differs, read_updates, repeat_run
from asyncmanifold.progress import RunWatcher, display
from asyncmanifold.report.figure_files import make_figures_folder
from asyncmanifold.report.landscape_page import DIFFERS, write_landscape
from asyncmanifold.session.directory import FINGERPRINT
from asyncmanifold.session.recorded_arithmetic import explain_other_arithmetic
from asyncmanifold.tasks.fingerprint import fingerprint_task
from asyncmanifold.threads import torch_threads
from asyncmanifold.vectors import FlatModel


def draw_landscape(
    directory: Path,
    *,
    update: int | None = None,
    grid: int = 25,
    examples: int = 512,
    out: Path | None = None,
    data: str | None = None,
    task_place: str | None = None,
    workers: int = 1,
    quiet: bool = False,
) -> Path:
    """Write landscape.html, landscape.json and figures/landscape-*.svg about a run; return the page's path.

    ``update`` is which of the run's updates to draw; by default one in the middle, see ``choose_update``.
    Losses are taken on ``grid`` × ``grid`` points and on at most ``examples`` examples. ``out`` is the
    folder to write to, by default the run's own. ``task_place`` is where to find the function that builds the
    task, if the run's own configuration does not say. Wrong input is an ``InputError`` of one line.
    """
    if grid < 2:
        raise InputError(f"--grid {grid}: must be at least 2")
    updates = read_updates(directory)
    config = load_config(str(directory / "config.toml"), data=data, task=task_place)
    recorded = choose_update(updates, update, is_curve=config.method.embedding.points > 1)
    task = config.build_task()
    model = FlatModel(task.build_model(config.run.seed))
    if task_place is not None:
        _check_same(directory, fingerprint_task(task, model.module))
    if not model.space.is_flat:
        raise InputError(
            f"{directory}: the model has parameters on manifolds, and landscape draws flat spaces only"
        )
    out = out or directory
    make_figures_folder(out)  # before the work, so that an unwritable folder is refused at once
    with torch_threads():
        with display(config.method_name, recorded["update"], quiet=quiet) as shown:
            watcher = RunWatcher(shown)
            repeated = repeat_run(config, task, recorded["update"], workers=workers, observer=watcher)
        is_other = differs(recorded, repeated.record)
        if is_other:
            reason = explain_other_arithmetic(directory) or f"{directory}: {DIFFERS}"
            print(f"asyncmanifold: {reason}", file=sys.stderr)
        landscape = measure_landscape(
            config, task, repeated, grid=grid, examples=examples, quiet=quiet, differs=is_other
        )
    return write_landscape(landscape, out)


def _check_same(directory: Path, fingerprint: dict[str, str]) -> None:
    """Refuse a task that is not the run's."""
    known = read_toml(str(directory / "config.toml")).get(FINGERPRINT, {})
    for what, mark in fingerprint.items():
        if known.get(what, mark) != mark:
            raise InputError(f"{directory}: the run's task has other {what} ({known[what]}, not {mark})")
