"""A run's directory: its configuration, trace, checkpoint, model and summary."""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from asyncmanifold import __version__
from asyncmanifold.errors import InputError
from asyncmanifold.files import write_atomically

MADE_BY = "asyncmanifold"
"""The configuration key that holds the version of the package that wrote it."""


class RunDirectory:
    """One run's files; locked while open, so that no two processes write to the same run."""

    def __init__(self, path: Path, config: dict[str, Any], *, resume: bool) -> None:
        """Open or create the directory of a run with this configuration."""
        self.path = path
        self.config = path / "config.toml"
        self.trace = path / "trace.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"
        self.summary = path / "summary.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        self._lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise InputError(f"{path}: in use by another process") from error
        try:
            self._claim(config, resume)
        except BaseException:
            self.close()
            raise

    @property
    def is_finished(self) -> bool:
        """Whether the run is complete: the summary is the last file that it writes."""
        return self.summary.exists()

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

    def _claim(self, config: dict[str, Any], resume: bool) -> None:
        if not self.config.exists():
            if others := [f.name for f in self.path.iterdir() if not f.name.endswith(".draft")]:
                raise InputError(
                    f"{self.path}: not empty and not a run (has {sorted(others)[0]}): choose a new directory"
                )
            write_atomically(self.config, tomli_w.dumps({MADE_BY: __version__, **config}).encode())
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
        if difference := _first_difference(existing, config):
            raise InputError(f"{self.path}: holds a run with another configuration: {difference}")


def _first_difference(old: Any, new: Any, path: str = "") -> str | None:
    """Describe the first difference of two configurations, if there is one."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return None if old == new else f"{path} is {old!r} there, {new!r} here"
    for key in sorted({*old, *new}):
        inner = f"{path}.{key}" if path else key
        if difference := _first_difference(old.get(key), new.get(key), inner):
            return difference
    return None
