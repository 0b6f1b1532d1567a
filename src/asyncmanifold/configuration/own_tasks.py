"""Tasks of a person's own, by the place of a function: ``module:function`` or ``path/to/file.py:function``.

The function takes the seed, and settings with their defaults, and returns a ``Task``. Its settings become
configuration keys, so that TOML files, ``--set`` and run directories treat it like a task of the package.
Only a command line, a scenario or Python names such a place; no message of Flower's does.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection
from dataclasses import field, fields, make_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from asyncmanifold.errors import InputError
from asyncmanifold.tasks.task import Task

Build = Callable[..., Task]
CHECKED = (int, float, bool, str)
"""The types of settings that are checked; a setting with any other annotation takes any value."""
SEED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_functions: dict[str, Build] = {}


class OwnTask:
    """The settings of a person's own task: a dataclass with a field for each setting of its function."""

    place: ClassVar[str]

    def build(self, seed: int) -> Task:
        """Return the task."""
        task = find_function(self.place)(seed, **self._settings())
        if not isinstance(task, Task):
            raise InputError(f"{self.place} must return a Task, not {type(task).__name__}")
        return task

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_task, (self.place, self._settings())

    def _settings(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]


def is_place(name: str) -> bool:
    """Return whether a name is a function's place, not one of the package's tasks or scenarios."""
    module, _, function = name.rpartition(":")
    return bool(module) and function.isidentifier()


def full_place(place: str, folder: Path | None = None) -> str:
    """Return a place with an absolute path, if it is in a file; a relative path is one below ``folder``."""
    module, _, function = place.rpartition(":")
    if not module.endswith(".py"):
        return place
    return f"{((folder or Path.cwd()) / Path(module).expanduser()).resolve()}:{function}"


def place_title(place: str) -> str:
    """Return a short name of a place, for titles and directories: that of its file or module."""
    module = place.rpartition(":")[0]
    return Path(module).stem if module.endswith(".py") else module.rpartition(".")[2]


def own_task_class(place: str, given: Collection[str] = ()) -> type[OwnTask]:
    """Return the settings class of the function at a place.

    ``given`` are the settings that a user gives; a function with ``**settings`` takes any of them.
    """
    return _settings_class(full_place(place), tuple(given))


@cache
def _settings_class(place: str, given: tuple[str, ...]) -> type[OwnTask]:
    """Return one class for equal arguments, so that equal settings are equal."""
    function = find_function(place)
    parameters = list(inspect.signature(function).parameters.values())
    settings = parameters[1:]
    if not parameters or parameters[0].kind not in SEED:
        raise InputError(f"{place} must take the seed first, and then its settings by name")
    made: list[Any] = []
    for parameter in settings:
        if parameter.kind is parameter.VAR_POSITIONAL or parameter.name == "name":
            raise InputError(f"{place}: {parameter} cannot be a setting of a task")
        if parameter.kind is not parameter.VAR_KEYWORD and _is_plain(parameter.default):
            made.append(_field(function, parameter))
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in settings):
        known = {name for name, *_ in made}
        made += [(name, Any) for name in given if name not in known]
    return make_dataclass(
        function.__name__, made, bases=(OwnTask,), frozen=True, kw_only=True, namespace={"place": place}
    )


def restore_task(place: str, settings: dict[str, Any]) -> OwnTask:
    """Return the settings of an own task, in another process."""
    return own_task_class(place, settings)(**settings)


def find_function(place: str) -> Build:
    """Import and return the function at a place; any problem is an ``InputError`` of one line."""
    if place in _functions:
        return _functions[place]
    module, _, name = place.rpartition(":")
    holder = _import_file(place, Path(module)) if module.endswith(".py") else _import(place, module)
    found = getattr(holder, name, None)
    if found is None:
        raise InputError(f"task {place!r}: {module} has no function {name!r}")
    if not callable(found):
        raise InputError(f"task {place!r}: {name!r} is not a function but a {type(found).__name__}")
    _functions[place] = found
    return found  # type: ignore[no-any-return]


def enter_function(function: Build) -> str | None:
    """Return the place from which a function can be imported again, or None if there is none.

    The function itself is remembered, so that this process does not import its file a second time.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or not name.isidentifier() or not str(file).endswith(".py"):
        return None  # from a notebook, or inside another function
    place = full_place(f"{file}:{name}") if "." not in str(module) else f"{module}:{name}"
    if getattr(sys.modules[str(module)], name, None) is not function:
        return None
    _functions[place] = function
    return place


def _is_plain(default: Any) -> bool:
    """Return whether a file can hold a setting; the function alone knows the default of any other."""
    return default is inspect.Parameter.empty or isinstance(default, (*CHECKED, list, dict, type(None)))


def _field(function: Build, parameter: inspect.Parameter) -> tuple[Any, ...]:
    try:
        hint = get_type_hints(function).get(parameter.name, Any)
    except (NameError, TypeError):
        hint = Any
    if hint not in CHECKED:
        hint = Any
    default = parameter.default
    if default is parameter.empty:
        return parameter.name, hint
    kind = hint | None if default is None and hint is not Any else hint
    if isinstance(default, list | dict):
        return parameter.name, kind, field(default_factory=lambda: default)
    return parameter.name, kind, field(default=default)


def _import_file(place: str, file: Path) -> Any:
    """Import a file by its name, with its folder on the path, so that worker processes can do the same."""
    if not file.is_file():
        raise InputError(f"task {place!r}: no such file")
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _import(place, file.stem)
    if (found := getattr(module, "__file__", None)) is None or not file.samefile(found):
        raise InputError(
            f"task {place!r}: there is another module {file.stem!r} ({found or 'of Python'}): rename the file"
        )
    return module


def _import(place: str, module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise InputError(f"task {place!r}: no module named {error.name!r}") from error
        raise InputError(f"task {place!r}: {error}") from error
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(f"task {place!r} cannot be imported: {type(error).__name__}: {reason}") from error
