"""Completion of commands, options, scenarios and methods in bash, zsh and fish, by argcomplete.

A shell asks at every press of the key, so nothing slow is imported: names are read from the package's files.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from asyncmanifold.errors import InputError

PACKAGE = Path(__file__).parents[1]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell's question and end the process, if argcomplete is installed."""
    if find_spec("argcomplete") is not None:
        import argcomplete

        completers = {"scenario": complete_scenarios, "method": complete_methods, "methods": complete_methods}
        for action in _all_actions(parser):
            if action.dest in completers:
                vars(action)["completer"] = completers[action.dest]  # where argcomplete looks for it
        argcomplete.autocomplete(parser)


def completion_script(shell: str) -> str:
    """Return the script that a shell runs at its start: ``eval "$(asyncmanifold completion bash)"``."""
    if find_spec("argcomplete") is None:
        raise InputError("completion needs the extra 'completion': pip install 'asyncmanifold[completion]'")
    from argcomplete.shell_integration import shellcode

    return str(shellcode(["asyncmanifold"], shell=shell))


def complete_scenarios(prefix: str, **_: Any) -> list[str]:
    """Return the presets and the TOML files in this folder that begin with ``prefix``.

    >>> complete_scenarios("digi")
    ['digits']
    """
    presets = [file.stem for file in (PACKAGE / "scenarios").glob("*.toml")]
    files = [str(file) for file in Path().glob(f"{prefix}*.toml")] if prefix else []
    return sorted(name for name in (*presets, *files) if name.startswith(prefix))


def complete_methods(prefix: str, **_: Any) -> list[str]:
    """Return the published methods that begin with the last name in ``prefix``, after those already given.

    >>> complete_methods("fedasync,asyncbezier-")
    ['fedasync,asyncbezier-ed']
    """
    *given, last = prefix.split(",")
    text = (PACKAGE / "server" / "methods.py").read_text(encoding="utf-8")
    known = re.findall(r'^    "([\w-]+)": Method\(', text, re.MULTILINE)
    return [",".join([*given, name]) for name in known if name.startswith(last) and name not in given]


def _all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _all_actions(command)
