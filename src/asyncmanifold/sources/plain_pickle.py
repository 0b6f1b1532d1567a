"""Read a pickle that holds nothing but lists, tuples, dictionaries, numbers and strings.

A pickle is a program, and loading one can run anything that it names. Here it can name nothing: whatever is
not built of plain values is refused before it exists.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

from asyncmanifold.errors import InputError, one_line


class PlainUnpickler(pickle.Unpickler):
    """Refuses every name, and so every class, function and object that is not a plain value."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse."""
        raise InputError(f"holds {module}.{name}, and objects are never loaded: export the file as JSON")


def read_plain_pickle(path: Path) -> Any:
    """Return the plain values in a file; anything else is an ``InputError`` of one line."""
    content = path.read_bytes()
    try:
        return PlainUnpickler(io.BytesIO(content)).load()
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from problem
    except Exception as problem:  # untrusted bytes may raise anything
        raise InputError(f"{path}: not a pickle of plain values: {one_line(problem)}") from problem
