"""A run's configuration: read from a scenario, overridden by key, written out to repeat the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, cast

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.own_tasks import full_place, is_place, place_title
from asyncmanifold.configuration.parts import PARTS, part_class, usual_part
from asyncmanifold.configuration.tables import (
    Tree,
    build,
    build_part,
    change,
    check_keys,
    parse_toml,
    parse_value,
    read_toml,
    suggestion,
    to_tree,
)
from asyncmanifold.errors import InputError
from asyncmanifold.server.methods import METHODS, Method
from asyncmanifold.session.directory import FINGERPRINT, MADE_BY
from asyncmanifold.session.run import Run
from asyncmanifold.simulation.schedules import Schedule
from asyncmanifold.tasks.task import Task, TaskSettings


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
            raise InputError(f"task: {error}") from error


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
    task: str | None = None,
) -> Config:
    """Return the configuration of one run.

    ``scenario`` is a preset's name or a TOML file. ``method`` is a published method, one that the scenario
    composes under ``[methods.NAME]``, or a TOML file with the parts of one; without it, the scenario's
    ``[method]`` is used if it has one. A section below a method, such as
    ``[methods.NAME.training]``, applies to that method alone. ``data`` is the task's data file; ``settings``
    are the key-value pairs of ``--set``. ``task`` is the place of an own task, instead of the scenario's.
    """
    tree, where = read_scenario(scenario)
    if task is not None:
        tree["task"] = full_place(task)
    name = tree.pop("scenario", scenario_title(scenario))
    composed = tree.pop("methods", {})
    own_method, own_name = tree.pop("method", None), tree.pop("method_name", "custom")
    if method is None and own_method is not None:
        method_name, tree["method"] = own_name, own_method
    else:
        method_name, overlay = _method_overlay(method or DEFAULT_METHOD, composed, where)
        for section in set(SECTIONS) & set(overlay):
            tree[section] = _merge_tables(tree.get(section, {}), overlay.pop(section))
        tree["method"] = _merge_tables(to_tree(METHODS.get(method_name, Method())), overlay)
    if seed is not None:
        tree.setdefault("run", {})["seed"] = seed
    config = _build_config(tree, name, method_name, where)
    if data is not None:
        if "data" not in {field.name for field in fields(cast(Any, config.task))}:
            raise InputError(f"scenario {name} takes no --data: its data comes with it")
        config = _with_value(config, ["task", "data"], data, "--data")
    config, refused = with_settings(config, settings or {})
    if refused:
        raise next(iter(refused.values()))
    return config


def with_settings(config: Config, settings: Mapping[str, str]) -> tuple[Config, dict[str, InputError]]:
    """Return the configuration with new values for keys, and why any of them was refused; order is free.

    Names of parts come first, so that a part's own settings find it. What is refused is tried again after the
    others: one of them may be what it needs.
    """
    left = sorted(settings, key=lambda key: key.split(".")[-1] not in PARTS)
    refused: dict[str, InputError] = {}
    while left:
        refused = {}
        for key in left:
            try:
                config = with_setting(config, key, settings[key])
            except InputError as error:
                refused[key] = error
        if len(refused) == len(left):
            break
        left = list(refused)
    return config, refused


def with_setting(config: Config, key: str, value: str) -> Config:
    """Return the configuration with a new value for a key; both are strings as given to ``--set``."""
    return _with_value(config, find_key(config, key), parse_value(value), f"--set {key}={value}")


def _with_value(config: Config, path: list[str], value: Any, where: str) -> Config:
    """Return the configuration with a new value at one path."""
    section, *steps = path
    current = getattr(config, section)
    tree: Tree = {steps[0]: to_tree(current).get(steps[0], {})}
    table: Any = tree
    for step in steps[:-1]:
        table = table[int(step)] if isinstance(table, list) else table.setdefault(step, {})
    table[steps[-1]] = value
    return replace(config, **{section: change(current, tree, f"{where}: {section}")})


def scenario_names() -> list[str]:
    """Return the names of the presets."""
    folder = resources.files("asyncmanifold") / "scenarios"
    return sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".toml"))


def method_names(scenario: str) -> list[str]:
    """Return the names of all published methods and of those that a scenario composes."""
    tree, _ = read_scenario(scenario)
    return _known_methods(tree.get("methods", {}))


def scenario_title(scenario: str) -> str:
    """Return the short name of a preset, of a TOML file or of an own task."""
    return place_title(scenario) if is_place(scenario) else Path(scenario).stem


def read_scenario(scenario: str) -> tuple[Tree, str]:
    """Return a scenario's tables and the name to use for it in messages.

    The place of an own task is a scenario too: that task, and defaults for everything else.
    """
    presets = scenario_names()
    if scenario in presets:
        where = f"{scenario}.toml"
        file = resources.files("asyncmanifold") / "scenarios" / where
        tree = parse_toml(file.read_text(encoding="utf-8"), where)
    elif scenario.endswith(".toml"):
        where, tree = scenario, read_toml(scenario)
        _find_beside(tree, Path(scenario).parent)
    elif is_place(scenario):
        where, tree = scenario, {"task": {"name": full_place(scenario)}}
    else:
        raise InputError(
            f"unknown scenario {scenario!r}: give a TOML file, your own task as module:function or "
            f"file.py:function, or one of {', '.join(presets)}"
        )
    tree.pop(MADE_BY, None)
    tree.pop(FINGERPRINT, None)
    check_keys(tree, (*SECTIONS, *LABELS, "methods"), where)
    return tree, where


def _find_beside(tree: Tree, folder: Path) -> None:
    """Make the path of an own task absolute: in a TOML file it is relative to that file."""
    task = tree.get("task")
    if isinstance(task, str) and is_place(task):
        tree["task"] = full_place(task, folder)
    elif isinstance(task, dict) and isinstance(name := task.get("name"), str) and is_place(name):
        tree["task"] = {**task, "name": full_place(name, folder)}


def config_tree(config: Config) -> Tree:
    """Return a configuration as TOML tables: a scenario that repeats the run."""
    return {name: to_tree(getattr(config, name)) for name in (*LABELS, *SECTIONS)}


class UnknownKeyError(InputError):
    """A key that a configuration does not have."""


def find_key(config: Config, key: str) -> list[str]:
    """Return the full path of a key, given by its name or by enough of its path to make it unique."""
    wanted = key.split(".")
    keys = list(_keys(config))
    if wanted in keys:
        return wanted
    found = [path for path in keys if path[-len(wanted) :] == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        choices = ", ".join(".".join(path) for path in found)
        raise InputError(f"--set {key}: could be any of {choices}: give one of these paths")
    if (absent := _absent_key(wanted, keys)) is not None:
        return absent
    if parts := _parts_with(wanted[-1]):
        raise UnknownKeyError(f"--set {key}: unknown key without {' or '.join(parts)}")
    names = sorted({path[-1] for path in keys})
    raise UnknownKeyError(f"--set {key}: unknown key{suggestion(wanted[-1], names)}")


def _absent_key(wanted: list[str], keys: list[list[str]]) -> list[str] | None:
    """Return the path of a key of a part that is not set, if it is given with the part's name."""
    *_, slot, name = ["", *wanted]
    home = next((path for path in keys if path[-1] == slot), None)
    if home is None or slot not in PARTS or (part := usual_part(slot)) is None:
        return None
    return [*home, name] if name in {field.name for field in fields(part_class(slot, part))} else None


