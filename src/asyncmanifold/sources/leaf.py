"""LEAF's JSON files (Caldas et al. 2018): users, and lists x and y for each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asyncmanifold.errors import InputError


class LeafFile(NamedTuple):
    """A file, and whether LEAF's own split calls it a test file; None if there is no split."""

    path: Path
    is_test: bool | None


class LeafUser(NamedTuple):
    """One user's data in one file, not checked yet."""

    name: str
    groups: Sequence[str]
    """The groups that the user belongs to, such as a play; all groups if the file does not say which."""
    x: list[Any]
    y: list[Any]
    where: str
    """The file and the user, for error messages."""


def leaf_files(source: Path) -> list[LeafFile]:
    """Return the files below a folder, training before test, sorted by name; none if it is not LEAF's.

    Supported are LEAF's folder of a dataset, its folder ``data``, and a folder of .json files.
    """
    if source.is_file():
        return [LeafFile(source, None)] if source.suffix == ".json" else []
    for folder in (source, source / "data"):
        train, test = _json_files(folder / "train"), _json_files(folder / "test")
        if bool(train) != bool(test):
            absent = folder / ("test" if train else "train")
            raise InputError(f"{absent}: no .json files, but its sibling has some")
        if train:
            return [LeafFile(path, False) for path in train] + [LeafFile(path, True) for path in test]
    for folder in (source, source / "all_data", source / "data" / "all_data"):
        if found := _json_files(folder):
            return [LeafFile(path, None) for path in found]
    return []


def _json_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def read_leaf(path: Path) -> Iterator[LeafUser]:
    """Yield the users of a file; any error is an ``InputError`` of one line."""
    content = _content(path)
    users, user_data = _entries(content, str(path), users=list, user_data=dict)
    if not all(isinstance(user, str) for user in users):
        raise InputError(f"{path}: 'users' must be strings")
    groups = content.get("hierarchies", [])
    if not (isinstance(groups, list) and all(isinstance(group, str) for group in groups)):
        raise InputError(f"{path}: 'hierarchies' must be strings")
    # LEAF's split by sample keeps the groups of dropped users: then positions do not match users to groups.
    by_place = len(groups) == len(users)
    for place, user in enumerate(users):
        where = f"{path}, user {user!r}"
        if user not in user_data:
            raise InputError(f"{where}: nothing in 'user_data'")
        x, y = _entries(user_data[user], where, x=list, y=list)
        if len(x) != len(y):
            raise InputError(f"{where}: {len(x)} x, but {len(y)} y")
        yield LeafUser(user, [groups[place]] if by_place else groups, x, y, where)


def _content(path: Path) -> Any:
    try:
        with path.open(encoding="utf-8") as file:
            return json.load(file)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"{path}, {place}: not JSON, or cut off: {error.msg}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not JSON") from error


def _entries(data: Any, where: str, **kinds: type) -> list[Any]:
    """Return the named entries of a JSON object, each a list or an object."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: not an object with {' and '.join(kinds)}")
    for key, kind in kinds.items():
        if key not in data:
            raise InputError(f"{where}: no {key!r}")
        if not isinstance(data[key], kind):
            raise InputError(f"{where}: {key!r} must be {'a list' if kind is list else 'an object'}")
    return [data[key] for key in kinds]
