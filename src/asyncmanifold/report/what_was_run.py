"""What was run, for the page: settings that differ, common ones, versions, machine, commands to repeat it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asyncmanifold.report.figure import escape
from asyncmanifold.report.finished_runs import FoundRuns, RunData

NOT_SETTINGS = frozenset(("asyncmanifold", "scenario", "method_name", "run.seed", "run.checkpoint_seconds"))
"""Entries of config.toml that are shown elsewhere, or that do not matter to a result."""


def settings_of(run: RunData) -> dict[str, str]:
    """Return a run's settings by their paths, such as ``training.local_lr``; a part's name is its own.

    >>> config = {"method": {"global_lr": 2.0, "penalty": {"name": "hinge", "slope": 10.0}}}
    >>> settings_of(RunData("", "", "", 0, {}, config))
    {'method.global_lr': '2', 'method.penalty': 'hinge', 'method.penalty.slope': '10'}
    """
    found = {key.removesuffix(".name"): value for key, value in _flat(run.config)}
    return {key: value for key, value in found.items() if key not in NOT_SETTINGS}


def common_and_own(runs: Sequence[RunData]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the settings that all runs share, and by method those that differ."""
    by_method = {run.method: settings_of(run) for run in runs}
    first, *others = by_method.values()
    common = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    own = {
        method: {key: value for key, value in found.items() if key not in common}
        for method, found in by_method.items()
    }
    return common, own


def usual_settings(own: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the values that more than half of the methods have, of settings that every method has.

    >>> usual_settings({"a": {"rate": "1"}, "b": {"rate": "1"}, "c": {"rate": "2", "buffer": "window"}})
    {'rate': '1'}
    """
    first, *others = own.values()
    found = {}
    for key in first:
        if all(key in other for other in others):
            value, count = Counter(settings[key] for settings in own.values()).most_common(1)[0]
            if 2 * count > len(own):
                found[key] = value
    return found


def run_section(found: FoundRuns) -> str:
    """Return the section of the page as HTML."""
    common, own = common_and_own(found.runs)
    parts = ["<section>\n<h2>What was run</h2>\n"]
    if any(own.values()):
        usual = usual_settings(own)
        rows = [("most methods", _words(usual))] if usual else []
        for method, settings in own.items():
            rows.append(
                (method, _words({key: word for key, word in settings.items() if usual.get(key) != word}))
            )
        parts.append("<h3>Settings that differ</h3>\n" + _two_columns(rows))
    parts.append("<details><summary>Settings that all share</summary>\n")
    parts.append(_two_columns(common.items()) + "</details>\n")
    parts.append("<h3>Versions and machine</h3>\n" + _two_columns(machine_rows(found.runs)))
    parts.append(f"<h3>To repeat it</h3>\n<pre>{escape(commands(found.runs))}</pre>\n")
    return "".join(parts) + "</section>\n"


def machine_rows(runs: Sequence[RunData]) -> list[tuple[str, str]]:
    """Return the versions, the machine and the time that the runs took, each value once."""
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        known: dict[str, str] = {"asyncmanifold": str(run.config.get("asyncmanifold", "unknown"))}
        arithmetic = run.summary.get("arithmetic")
        if isinstance(arithmetic, Mapping):
            known |= {"arithmetic" if key == "kind" else key: value for key, value in _flat(arithmetic)}
        if (parameters := run.summary.get("parameters")) is not None:
            known["parameters of the model"] = str(parameters)
        for key, value in known.items():
            rows.setdefault(key, {})[value] = None
    shown = [(key, " or ".join(values)) for key, values in rows.items()]
    seconds = [run.summary["wall_seconds"] for run in runs if run.summary.get("wall_seconds") is not None]
    if seconds:
        shown.append(("wall time of the runs", f"{sum(seconds):.0f} s altogether"))
    return shown


def commands(runs: Sequence[RunData]) -> str:
    """Return shell commands that repeat the runs from their configurations, and write their report."""
    if len(runs) == 1:
        return "asyncmanifold run config.toml --out again\nasyncmanifold report again"
    quoted = [shlex.quote(run.place) for run in runs]
    places = " \\\n    ".join(" ".join(quoted[start : start + 4]) for start in range(0, len(quoted), 4))
    return (
        f"for run in {places}; do\n"
        '  asyncmanifold run "$run/config.toml" --out "again/$run"\n'
        "done\nasyncmanifold report again"
    )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value of a nested table with its path."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(map(_word, value)) or "none"
        else:
            yield f"{prefix}{key}", _word(value)


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(entry for _, entry in _flat(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _words(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key.removeprefix('method.')} = {value}" for key, value in settings.items())


def _two_columns(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(value) or "–"}</td></tr>\n' for key, value in rows
    )
    return f'<div class="scroll"><table class="settings"><tbody>\n{body}</tbody></table></div>\n'
