"""Every configuration key with its type, default and meaning, as the dataclasses and docstrings say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from asyncmanifold.configuration.parts import PARTS
from asyncmanifold.configuration.tables import TYPE_WORDS, to_tree

_ARGUMENT = re.compile(r"^    (\w+): ")


@dataclass(frozen=True)
class ConfigurationKey:
    """One configuration key."""

    name: str
    type: str
    default: str
    meaning: str


def explain_keys(cls: type[Any]) -> list[ConfigurationKey]:
    """Return the keys of a section or part, in their order.

    >>> from asyncmanifold import Polynomial
    >>> explain_keys(Polynomial)
    [ConfigurationKey(name='exponent', type='a number', default='0.5', meaning='at least 0.')]
    """
    hints, meanings = get_type_hints(cls), explain_arguments(cls)
    return [
        ConfigurationKey(name, _type_words(name, hints[name]), _default(field), meanings.get(name, ""))
        for name, field in ((field.name, field) for field in fields(cls))
    ]


def explain_arguments(cls: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say about each argument."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        name = None
        for line in (inspect.cleandoc(base.__doc__ or "")).splitlines():
            if match := _ARGUMENT.match(line):
                name = match[1]
                found[name] = line[match.end() :].strip()
            elif name is not None and line.startswith("        "):
                found[name] += " " + line.strip()
            else:
                name = None
    return found


def _type_words(name: str, hint: Any) -> str:
    choices = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        given = [
            choice for choice in choices if choice is not NoneType and get_origin(choice) is not Callable
        ]
        words = [_type_words(name, choice) for choice in given]
        return " or ".join([*dict.fromkeys(words), *(["none"] if NoneType in choices else [])])
    if name in PARTS:
        return "parts, by name" if get_origin(hint) is tuple else "a part, by name"
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in choices)
    return TYPE_WORDS.get(get_origin(hint) or hint, getattr(hint, "__name__", str(hint)))


def _default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        value = field.default_factory()
    elif field.default is MISSING:
        return "required"
    else:
        value = field.default
    tree = to_tree(value)
    if isinstance(tree, dict):
        settings = ", ".join(f"{name} = {entry}" for name, entry in tree.items() if name != "name")
        return f"{tree['name']} ({settings})" if settings else str(tree["name"])
    if isinstance(tree, bool):
        return str(tree).lower()
    return "none" if tree is None or tree == [] else str(tree)
