"""A run's configuration: frozen dataclasses, read from and written to TOML, validated on the way.

A configuration is a tree of tables. A *part* (a correction, a latency model, a task …) is a table with
the ``name`` of a class and its hyper-parameters, or just the name.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from asyncmanifold.client.training import LocalTraining
from asyncmanifold.geometry.embeddings import EMBEDDINGS
from asyncmanifold.server.averaging import Averaging
from asyncmanifold.server.buffer import BUFFERS
from asyncmanifold.server.corrections import CORRECTIONS
from asyncmanifold.server.methods import METHODS, Method
from asyncmanifold.server.penalties import PENALTIES, STALENESS, AdaptiveEpochs
from asyncmanifold.simulation.engine import Run
from asyncmanifold.simulation.schedules import LATENCIES, Schedule
from asyncmanifold.tasks.cxr8 import Cxr8
from asyncmanifold.tasks.digits import Digits
from asyncmanifold.tasks.femnist import Femnist
from asyncmanifold.tasks.shakespeare import Shakespeare
from asyncmanifold.tasks.task import Task, TaskSettings

Tree = dict[str, Any]

PARTS: dict[str, Mapping[str, type[Any]]] = {
    "task": {"digits": Digits, "femnist": Femnist, "shakespeare": Shakespeare, "cxr8": Cxr8},
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


class ConfigError(ValueError):
    """A configuration that cannot be run; one line says what, where, and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that determines a run."""

    scenario: str
    method_name: str
    task: TaskSettings
    method: Method
    training: LocalTraining
    schedule: Schedule
    run: Run

    def build_task(self) -> Task:
        """Return the task, with its data and model."""
        try:
            return self.task.build(self.run.seed)
        except ValueError as error:
            raise ConfigError(f"task: {error}") from error


SECTIONS = ("task", "method", "training", "schedule", "run")
LABELS = ("scenario", "method_name")
DEFAULT_METHOD = "asyncbezier"


def load_config(
    scenario: str,
    method: str | None = None,
    *,
    seed: int | None = None,
    data: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Config:
    """Return the configuration of one run.

    ``scenario`` is a preset's name or a TOML file. ``method`` is a published method, one that the scenario
    composes under ``[methods.NAME]``, or a TOML file with the parts of one; without it, the scenario's
    ``[method]`` is used if it has one. What ``[methods.NAME.training]`` or another section below a method
    says holds for that method alone. ``data`` is the task's data file; ``settings`` are those of ``--set``.
    """
    tree, where = read_scenario(scenario)
    name = tree.pop("scenario", Path(scenario).stem)
    composed = tree.pop("methods", {})
    own_method, own_name = tree.pop("method", None), tree.pop("method_name", "custom")
    if method is None and own_method is not None:
        method_name, tree["method"] = own_name, own_method
    else:
        method_name, overlay = _method_overlay(method or DEFAULT_METHOD, composed, where)
        for section in set(SECTIONS) & set(overlay):
            tree[section] = _overlaid(tree.get(section, {}), overlay.pop(section))
        tree["method"] = _overlaid(to_tree(METHODS.get(method_name, Method())), overlay)
    if seed is not None:
        tree.setdefault("run", {})["seed"] = seed
    config = _build_config(tree, name, method_name, where)
    if data is not None:
        if "data" not in {field.name for field in fields(cast(Any, config.task))}:
            raise ConfigError(f"scenario {name} takes no --data: its data comes with it")
        config = _with_value(config, ["task", "data"], data, "--data")
    for key, value in (settings or {}).items():
        config = with_setting(config, key, value)
    return config


def with_setting(config: Config, key: str, value: str) -> Config:
    """Return a configuration with another value for a key, both given as for ``--set``."""
    return _with_value(config, find_key(config, key), parse_value(value), f"--set {key}={value}")


def _with_value(config: Config, path: list[str], value: Any, where: str) -> Config:
    """Return a configuration with another value at one place."""
    table = tree = config_tree(config)
    for step in path[:-1]:
        table = table[step]
    table[path[-1]] = value
    return _build_config(tree, config.scenario, config.method_name, where)


def scenario_names() -> list[str]:
    """Return the names of the presets."""
    folder = resources.files("asyncmanifold") / "scenarios"
    return sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".toml"))


def method_names(scenario: str) -> list[str]:
    """Return every published method and those that a scenario composes."""
    tree, _ = read_scenario(scenario)
    return _known_methods(tree.get("methods", {}))


def read_scenario(scenario: str) -> tuple[Tree, str]:
    """Return a scenario's tables and the name to use for it in messages."""
    if scenario in scenario_names():
        file = resources.files("asyncmanifold") / "scenarios" / f"{scenario}.toml"
        return _parse_toml(file.read_text(encoding="utf-8"), f"{scenario}.toml"), f"{scenario}.toml"
    if not scenario.endswith(".toml"):
        raise ConfigError(
            f"unknown scenario {scenario!r}: give a TOML file or one of {', '.join(scenario_names())}"
        )
    tree = _read_toml(scenario)
    _check_keys(tree, (*SECTIONS, *LABELS, "methods"), scenario)
    return tree, scenario


