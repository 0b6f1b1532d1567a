"""A run's directory: its configuration, trace, checkpoint, model and summary."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from asyncmanifold import __version__
from asyncmanifold.errors import InputError
from asyncmanifold.files import write_atomically
from asyncmanifold.session.control import STOPPED
from asyncmanifold.session.locks import lock

MADE_BY = "asyncmanifold"
"""The configuration key that holds the version of the package that wrote it."""
FINGERPRINT = "fingerprint"
"""The configuration table that tells the data and the model of a run from others."""

CHANGEABLE = (
    *("method.global_lr", "method.rate_schedule", "method.gates", "method.max_staleness"),
    *("method.norm_bound", "method.norm_clips", "training.local_lr", "policy"),
    *("run.updates", "run.evaluate_every", "run.target", "run.checkpoint_seconds"),
    *("run.target_stops", "run.time_budget", "run.wall_budget", "run.keep_models", "run.roll_back"),
)
"""What may change in a run that is resumed: bounds, rates, its length, and how nodes are treated."""


class RunDirectory:
    """One run's files; locked while open, so that no two processes write to the same run."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        *,
        resume: bool,
        change: Sequence[str] = (),
        fingerprint: Mapping[str, str] | None = None,
    ) -> None:
        """Open or create the directory of a run with this configuration, and this fingerprint of its task.

        Settings at the paths in ``change`` may differ from those that it holds.
        """
        for key in change:
            if not _is_below(key, CHANGEABLE):
                raise InputError(f"{key} cannot be changed in a run (allowed: {', '.join(CHANGEABLE)})")
        self._given, self._change, self._marks = config, change, fingerprint
        self.changes: list[dict[str, Any]] = []
        """The settings that differ from the run's, with their old and new values."""
        self.path = path
        self.config = path / "config.toml"
        self.trace = path / "trace.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.log = path / "accepted.log"
        self.kept = path / "kept"
        self.model = path / "model.safetensors"
        self.best = path / "best.safetensors"
        self.summary = path / "summary.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        try:
            self._lock = lock(path)
        except OSError as error:
            raise InputError(f"{path}: in use by another process") from error
        try:
            self._claim(config, resume, dict(fingerprint or {}))
        except BaseException:
            self.close()
            raise

    @property
    def is_finished(self) -> bool:
        """Whether the run is complete: the summary is the last file that it writes."""
        return self.summary.exists()

    @property
    def is_stopped(self) -> bool:
        """Whether the run was told to stop, and has: it can be resumed."""
        return self.is_finished and self.read_summary().get("ended") == STOPPED

    def read_summary(self) -> dict[str, Any]:
        """Return the summary of a finished run."""
        return dict(json.loads(self.summary.read_text(encoding="utf-8")))

    def give_up(self) -> None:
        """Remove the run's files if the run has not begun, so that the directory can be used again."""
        if not (self.trace.exists() and self.trace.stat().st_size):
            self.trace.unlink(missing_ok=True)
            self.config.unlink(missing_ok=True)

    def close(self) -> None:
        """Let other processes use the directory."""
        os.close(self._lock)

    def _claim(self, config: dict[str, Any], resume: bool, fingerprint: dict[str, str]) -> None:
        if not self.config.exists():
            if others := [f.name for f in self.path.iterdir() if not f.name.endswith(".draft")]:
                raise InputError(
                    f"{self.path}: not empty and not a run (has {sorted(others)[0]}): choose a new directory"
                )
            self._write_config()
            return
        if not resume:
            raise InputError(
                f"{self.path}: holds a run already: choose another directory, or resume it (--resume)"
            )
        try:
            existing = tomllib.loads(self.config.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{self.config}: {error}") from error
        made_by = existing.pop(MADE_BY, "0.1.0")  # 0.1.0 did not write its version
        if made_by != __version__:
            raise InputError(
                f"{self.path}: made by asyncmanifold {made_by}, and this is {__version__}: resume it with "
                "that version, or choose another directory"
            )
        known = existing.pop(FINGERPRINT, {})
        if "method_name" in existing:  # only a label, of a method whose parts are compared themselves
            self._given = config = {**config, "method_name": existing["method_name"]}
        for key, old, new in _differences(existing, config):
            if not _is_below(key, self._change):
                difference = f"{key} is {old!r} there, {new!r} here"
                raise InputError(f"{self.path}: holds a run with another configuration: {difference}")
            self.changes.append({"key": key, "from": old, "to": new})
        for what, mark in fingerprint.items():
            if known.get(what, mark) != mark:
                raise InputError(
                    f"{self.path}: holds a run with other {what} ({known[what]} there, {mark} here): resume "
                    f"it with the same {what}, or choose another directory"
                )

    def adopt_changes(self, *, is_reopened: bool = False) -> None:
        """Make changed settings the run's own; a run that was finished no longer is."""
        if self.changes or is_reopened:
            self.summary.unlink(missing_ok=True)
        if self.changes:
            self._write_config()
            self.changes = []

    def _write_config(self) -> None:
        marks = {FINGERPRINT: self._marks} if self._marks else {}
        described = {MADE_BY: __version__, **self._given, **marks}
        write_atomically(self.config, tomli_w.dumps(described).encode())


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where two configurations differ, with both values."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield path, old, new
        return
    for key in sorted({*old, *new}):
        yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)


def _is_below(key: str, paths: Sequence[str]) -> bool:
    """Whether a key is one of the paths, or inside one."""
    return any(key == path or key.startswith(path + ".") for path in paths)
