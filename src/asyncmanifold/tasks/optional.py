"""Optional libraries, installed by an extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from asyncmanifold.errors import InputError


def import_optional(module: str, what: str, extra: str = "data") -> Any:
    """Return a module; an ``InputError`` says what needs it and how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{what} needs the extra '{extra}': pip install 'asyncmanifold[{extra}]'") from error
