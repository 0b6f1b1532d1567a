"""What a study runs on: a task object, a function of the seed, the place of one, or a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.config import (
    Config,
    UnknownKeyError,
    load_config,
    method_names,
    with_settings,
)
from asyncmanifold.configuration.own_tasks import place_title
from asyncmanifold.configuration.python_tasks import task_settings
from asyncmanifold.errors import InputError
from asyncmanifold.server.methods import COMPARED, METHODS, Method, named_method
from asyncmanifold.session.run import Run
from asyncmanifold.simulation.schedules import Schedule


def method_configs(
    task: Any,
    methods: Any,
    *,
    settings: Mapping[str, str],
    data: str | None,
    given: Mapping[str, LocalTraining | Schedule | Run | None],
) -> dict[str, Config]:
    """Return the configuration of each method on a task; ``settings`` are those of ``--set``.

    ``given`` has the sections that are not as the scenario says. A setting applies to the methods that have
    its key, and must fit at least one of them.
    """
    sections: dict[str, Any] = {name: section for name, section in given.items() if section is not None}
    plain: dict[str, Config] = {}
    for name, method in _named_methods(task, methods).items():
        config = _config(task, name, method, data)
        plain[config.method_name] = replace(config, **sections)
    return _with_fitting_settings(plain, settings)


def with_seed(config: Config, seed: int) -> Config:
    """Return the configuration with another seed."""
    return replace(config, run=replace(config.run, seed=seed))


def _named_methods(task: Any, methods: Any) -> dict[str, Method | str]:
    """Return the methods by name; the usual selection if none are given, and all of them for ``all``."""
    if methods is None or methods in ("all", ["all"]):
        known = method_names(task) if isinstance(task, str) else list(METHODS)
        methods = [name for name in known if methods or name in COMPARED or name not in METHODS]
    if isinstance(methods, Mapping):
        return dict(methods)
    if isinstance(methods, Method | str) or not isinstance(methods, Sequence):
        methods = [methods]
    named: dict[str, Method | str] = {}
    for method in methods:
        name = method if isinstance(method, str) else named_method(method)[0]
        if name in named:
            raise InputError(f"two methods are named {name!r}: give a dictionary of names and methods")
        named[name] = method
    if not named:
        raise InputError("no methods are given")
    return named


def _config(task: Any, name: str, method: Method | str, data: str | None) -> Config:
    if isinstance(task, str):
        config = load_config(task, method if isinstance(method, str) else None, data=data)
        return config if isinstance(method, str) else replace(config, method=method, method_name=name)
    if data is not None:
        raise InputError("data=… is for scenarios and their data files")
    settings = task_settings(task)
    place = getattr(settings, "place", None)
    return Config(
        scenario="task" if place is None else place_title(place),
        method_name=name,
        task=settings,
        method=named_method(method)[1],
        training=LocalTraining(),
        schedule=Schedule(),
        run=Run(),
    )


def _with_fitting_settings(configs: Mapping[str, Config], settings: Mapping[str, str]) -> dict[str, Config]:
    """Return configurations with the settings that each has a key for; one at least must have it."""
    changed: dict[str, Config] = {}
    refusals: list[tuple[str, InputError]] = []
    for name, config in configs.items():
        changed[name], refused = with_settings(config, settings)
        refusals += refused.items()
    keys = Counter(key for key, _ in refusals)
    for key, error in refusals:
        if not isinstance(error, UnknownKeyError) or keys[key] == len(configs):
            raise error
    return changed
