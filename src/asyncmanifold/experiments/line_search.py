"""A line search over one key, scored on the clients' validation data; the test set is not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from asyncmanifold.configuration.config import (
    Config,
    find_key,
    read_scenario,
    scenario_title,
    value_at,
    with_setting,
)
from asyncmanifold.configuration.tables import parse_value
from asyncmanifold.errors import InputError
from asyncmanifold.experiments.given_tasks import with_seed
from asyncmanifold.experiments.many_runs import FinishedRun, Key
from asyncmanifold.files import write_atomically
from asyncmanifold.session.summary import mean_and_deviation

Curves = dict[str, list[dict[str, Any]]]
"""By method: each value tried, with the mean and standard deviation of its score over seeds."""


def multiples(config: Config, key: str, factors: Sequence[float]) -> list[str]:
    """Return multiples of a method's current value, for a finer search around the result of a coarse one."""
    value = value_at(config, find_key(config, key))
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"--factors: {key} is {value!r} and has no multiples; use --values")
    return [f"{value * factor:g}" for factor in factors]


def search_configs(
    config: Config, key: str, values: Sequence[str], seeds: Sequence[int]
) -> dict[Key, Config]:
    """Return the configuration of every run of a method's search, by method, value and seed."""
    configs: dict[Key, Config] = {}
    for value in values:
        chosen = with_setting(config, key, value)
        for seed in seeds:
            name = (config.method_name, f"{key}={value}", f"seed-{seed}")
            configs[name] = with_seed(chosen, seed)
    return configs


def score_curves(runs: Mapping[Key, FinishedRun]) -> Curves:
    """Return each method's scores, value by value in the order tried."""
    scores: dict[tuple[str, str], list[float]] = {}
    for (method, setting, _), run in runs.items():
        found = scores.setdefault((method, setting.partition("=")[2]), [])
        if run.summary["validation"] is not None:
            found.append(run.summary["validation"])
    curves: Curves = {}
    for (method, value), found in scores.items():
        mean, deviation = mean_and_deviation(found) if found else (None, None)
        curves.setdefault(method, []).append({"value": value, "mean": mean, "sd": deviation})
    return curves


def best_value(curve: Sequence[Mapping[str, Any]], *, lower_is_better: bool = False) -> str | None:
    """Return the value with the best mean score, the first if several are equal; None if none has a score."""
    scored = [point for point in curve if point["mean"] is not None]
    if not scored:
        return None
    choose = min if lower_is_better else max
    return str(choose(scored, key=lambda point: float(point["mean"]))["value"])


def is_at_edge(curve: Sequence[Mapping[str, Any]], *, lower_is_better: bool = False) -> bool:
    """Return whether the best of at least three values is the smallest or the largest of them."""
    best = best_value(curve, lower_is_better=lower_is_better)
    try:
        numbers = sorted(float(point["value"]) for point in curve)
    except ValueError:
        return False
    return len(numbers) > 2 and best is not None and float(best) in (numbers[0], numbers[-1])


def by_size(values: Iterable[str]) -> list[str]:
    """Return the distinct values: numbers in ascending order, anything else in the given order."""
    different = list(dict.fromkeys(values))
    try:
        return sorted(different, key=float)
    except ValueError:
        return different


def write_choice(
    out: Path, scenario: str, key: str, configs: Mapping[Key, Config], best: Mapping[str, str | None]
) -> Path:
    """Write ``tuned.toml``: the scenario with each method's best value."""
    tree, _ = read_scenario(scenario)
    tree.setdefault("scenario", scenario_title(scenario))
    for method, value in best.items():
        if value is None:
            continue
        config = next(config for (name, *_), config in configs.items() if name == method)
        section, *path = find_key(config, key)
        table = tree.setdefault("methods", {}).setdefault(method, {})
        for name in path[:-1] if section == "method" else [section, *path[:-1]]:
            if not isinstance(table.get(name), dict):
                table[name] = {"name": table[name]} if name in table else {}
            table = table[name]
        table[path[-1]] = parse_value(value)
    write_atomically(out / "tuned.toml", tomli_w.dumps(tree).encode())
    return out / "tuned.toml"
