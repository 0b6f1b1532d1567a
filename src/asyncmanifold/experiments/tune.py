"""Search for the best value of one key, scored on the clients' validation data; the test set is not used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.config import Config
from asyncmanifold.errors import InputError
from asyncmanifold.experiments.compare import Methods, as_word, as_words, run_study
from asyncmanifold.experiments.given_tasks import method_configs
from asyncmanifold.experiments.line_search import (
    Curves,
    best_value,
    multiples,
    score_curves,
    search_configs,
    write_choice,
)
from asyncmanifold.experiments.many_runs import FinishedRun, Key
from asyncmanifold.experiments.terminal_tables import as_text, html_search, search_notes, search_table
from asyncmanifold.files import write_json
from asyncmanifold.results import runs_frame
from asyncmanifold.session.run import Run
from asyncmanifold.simulation.schedules import Schedule

VALUES = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0)


@dataclass(frozen=True, repr=False)
class Search:
    """The runs of a search; it prints as the table of scores, and a notebook shows it as one.

    Arguments:
        key: what was searched over.
        curves: by method, each value with the mean and deviation of its score over seeds.
        runs: the finished runs by (method, value, seed).
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
    def lower_is_better(self) -> bool:
        """Whether less of the reported metric is better."""
        summaries = [run.summary for run in self.runs.values()]
        return any(summary["metric"] in summary["lower_is_better"] for summary in summaries)

    @property
    def best(self) -> dict[str, str | None]:
        """The best value of each method; None if none has a score."""
        return {
            method: best_value(curve, lower_is_better=self.lower_is_better)
            for method, curve in self.curves.items()
        }

    def __repr__(self) -> str:
        return as_text(search_table(self), search_notes(self))

    def _repr_html_(self) -> str:
        return html_search(self)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each run: its method, its value, its seed and its scores."""
        values = [key[1].partition("=")[2] for key in self.runs]
        frame = runs_frame([run.summary for run in self.runs.values()])
        frame.insert(1, self.key, values)
        return frame


def tune(
    task: Any,
    methods: Methods = None,
    *,
    key: str = "global_lr",
    values: Sequence[Any] = VALUES,
    factors: Sequence[float] | None = None,
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
    """Search for each method's best value of a key on the clients' validation data.

    Arguments are those of ``compare``, and:

    Arguments:
        task: as in ``compare``; it must have validation data.
        methods: as in ``compare``.
        key: what to search over, by its name or its path.
        values: the values to try.
        factors: instead of values, multiples of each method's current value.
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
    plain = method_configs(
        task,
        methods,
        settings=as_words(settings),
        data=data,
        training=training,
        schedule=schedule,
        run=run,
    )
    configs: dict[Key, Config] = {}
    for config in plain.values():
        tried = multiples(config, key, factors) if factors else [as_word(value) for value in values]
        configs |= search_configs(config, key, tried, seeds)
    if getattr(task, "validation", ...) is None:
        raise InputError("tune needs Task(validation=…): it scores on the clients' held-out examples")
    runs, failures = run_study(
        configs, out, resume=resume, workers=workers, progress=progress, score="validation"
    )
    found = Search(key, score_curves(runs), runs, failures)
    return found if out is None else _write(found, Path(out), task, configs)


def _write(found: Search, out: Path, task: Any, configs: Mapping[Key, Config]) -> Search:
    """Write ``tune.json`` and, for a scenario, ``tuned.toml``."""
    scenario = next(iter(configs.values())).scenario
    write_json(out / "tune.json", {"scenario": scenario, "key": found.key, "methods": found.curves})
    if not isinstance(task, str):
        return found
    choice = write_choice(out, task, found.key, configs, found.best)
    return Search(found.key, found.curves, found.runs, found.failures, choice)
