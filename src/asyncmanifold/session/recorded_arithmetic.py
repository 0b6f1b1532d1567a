"""The arithmetic that a run's files were made with, beside that of this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from asyncmanifold.arithmetic import explain_difference
from asyncmanifold.errors import InputError
from asyncmanifold.files import load_tree


def explain_other_arithmetic(directory: Path) -> str | None:
    """Return one line if a run was made with an arithmetic whose last digits may differ from this one's."""
    made = _recorded(directory)
    difference = explain_difference(made) if isinstance(made, dict) else None
    return None if difference is None else f"{directory}: {difference}"


def warn_of_other_arithmetic(directory: Path) -> None:
    """Print that line, if there is one, on standard error."""
    if (line := explain_other_arithmetic(directory)) is not None:
        print(f"asyncmanifold: {line}", file=sys.stderr)


def _recorded(directory: Path) -> Any:
    """Return what the summary says, or the last checkpoint of an unfinished run; None if neither does."""
    try:
        return json.loads((directory / "summary.json").read_text(encoding="utf-8"))["arithmetic"]
    except (OSError, ValueError, LookupError, TypeError):
        pass
    try:
        return load_tree(directory / "checkpoint.safetensors")["arithmetic"]
    except (OSError, InputError, LookupError, TypeError):
        return None
