"""The available scenarios, methods and parts."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_args

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.config import scenario_names
from asyncmanifold.configuration.keys import explain_keys
from asyncmanifold.configuration.parts import PARTS, part_class
from asyncmanifold.configuration.tables import to_tree
from asyncmanifold.server.memory_size import describe_memory
from asyncmanifold.server.method_notes import METHOD_NOTES, Group
from asyncmanifold.server.methods import METHODS
from asyncmanifold.session.run import Run
from asyncmanifold.simulation.schedules import Schedule

SECTIONS = {"training": LocalTraining, "schedule": Schedule, "run": Run}
"""The sections of a configuration that are no parts, and their classes."""


def catalogue() -> dict[str, Any]:
    """Return everything that a scenario or a method can name."""
    return {
        "scenarios": scenario_names(),
        "methods": {name: to_tree(method) for name, method in METHODS.items()},
        "notes": {
            name: vars(note) | {"memory": describe_memory(METHODS[name])}
            for name, note in METHOD_NOTES.items()
        },
        "parts": {
            key: {name: _parameters(part_class(key, name)) for name in choices}
            for key, choices in PARTS.items()
        },
        "keys": {name: {key.name: vars(key) for key in explain_keys(cls)} for name, cls in SECTIONS.items()},
    }


def print_catalogue() -> None:
    """Print the catalogue as tables."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(f"[bold]Scenarios[/bold]: {', '.join(scenario_names())}, or a TOML file\n")
    console.print(
        "[bold]Methods[/bold], and what they keep besides the model, for n clients and P parameters"
    )
    for group in get_args(Group):
        console.print(f"\n  [bold]{group}[/bold]")
        for name, note in METHOD_NOTES.items():
            if note.group == group:
                memory = describe_memory(METHODS[name])
                line = f"  {name:<22}{note.summary}" + (f" [{memory}]" if memory != "nothing" else "")
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print()
    table = Table("method", "made of", title="Their parts", title_justify="left")
    for name, method in METHODS.items():
        table.add_row(name, _composition(to_tree(method)))
    console.print(table)
    table = Table("key", "part", "parameters and defaults", title="Parts", title_justify="left")
    for key, choices in PARTS.items():
        for place, name in enumerate(choices):
            table.add_row("" if place else key, name, _format_values(_parameters(part_class(key, name))))
        if not choices:
            table.add_row(key, "–", "none but your own, see examples/own_*.py")
        table.add_section()
    console.print(table)
    table = Table("section", "key", "default", "meaning", title="Other keys", title_justify="left")
    for section, cls in SECTIONS.items():
        for place, known in enumerate(explain_keys(cls)):
            table.add_row(
                "" if place else section, known.name, known.default, escape(known.meaning.replace("``", ""))
            )
        table.add_section()
    console.print(table)


def _parameters(part: type[Any]) -> dict[str, Any]:
    return {field.name: "required" if field.default is MISSING else field.default for field in fields(part)}


def _composition(tree: dict[str, Any]) -> str:
    """Return the parts of a method that do something, gates and outgoing parts among them."""
    words = []
    for value in tree.values():
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict) or part["name"] in ("constant", "uniform", "fixed"):
                continue
            if part.get("decay") != 0.0:
                arguments = {key: given for key, given in part.items() if key != "name"}
                words.append(part["name"] + (f"({_format_values(arguments)})" if arguments else ""))
    return " × ".join(words)


def _format_values(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
