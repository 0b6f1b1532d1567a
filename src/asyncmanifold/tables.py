"""Frozen dataclasses from TOML tables, and back.

A *part* (a correction, a latency model, a task …) is a table with the ``name`` of a class and its
hyper-parameters, or just the name. Everything that is wrong is one line: where, what, and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from asyncmanifold.client.training import LocalTraining
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.embeddings import EMBEDDINGS
from asyncmanifold.server.averaging import Averaging
from asyncmanifold.server.buffer import BUFFERS
from asyncmanifold.server.corrections import CORRECTIONS
from asyncmanifold.server.methods import Method
from asyncmanifold.server.penalties import PENALTIES, STALENESS, AdaptiveEpochs
from asyncmanifold.simulation.engine import Run
from asyncmanifold.simulation.schedules import LATENCIES, Schedule
from asyncmanifold.tasks.cxr8 import Cxr8
from asyncmanifold.tasks.digits import Digits
from asyncmanifold.tasks.femnist import Femnist
from asyncmanifold.tasks.prototypes import Prototypes
from asyncmanifold.tasks.shakespeare import Shakespeare
from asyncmanifold.tasks.tree import Tree as TreeTask

Tree = dict[str, Any]

PARTS: dict[str, Mapping[str, type[Any]]] = {
    "task": {
        "digits": Digits,
        "femnist": Femnist,
        "shakespeare": Shakespeare,
        "cxr8": Cxr8,
        "prototypes": Prototypes,
        "tree": TreeTask,
    },
    "embedding": EMBEDDINGS,
    "correction": CORRECTIONS,
    "penalty": PENALTIES,
    "staleness": STALENESS,
    "buffer": BUFFERS,
    "adaptive_epochs": {"adaptive-epochs": AdaptiveEpochs},
    "averaging": {"averaging": Averaging},
    "latency": LATENCIES,
}
"""The classes that a part can name, by the key that holds it."""


def to_tree(value: Any) -> Any:
    """Return a dataclass as a table: parts with their names, nothing for what is not set by default."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    table: Tree = {}
    if (name := _part_name(type(value))) is not None:
        table["name"] = name
    for field in fields(value):
        if (entry := getattr(value, field.name)) is not None:
            table[field.name] = to_tree(entry)
        elif field.default is not None:
            table[field.name] = "none"
    return table


def build(cls: type[Any], table: Any, where: str) -> Any:
    """Return an instance of a dataclass made from a table."""
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table")
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    check_keys(table, names, where)
    values = {name: _convert(name, value, hints[name], f"{where}.{name}") for name, value in table.items()}
    required = [
        field.name
        for field in fields(cls)
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in values
    ]
    if required:
        raise InputError(f"{where}: {cls.__name__} needs {', '.join(required)}")
    try:
        return cls(**values)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def build_part(key: str, value: Any, where: str) -> Any:
    """Return the part that a key's name or table describes."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a name or a table")
    choices = PARTS[key]
    name = table.get("name", next(iter(choices)) if len(choices) == 1 else None)
    if not isinstance(name, str) or name not in choices:
        said = "needs a name" if name is None else f"has no part {name!r}"
        raise InputError(f"{where} {said}: allowed are {', '.join(choices)}")
    return build(choices[name], {k: v for k, v in table.items() if k != "name"}, where)


def _convert(key: str, value: Any, hint: Any, where: str) -> Any:
    """Return a TOML value as the type that a field declares."""
    if value == "none" and hint is not str and "none" not in get_args(hint):
        if NoneType in get_args(hint):
            return None
        raise InputError(f"{where} must have a value")
    if key in PARTS:
        return build_part(key, value, where)
    if get_origin(hint) in (Union, UnionType):
        hint = next(choice for choice in get_args(hint) if choice is not NoneType)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            allowed = ", ".join(repr(choice) for choice in get_args(hint))
            raise InputError(f"{where} = {value!r}: must be one of {allowed}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise InputError(f"{where} = {value!r}: must be {_TYPE_WORDS.get(hint, hint.__name__)}")
    return value


_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def check_keys(table: Tree, allowed: list[str] | tuple[str, ...], where: str) -> None:
    """Refuse a table with a key that is not allowed."""
    for key in table:
        if key not in allowed:
            raise InputError(f"{where}: unknown key {key!r}{suggestion(key, list(allowed))}")


def suggestion(word: str, choices: list[str]) -> str:
    """Return what a word may have meant and what is allowed, for the end of a message."""
    close = difflib.get_close_matches(word, choices, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"{hint} (allowed: {', '.join(choices) or 'none'})"


def _part_name(cls: type[Any]) -> str | None:
    for choices in PARTS.values():
        for name, part in choices.items():
            if part is cls:
                return name
    return None if cls in (Method, LocalTraining, Schedule, Run) else cls.__name__


def parse_value(text: str) -> Any:
    """Return a ``--set`` value: a TOML value, or a plain text ('none' unsets a key)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_toml(path: str) -> Tree:
    """Return the tables of a TOML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a UTF-8 text file") from error
    return parse_toml(text, path)


def parse_toml(text: str, where: str) -> Tree:
    """Return the tables of a TOML text; ``where`` names it in messages."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at line {max(1, len(text.splitlines()))}, the end"
        raise InputError(f"{where}: {error}".replace("at end of document", end)) from error
