"""The candidates of a search and their scores on the clients' validation data; the test set is not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
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
"""By method: each value tried, with the mean and standard deviation of its score over seeds.

With several keys, ``value`` has the values of all of them, and ``values`` has them by key. After halving,
``updates`` is the length of the runs that were scored.
"""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with one value for each key of a search."""

    config: Config
    values: Mapping[str, str]

    def configs(self, seeds: Sequence[int], shorter: int = 1) -> dict[Key, Config]:
        """Return the configuration of the run with each seed, by method, values, length and seed.

        Runs may be shorter by a factor; only these have their length in their key.
        """
        updates = self.updates(shorter)
        config = replace(self.config, run=replace(self.config.run, updates=updates))
        length = () if shorter == 1 else (f"{updates}-updates",)
        name = (config.method_name, setting_name(self.values), *length)
        return {(*name, f"seed-{seed}"): with_seed(config, seed) for seed in seeds}

    def updates(self, shorter: int) -> int:
        """Return the length of runs that are shorter by a factor, rounded up."""
        return -(-self.config.run.updates // shorter)

    def point(self, runs: Iterable[FinishedRun]) -> dict[str, Any]:
        """Return the values and their score."""
        scores = [run.summary["validation"] for run in runs]
        known = [score for score in scores if score is not None]
        mean, deviation = mean_and_deviation(known) if known else (None, None)
        several = {"values": dict(self.values)} if len(self.values) > 1 else {}
        return {"value": ", ".join(self.values.values()), **several, "mean": mean, "sd": deviation}


def setting_name(values: Mapping[str, str]) -> str:
    """Return the name of a candidate's directory."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def make_candidates(config: Config, grid: Mapping[str, Sequence[str]]) -> list[Candidate]:
    """Return a candidate for every combination of the keys' values."""
    paths = {key: find_key(config, key) for key in grid}
    for (key, path), (other, longer) in permutations(paths.items(), 2):
        if longer[: len(path)] == path:
            what = "the same key as" if longer == path else "a part of"
            raise InputError(f"{other} is {what} {key}: they cannot be searched together")
    if empty := [key for key, values in grid.items() if not values]:
        raise InputError(f"no values are given for {empty[0]}")
    candidates = []
    for combination in product(*grid.values()):
        values, chosen = dict(zip(grid, combination, strict=True)), config
        for key, value in values.items():
            chosen = with_setting(chosen, key, value)
        candidates.append(Candidate(chosen, values))
    return candidates


def multiples(config: Config, key: str, factors: Sequence[float]) -> list[str]:
    """Return multiples of a method's current value, for a finer search around the result of a coarse one."""
    value = value_at(config, find_key(config, key))
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"--factors: {key} is {value!r} and has no multiples; use --values")
    return [f"{value * factor:g}" for factor in factors]


def best_point(
    curve: Sequence[Mapping[str, Any]], *, lower_is_better: bool = False
) -> Mapping[str, Any] | None:
    """Return the point with the best mean score, the first if several are equal; None if none has a score.

    After halving, only the longest runs are compared.
    """
    scored = [point for point in curve if point["mean"] is not None]
    longest = max((point.get("updates", 0) for point in scored), default=0)
    compared = [point for point in scored if point.get("updates", 0) == longest]
    return min(compared, key=lambda point: rank(point, lower_is_better=lower_is_better), default=None)


def rank(point: Mapping[str, Any], *, lower_is_better: bool) -> tuple[bool, float]:
    """Return what sorts points from the best mean score to the worst, and then those without a score."""
    mean = point["mean"]
    return (True, 0.0) if mean is None else (False, mean if lower_is_better else -mean)


def prefers_less(runs: Iterable[FinishedRun]) -> bool:
    """Return whether less of the metric that runs report is better."""
    return any(run.summary["metric"] in run.summary["lower_is_better"] for run in runs)


def values_of(point: Mapping[str, Any], keys: Sequence[str]) -> dict[str, str]:
    """Return a point's value of each key of a search."""
    return dict(point.get("values") or {keys[0]: point["value"]})


def keys_at_edge(
    curve: Sequence[Mapping[str, Any]], keys: Sequence[str], *, lower_is_better: bool = False
) -> list[str]:
    """Return the keys of which the best of at least three values is the smallest or the largest."""
    best = best_point(curve, lower_is_better=lower_is_better)
    if best is None:
        return []
    at_edge = []
    for key in keys:
        try:
            tried = sorted({float(values_of(point, keys)[key]) for point in curve})
            chosen = float(values_of(best, keys)[key])
        except ValueError:
            continue
        if len(tried) > 2 and chosen in (tried[0], tried[-1]):
            at_edge.append(key)
    return at_edge


def by_size(values: Iterable[str]) -> list[str]:
    """Return the distinct values: numbers in ascending order, anything else in the given order."""
    different = list(dict.fromkeys(values))
    try:
        return sorted(different, key=float)
    except ValueError:
        return different


def write_choice(
    out: Path, scenario: str, configs: Mapping[str, Config], best: Mapping[str, Mapping[str, str]]
) -> Path:
    """Write ``tuned.toml``: the scenario with the best values of each method; ``configs`` are by method."""
    tree, _ = read_scenario(scenario)
    tree.setdefault("scenario", scenario_title(scenario))
    for method, values in best.items():
        for key, value in values.items():
            section, *path = find_key(configs[method], key)
            table = tree.setdefault("methods", {}).setdefault(method, {})
            for name in path[:-1] if section == "method" else [section, *path[:-1]]:
                if not isinstance(table.get(name), dict):
                    table[name] = {"name": table[name]} if name in table else {}
                table = table[name]
            table[path[-1]] = parse_value(value)
    write_atomically(out / "tuned.toml", tomli_w.dumps(tree).encode())
    return out / "tuned.toml"
