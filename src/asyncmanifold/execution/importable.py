"""Find what another process could not import, before it fails to: classes and functions of a notebook."""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType
from typing import Any

from torch import Tensor

from asyncmanifold.errors import InputError


def check_importable(given: Any) -> None:
    """Refuse what refers to a class or function that worker processes could not import.

    They import the main module again from its file, and a notebook or an interactive session has none.
    """
    main = sys.modules.get("__main__")
    if any(getattr(main, name, None) is not None for name in ("__file__", "__spec__")):
        return
    if names := _names_in_main(given):
        raise InputError(
            f"{names[0]} is defined in a notebook or an interactive session, which worker processes cannot "
            "import: move it to a .py file and import it from there, or use one worker"
        )


def _names_in_main(given: Any) -> list[str]:
    """Return the names of classes and functions of the main module that ``given`` refers to."""
    names: list[str] = []

    class Finder(pickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, type | FunctionType) and thing.__module__ == "__main__":
                names.append(thing.__qualname__)
            return (str, ()) if isinstance(thing, Tensor) else NotImplemented  # data is not copied

    try:
        Finder(io.BytesIO()).dump(given)
    except (AttributeError, TypeError, pickle.PicklingError):
        return names  # it cannot be sent at all, which is reported where it is sent
    return names
