"""Write the pages that the code itself tells: methods, configuration keys, the public names, results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

import asyncmanifold
from asyncmanifold import LocalTraining, Method, Run, Schedule, flower
from asyncmanifold.configuration.keys import explain_keys
from asyncmanifold.configuration.parts import PARTS, part_class
from asyncmanifold.configuration.tables import to_tree
from asyncmanifold.server.memory_size import describe_memory
from asyncmanifold.server.method_notes import METHOD_NOTES, MethodNote
from asyncmanifold.server.methods import METHODS

ROOT = Path(__file__).parent.parent
SECTIONS = {"method": Method, "training": LocalTraining, "schedule": Schedule, "run": Run}


def write_pages(folder: Path) -> None:
    """Write all generated pages into a folder, and nothing else there."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "methods").mkdir(parents=True)
    for name, method in METHODS.items():
        (folder / "methods" / f"{name}.md").write_text("\n".join(method_page(name, method)) + "\n")
    (folder / "methods.md").write_text("\n".join(methods_page()) + "\n")
    (folder / "configuration.md").write_text("\n".join(configuration_page()) + "\n")
    (folder / "api.md").write_text("\n".join(api_page()) + "\n")
    shutil.copy(ROOT / "CONTRIBUTING.md", folder / "contributing.md")
    shutil.copy(ROOT / "CHANGELOG.md", folder / "changelog.md")
    no_pages = shutil.ignore_patterns("*.json", "*.toml", "*.py", "*.sh")
    shutil.copytree(ROOT / "results", folder / "results", ignore=no_pages)


def methods_page() -> Iterator[str]:
    """Yield the page that lists all methods by group."""
    yield from ("# Methods", "")
    yield "Every published method is one line of parts. v is the offset that a client sends, d the drift of"
    yield "the model since the client's base version, τ the staleness, w the client's share of all examples."
    for group in dict.fromkeys(note.group for note in METHOD_NOTES.values()):
        yield from ("", f"## {group.capitalize()}", "")
        yield "| method | what it does |"
        yield "|---|---|"
        for name, note in METHOD_NOTES.items():
            if note.group == group:
                yield f"| [`{name}`](methods/{name}.md) | {note.summary} |"
    yield from ("", "```{toctree}", ":hidden:", "")
    yield from (f"methods/{name}" for name in METHODS)
    yield "```"


def method_page(name: str, method: Method) -> Iterator[str]:
    """Yield the page of one method."""
    note = METHOD_NOTES[name]
    yield from (f"# `{name}`", "", f"{note.summary[0].upper()}{note.summary[1:]}.", "", f"> {note.rule}", "")
    yield from facts_table(method, note)
    tree = {key: value for key, value in to_tree(method).items() if value != to_tree(Method()).get(key)}
    written = tomli_w.dumps({"methods": {f"like-{name}": tree}}).rstrip()
    yield from ("", "The same method, written out:", "", "```toml", written, "```")
    for key in tree:
        parts = getattr(method, key)
        for part in parts if isinstance(parts, tuple) else (parts,):
            if type(part).__doc__ and hasattr(type(part), "__dataclass_fields__"):
                yield from ("", f"## {key}: {type(part).__name__}", "", "```{eval-rst}")
                yield from (f".. autoclass:: {type(part).__module__}.{type(part).__name__}", "   :noindex:")
                yield "```"


def facts_table(method: Method, note: MethodNote) -> Iterator[str]:
    """Yield what a method sends, keeps and is published as."""
    yield "| | |"
    yield "|---|---|"
    yield f"| group | {note.group} |"
    yield "| sent to a client, per job | 4 P bytes, for P parameters |"
    yield f"| sent back, per update | {4 * method.embedding.points} P bytes |"
    yield f"| kept by the server besides the model, in numbers | {describe_memory(method)} |"
    yield f"| reference | {note.reference} |"
    if note.differs:
        yield f"| where this library differs | {note.differs} |"


def configuration_page() -> Iterator[str]:
    """Yield every key of every section and part."""
    yield from ("# Configuration", "")
    yield "A scenario is a TOML file with the sections `[task]`, `[method]` or `[methods.NAME]`,"
    yield "`[training]`, `[schedule]` and `[run]`. `--set key=value` reaches every key by its name, or by its"
    yield "path where a name alone could mean several places (`--set averaging.average_from=10`). A *part* is"
    yield 'a name (`correction = "orthodc"`) or a table with a name and its keys'
    yield '(`correction = { name = "orthodc", threshold = 1.0 }`).'
    for section, cls in SECTIONS.items():
        yield from ("", f"## `[{section}]`", "")
        yield from keys_table(cls)
    for key, choices in PARTS.items():
        if not choices:
            continue
        yield from ("", f"## `{key}`", "")
        for name in choices:
            cls = part_class(key, name)
            summary = " ".join((cls.__doc__ or "").strip().partition("\n\n")[0].split())
            yield from ("", f'### `{key} = "{name}"`', "", _plain(summary), "")
            yield from keys_table(cls)


def keys_table(cls: type[Any]) -> Iterator[str]:
    """Yield the keys of one class as a table; nothing if it has none."""
    keys = explain_keys(cls)
    if not keys:
        return
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key in keys:
        yield f"| `{key.name}` | {_plain(key.type)} | {_plain(key.default)} | {_plain(key.meaning)} |"


def _plain(text: str) -> str:
    """Return docstring text as Markdown for a cell of a table."""
    return text.replace("``", "`").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def api_page() -> Iterator[str]:
    """Yield every public name, with its docstring."""
    yield from ("# Python API", "", "Everything below is imported from `asyncmanifold`.", "")
    for name in asyncmanifold.__all__:
        if name != "__version__":
            yield from _documented(f"asyncmanifold.{name}", getattr(asyncmanifold, name))
    yield from ("", "## On Flower", "", "Imported from `asyncmanifold.flower` (extra `flower`).", "")
    for name in flower.__all__:
        yield from _documented(f"asyncmanifold.flower.{name}", getattr(flower, name))


def _documented(path: str, thing: Any) -> Iterator[str]:
    if not callable(thing):
        yield from ("```{eval-rst}", f".. py:data:: {path}", "")
        yield from (f"   {'Methods' if path.endswith('METHODS') else 'Parts'} by name.", "```", "")
        return
    kind = "class" if isinstance(thing, type) else "function"
    if isinstance(thing, type) and issubclass(thing, BaseException):
        kind = "exception"
    yield from ("```{eval-rst}", f".. auto{kind}:: {path}")
    if kind == "class":
        yield "   :members:"
    yield from ("```", "")
