"""Frozen dataclasses from TOML tables, and back.

A *part* (a correction, a latency model, a task …) is a table with the ``name`` of a class and its
hyper-parameters, or just the name. Every error is one line: where, what is wrong, and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from asyncmanifold.client.local_optimizers import label_of
from asyncmanifold.configuration.own_tasks import is_place, own_task_class
from asyncmanifold.configuration.parts import PARTS, part_class, part_name, usual_part
from asyncmanifold.configuration.python_tasks import PythonTask
from asyncmanifold.errors import InputError

Tree = dict[str, Any]
SECTION_CLASSES = ("Method", "LocalTraining", "Schedule", "Run")
"""Dataclasses that are whole sections of a configuration, and so need no name."""


MADE_OF_OBJECT = (
    "was made in Python from a Task object, which cannot be built again: give simulate a function of the "
    "seed that returns it, or say now where there is one (landscape --task my.py:build)"
)


def to_tree(value: Any) -> Any:
    """Return a dataclass as a table: parts and functions become names, and unset fields are omitted."""
    if isinstance(value, tuple):
        return [to_tree(entry) for entry in value]
    if not is_dataclass(value) or isinstance(value, type):
        return label_of(value) if callable(value) else value
    table: Tree = {}
    if (cls := type(value)).__name__ not in SECTION_CLASSES:
        table["name"] = part_name(cls) or cls.__name__
    for field in fields(value):
        if (entry := getattr(value, field.name)) is not None:
            table[field.name] = to_tree(entry)
        elif field.default is not None:
            table[field.name] = "none"
    return table


def build(cls: type[Any], table: Any, where: str) -> Any:
    """Build a dataclass from a table."""
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table")
    values = _converted(cls, table, where)
    required = [
        field.name
        for field in fields(cls)
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in values
    ]
    if required:
        table_form = ", ".join([f'name = "{part_name(cls)}"', *(f"{name} = …" for name in required)])
        raise InputError(f"{where}: {cls.__name__} needs {', '.join(required)}: {{{table_form}}}")
    try:
        return cls(**values)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def change(settings: Any, table: Tree, where: str) -> Any:
    """Return a dataclass with new values for the fields in a table; its other parts stay as they are."""
    values = _converted(type(settings), table, where)
    try:
        return dataclasses.replace(settings, **values)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def _converted(cls: type[Any], table: Tree, where: str) -> Tree:
    hints = get_type_hints(cls)
    check_keys(table, [field.name for field in fields(cls)], where)
    return {name: _convert(name, value, hints[name], f"{where}.{name}") for name, value in table.items()}


def build_part(key: str, value: Any, where: str) -> Any:
    """Build the part that a name or a table under ``key`` describes."""
    if isinstance(value, PythonTask):
        return value
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a name or a table")
    choices = PARTS[key]
    name = table.get("name", usual_part(key))
    settings = {k: v for k, v in table.items() if k != "name"}
    if key == "task" and isinstance(name, str) and is_place(name):
        return build(own_task_class(name, settings), settings, where)
    if key == "task" and name is None and "parameters" in table:
        raise InputError(f"{where} {MADE_OF_OBJECT}")
    if not isinstance(name, str) or name not in choices:
        said = "needs a name" if name is None else f"has no part {name!r}"
        own = ", or your own as module:function or file.py:function" if key == "task" else ""
        raise InputError(f"{where} {said}: allowed are {', '.join(choices) or 'none'}{own}")
    return build(part_class(key, name), settings, where)


def _convert(key: str, value: Any, hint: Any, where: str) -> Any:
    """Return a TOML value as the type that a field declares."""
    if hint is Any:
        return None if value == "none" else value
    if value == "none" and hint is not str and "none" not in get_args(hint):
        if NoneType in get_args(hint):
            return None
        raise InputError(f"{where} must have a value")
    if get_origin(hint) is tuple:
        entries = value if isinstance(value, list) else [value]
        if key not in PARTS:
            return tuple(_convert(key, entry, get_args(hint)[0], where) for entry in entries)
        return tuple(build_part(key, entry, f"{where}[{place}]") for place, entry in enumerate(entries))
    if key in PARTS:
        return build_part(key, value, where)
    if get_origin(hint) in (Union, UnionType):
        choices = [choice for choice in get_args(hint) if choice is not NoneType]
        if any(type(value) is (get_origin(choice) or choice) for choice in choices):
            return value
        hint = choices[0]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            allowed = ", ".join(repr(choice) for choice in get_args(hint))
            raise InputError(f"{where} = {value!r}: must be one of {allowed}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise InputError(f"{where} = {value!r}: must be {TYPE_WORDS.get(hint, hint.__name__)}")
    return value


TYPE_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    dict: "a table",
}


def check_keys(table: Tree, allowed: list[str] | tuple[str, ...], where: str) -> None:
    """Refuse a table with a key that is not allowed."""
    for key in table:
        if key not in allowed:
            raise InputError(f"{where}: unknown key {key!r}{suggestion(key, list(allowed))}")


def suggestion(word: str, choices: list[str]) -> str:
    """Return the end of an error message: the closest allowed word, and all allowed words."""
    close = difflib.get_close_matches(word, choices, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"{hint} (allowed: {', '.join(choices) or 'none'})"


def parse_value(text: str) -> Any:
    """Return a ``--set`` value: a TOML value, or a plain string ('none' unsets a key)."""
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
    """Return the tables of a TOML string; ``where`` names it in messages."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at line {max(1, len(text.splitlines()))}, the end"
        raise InputError(f"{where}: {error}".replace("at end of document", end)) from error
