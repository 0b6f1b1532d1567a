"""Search for the best values of keys, scored on the clients' validation data; the test set is not used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.config import Config
from asyncmanifold.errors import InputError
from asyncmanifold.experiments.compare import Methods, as_path, as_word, as_words
from asyncmanifold.experiments.given_tasks import method_configs
from asyncmanifold.experiments.grid_search import (
    Curves,
    best_point,
    make_candidates,
    multiples,
    prefers_less,
    setting_name,
    values_of,
    write_choice,
)
from asyncmanifold.experiments.halving import score_candidates
from asyncmanifold.experiments.many_runs import FinishedRun, Key, ManyRuns
from asyncmanifold.experiments.terminal_tables import as_text, html_search, search_notes, search_table
from asyncmanifold.files import write_json
from asyncmanifold.results import runs_frame
from asyncmanifold.session.run import Run
from asyncmanifold.simulation.schedules import Schedule

Keys = str | Sequence[str] | Mapping[str, Sequence[Any]]
VALUES = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0)


@dataclass(frozen=True, repr=False)
class Search:
    """The runs of a search; it prints as the table of scores, and a notebook shows it as one.

    Arguments:
        key: what was searched over; several keys are separated by commas.
        curves: by method, each value with the mean and deviation of its score over seeds.
        runs: the finished runs by (method, value, seed); shorter ones by (method, value, length, seed).
        failures: one line for each run that failed.
        choice: the scenario file with the best values, if one was written.

    >>> from asyncmanifold import Search
    >>> scores = [{"value": "1", "mean": 0.5, "sd": None}, {"value": "2", "mean": 0.7, "sd": None}]
    >>> Search("global_lr", {"fedasync": scores}, runs={}).best
    {'fedasync': '2'}
    """

    key: str
    curves: Curves
    runs: Mapping[Key, FinishedRun]
    failures: Sequence[str] = ()
    choice: Path | None = None

    @property
    def keys(self) -> list[str]:
        """The keys that were searched over."""
        return self.key.split(", ")

    @property
    def lower_is_better(self) -> bool:
        """Whether less of the reported metric is better."""
        return prefers_less(self.runs.values())

    @property
    def best(self) -> dict[str, str | None]:
        """The best value of each method, of all keys if there are several; None if none has a score."""
        return {method: None if point is None else point["value"] for method, point in self._best().items()}

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        """The best values of each method by key, as ``compare(settings=…)`` takes them."""
        found = self._best().items()
        return {method: {} if point is None else values_of(point, self.keys) for method, point in found}

    def _best(self) -> dict[str, Mapping[str, Any] | None]:
        lower = self.lower_is_better
        return {method: best_point(curve, lower_is_better=lower) for method, curve in self.curves.items()}

    def __repr__(self) -> str:
        return as_text(search_table(self), search_notes(self))

    def _repr_html_(self) -> str:
        return html_search(self)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each run: its method, its values, its seed and its scores."""
        points = [values_of(point, self.keys) for curve in self.curves.values() for point in curve]
        named = {setting_name(values): values for values in points}
        frame = runs_frame([run.summary for run in self.runs.values()])
        for place, key in enumerate(self.keys, 1):
            frame.insert(place, key, [named[name[1]][key] for name in self.runs])
        return frame


def tune(
    task: Any,
    methods: Methods = None,
    *,
    key: Keys = "global_lr",
    values: Sequence[Any] = VALUES,
    factors: Sequence[float] | None = None,
    halving: bool = False,
    seeds: Sequence[int] = (0,),
    training: LocalTraining | None = None,
    schedule: Schedule | None = None,
    run: Run | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    progress: bool | None = None,
    data: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Search:
    """Search for each method's best value of a key, or of several, on the clients' validation data.

    Arguments are those of ``compare``, and:

    Arguments:
        task: as in ``compare``; it must have validation data.
        methods: as in ``compare``.
        key: what to search over, by its name or its path; or a dictionary of keys and the values to try,
            whose combinations are all tried; or, with ``factors``, several keys.
        values: the values to try of a single key.
        factors: instead of values, multiples of each method's current value.
        halving: successive halving, for long runs: the best third of each method's values, rounded up, is run
            again three times as long, until three or fewer are left, which run in full. A key that acts only
            late in a run (``average_from``) cannot be judged in this way.
        seeds: each value runs with each of them.
        training: as in ``compare``.
        schedule: as in ``compare``.
        run: as in ``compare``.
        out: the directory for the runs and ``tune.json``, and ``tuned.toml`` if the task is a scenario.
        resume: as in ``compare``.
        workers: as in ``compare``.
        progress: as in ``compare``.
        data: as in ``compare``.
        settings: as in ``compare``.

    >>> import torch
    >>> from asyncmanifold import Run, Task, tune
    >>> data = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(5)]
    >>> task = Task(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, data, data[0], validation=data)
    >>> found = tune(task, "fedasync", values=[1, 2], run=Run(updates=4))
    >>> [point["value"] for point in found.curves["fedasync"]]
    ['1', '2']
    """
    many = ManyRuns(out=as_path(out), resume=resume, workers=workers, progress=progress, score="validation")
    given = {"training": training, "schedule": schedule, "run": run}
    plain = method_configs(task, methods, settings=as_words(settings), data=data, given=given)
    tried = {
        name: make_candidates(config, _grid(config, key, values, factors)) for name, config in plain.items()
    }
    if getattr(task, "validation", ...) is None:
        raise InputError("tune needs Task(validation=…): it scores on the clients' held-out examples")
    searched = ", ".join([key] if isinstance(key, str) else key)
    found = Search(searched, *score_candidates(tried, seeds, many, halving=halving))
    return found if many.out is None else _write(found, many.out, task, plain)


def _grid(
    config: Config, key: Keys, values: Sequence[Any], factors: Sequence[float] | None
) -> dict[str, list[str]]:
    """Return the values to try of each key, as ``--set`` would have them."""
    if isinstance(key, Mapping):
        if factors:
            raise InputError("factors are instead of values: give the keys without values")
        return {name: [as_word(value) for value in tried] for name, tried in key.items()}
    names = [key] if isinstance(key, str) else list(key)
    if factors:
        return {name: multiples(config, name, factors) for name in names}
    if len(names) != 1:
        raise InputError(f"{', '.join(names) or 'no key'}: give each key its own values, or factors for all")
    return {names[0]: [as_word(value) for value in values]}


def _write(found: Search, out: Path, task: Any, configs: Mapping[str, Config]) -> Search:
    """Write ``tune.json`` and, for a scenario, ``tuned.toml``."""
    scenario = next(iter(configs.values())).scenario
    write_json(out / "tune.json", {"scenario": scenario, "key": found.key, "methods": found.curves})
    if not isinstance(task, str):
        return found
    return replace(found, choice=write_choice(out, task, configs, found.settings))