def _parts_with(name: str) -> list[str]:
    """Return the choices of parts that have a key."""
    choices = ((slot, part) for slot, parts in PARTS.items() for part in parts)
    return [
        f"{slot}={part}"
        for slot, part in choices
        if name in {field.name for field in fields(part_class(slot, part))}
    ]


def value_at(config: Config, path: list[str]) -> Any:
    """Return the value at a key's path."""
    value: Any = config
    for step in path:
        value = value[int(step)] if isinstance(value, tuple) else getattr(value, step)
    return value


def _keys(config: Config) -> Iterator[list[str]]:
    """Yield the path of every key that the configuration has."""

    def walk(value: Any, path: list[str]) -> Iterator[list[str]]:
        for field in fields(value) if is_dataclass(value) else ():
            entry, inner = getattr(value, field.name), [*path, field.name]
            yield inner
            if is_dataclass(entry):
                yield from walk(entry, inner)
            for place, part in enumerate(entry if isinstance(entry, tuple) else ()):
                yield from walk(part, [*inner, str(place)])

    for section in SECTIONS:
        yield from walk(getattr(config, section), [section])


def _build_config(tree: Tree, scenario: str, method_name: str, where: str) -> Config:
    return Config(
        scenario=scenario,
        method_name=method_name,
        task=build_part("task", tree.get("task", "digits"), f"{where}: task"),
        method=build(Method, tree["method"], f"{where}: method"),
        training=build(LocalTraining, tree.get("training", {}), f"{where}: training"),
        schedule=build(Schedule, tree.get("schedule", {}), f"{where}: schedule"),
        run=build(Run, tree.get("run", {}), f"{where}: run"),
    )


def _method_overlay(method: str, composed: Tree, where: str) -> tuple[str, Tree]:
    """Return a method's name and the tables that change or compose it."""
    if method.endswith(".toml"):
        return Path(method).stem, read_toml(method)
    if method not in METHODS and method not in composed:
        raise InputError(
            f"unknown method {method!r} in {where}{suggestion(method, _known_methods(composed))}"
        )
    overlay = composed.get(method, {})
    if not isinstance(overlay, dict):
        raise InputError(f"{where}: methods.{method} must be a table")
    return method, dict(overlay)


def _known_methods(composed: Tree) -> list[str]:
    return [*METHODS, *(name for name in composed if name not in METHODS)]


def _merge_tables(tree: Tree, overlay: Tree) -> Tree:
    """Return ``tree`` with the keys of ``overlay``; a table without a name changes the existing part."""
    merged = dict(tree)
    for key, value in overlay.items():
        current = merged.get(key)
        if isinstance(value, dict) and "name" not in value and isinstance(current, dict):
            value = _merge_tables(current, value)
        merged[key] = value
    return merged