def config_tree(config: Config) -> Tree:
    """Return a configuration as tables: a scenario that repeats the run."""
    return {name: to_tree(getattr(config, name)) for name in (*LABELS, *SECTIONS)}


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


def find_key(config: Config, key: str) -> list[str]:
    """Return the path of a key given by its last name, or by as much of its path as makes it unique."""
    wanted = key.split(".")
    keys = list(_keys(config))
    if wanted in keys:
        return wanted
    found = [path for path in keys if path[-len(wanted) :] == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        choices = ", ".join(".".join(path) for path in found)
        raise ConfigError(f"--set {key}: could be any of {choices}")
    names = sorted({path[-1] for path in keys})
    raise ConfigError(f"--set {key}: unknown key{_suggestion(wanted[-1], names)}")


def _keys(config: Config) -> Iterator[list[str]]:
    """Yield the path of every key that the configuration has."""

    def walk(value: Any, path: list[str]) -> Iterator[list[str]]:
        for field in fields(value):
            entry = getattr(value, field.name)
            yield [*path, field.name]
            if is_dataclass(entry):
                yield from walk(entry, [*path, field.name])

    for section in SECTIONS:
        yield from walk(getattr(config, section), [section])


def _build_config(tree: Tree, scenario: str, method_name: str, where: str) -> Config:
    return Config(
        scenario=scenario,
        method_name=method_name,
        task=_build_part("task", tree.get("task", "digits"), f"{where}: task"),
        method=_build(Method, tree["method"], f"{where}: method"),
        training=_build(LocalTraining, tree.get("training", {}), f"{where}: training"),
        schedule=_build(Schedule, tree.get("schedule", {}), f"{where}: schedule"),
        run=_build(Run, tree.get("run", {}), f"{where}: run"),
    )


def _method_overlay(method: str, composed: Tree, where: str) -> tuple[str, Tree]:
    """Return a method's name and the tables that change or compose it."""
    if method.endswith(".toml"):
        return Path(method).stem, _read_toml(method)
    if method not in METHODS and method not in composed:
        raise ConfigError(
            f"unknown method {method!r} in {where}{_suggestion(method, _known_methods(composed))}"
        )
    overlay = composed.get(method, {})
    if not isinstance(overlay, dict):
        raise ConfigError(f"{where}: methods.{method} must be a table")
    return method, dict(overlay)


def _known_methods(composed: Tree) -> list[str]:
    return [*METHODS, *(name for name in composed if name not in METHODS)]


def _overlaid(tree: Tree, overlay: Tree) -> Tree:
    """Return ``tree`` with the keys of ``overlay``; a table without a name changes the part there."""
    merged = dict(tree)
    for key, value in overlay.items():
        current = merged.get(key)
        if isinstance(value, dict) and "name" not in value and isinstance(current, dict):
            value = _overlaid(current, value)
        merged[key] = value
    return merged


def _build(cls: type[Any], table: Any, where: str) -> Any:
    """Return an instance of a dataclass made from a table."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    _check_keys(table, names, where)
    values = {name: _convert(name, value, hints[name], f"{where}.{name}") for name, value in table.items()}
    required = [
        field.name
        for field in fields(cls)
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in values
    ]
    if required:
        raise ConfigError(f"{where}: {cls.__name__} needs {', '.join(required)}")
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _build_part(key: str, value: Any, where: str) -> Any:
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a name or a table")
    choices = PARTS[key]
    name = table.get("name", next(iter(choices)) if len(choices) == 1 else None)
    if not isinstance(name, str) or name not in choices:
        said = "needs a name" if name is None else f"has no part {name!r}"
        raise ConfigError(f"{where} {said}: allowed are {', '.join(choices)}")
    return _build(choices[name], {k: v for k, v in table.items() if k != "name"}, where)


def _convert(key: str, value: Any, hint: Any, where: str) -> Any:
    """Return a TOML value as the type that a field declares."""
    if value == "none" and hint is not str:
        if NoneType in get_args(hint):
            return None
        raise ConfigError(f"{where} must have a value")
    if key in PARTS:
        return _build_part(key, value, where)
    if get_origin(hint) in (Union, UnionType):
        hint = next(choice for choice in get_args(hint) if choice is not NoneType)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            allowed = ", ".join(repr(choice) for choice in get_args(hint))
            raise ConfigError(f"{where} = {value!r}: must be one of {allowed}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ConfigError(f"{where} = {value!r}: must be {_TYPE_WORDS.get(hint, hint.__name__)}")
    return value


_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _check_keys(table: Tree, allowed: list[str] | tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise ConfigError(f"{where}: unknown key {key!r}{_suggestion(key, list(allowed))}")


def _suggestion(word: str, choices: list[str]) -> str:
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


def _read_toml(path: str) -> Tree:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a UTF-8 text file") from error
    return _parse_toml(text, path)


def _parse_toml(text: str, where: str) -> Tree:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at line {max(1, len(text.splitlines()))}, the end"
        raise ConfigError(f"{where}: {error}".replace("at end of document", end)) from error
