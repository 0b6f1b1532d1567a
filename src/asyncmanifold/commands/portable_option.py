"""Portable arithmetic on the command line: chosen before torch is loaded, wherever it is asked for."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

from asyncmanifold.arithmetic import use_portable_arithmetic

KEYS = ("arithmetic", "run.arithmetic")


def choose_arithmetic(options: argparse.Namespace) -> None:
    """Prepare this process if ``--portable``, ``--set arithmetic=portable`` or a TOML file asks for it.

    The rest of the configuration can be read only once torch is loaded, and that would be too late.
    """
    if getattr(options, "portable", False):
        options.settings.append((KEYS[0], "portable"))
    asked = [value.strip("\"'") for key, value in getattr(options, "settings", []) if key in KEYS]
    if not asked:
        asked = [_recorded_kind(options)]
    if "portable" in asked:
        use_portable_arithmetic()


def _recorded_kind(options: argparse.Namespace) -> str:
    """Return the arithmetic that a scenario's file, or the configuration of a run's directory, names."""
    if (directory := getattr(options, "directory", None)) is not None:
        file = Path(directory) / "config.toml"
    else:
        file = Path(getattr(options, "scenario", ""))
    try:
        tree: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return str(tree["run"]["arithmetic"])
    except (OSError, ValueError, LookupError, TypeError):
        return "native"  # a broken file is reported when it is read in earnest
