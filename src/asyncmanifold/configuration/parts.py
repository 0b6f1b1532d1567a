"""The classes that a configuration can name, by the key that holds them.

Add an entry to name a part of your own, for example ``PARTS["outgoing"]["clip"] = Clip``.
Scenarios and messages to Flower's nodes can then name it too. Tasks are given as strings, so that
each is imported only when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from asyncmanifold.configuration.own_tasks import OwnTask
from asyncmanifold.privacy.example_privacy import ExamplePrivacy
from asyncmanifold.server.named_parts import KINDS
from asyncmanifold.simulation.attacks import ATTACKS
from asyncmanifold.simulation.schedules import LATENCIES

TASKS: dict[str, type[Any] | str] = {
    "digits": "asyncmanifold.tasks.digits:Digits",
    "femnist": "asyncmanifold.tasks.femnist:Femnist",
    "shakespeare": "asyncmanifold.tasks.shakespeare:Shakespeare",
    "cxr8": "asyncmanifold.tasks.cxr8:Cxr8",
    "prototypes": "asyncmanifold.tasks.prototypes:Prototypes",
    "tree": "asyncmanifold.tasks.tree:TreeTask",
}

PARTS: dict[str, dict[str, Any]] = {
    "task": TASKS,
    **{stage: names for stage, (_, names) in KINDS.items()},
    "latency": LATENCIES,
    "example_privacy": {"dp-sgd": ExamplePrivacy},
    "attack": ATTACKS,
}


USUAL = {"averaging": "averaging", "adaptive_epochs": "adaptive-epochs"}
"""The parts that settings without a name belong to, where there are several."""


def usual_part(key: str) -> str | None:
    """Return the part that settings without a name belong to, if there is one."""
    choices = PARTS[key]
    return next(iter(choices)) if len(choices) == 1 else USUAL.get(key)


def part_class(key: str, name: str) -> type[Any]:
    """Return the class that ``name`` stands for under ``key``."""
    entry: type[Any] | str = PARTS[key][name]
    if isinstance(entry, type):
        return entry
    module, _, attribute = entry.partition(":")
    return getattr(import_module(module), attribute)  # type: ignore[no-any-return]


def part_name(cls: type[Any]) -> str | None:
    """Return the name of a class, or None if it has none."""
    if issubclass(cls, OwnTask):
        return cls.place
    place = f"{cls.__module__}:{cls.__name__}"
    for choices in PARTS.values():
        for name, entry in choices.items():
            if entry is cls or entry == place:
                return name
    return None
