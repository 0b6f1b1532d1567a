"""Compare methods on a task: every method with every seed, and the table of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.config import Config
from asyncmanifold.experiments.given_tasks import method_configs, with_seed
from asyncmanifold.experiments.many_runs import FinishedRun, Key, ManyRuns
from asyncmanifold.experiments.terminal_tables import as_text, comparison_notes, comparison_table
from asyncmanifold.report.comparison import tabulate, write_table
from asyncmanifold.report.result_table import html_table
from asyncmanifold.results import runs_frame
from asyncmanifold.server.methods import Method
from asyncmanifold.session.run import Run
from asyncmanifold.simulation.schedules import Schedule

Methods = str | Method | Sequence[str | Method] | Mapping[str, Method] | None


@dataclass(frozen=True, repr=False)
class Comparison:
    """The runs of a comparison; it prints as the table, and a notebook shows it as one.

    Arguments:
        scenario: the task's name.
        run: the settings of the runs.
        runs: the finished runs by (method, seed).
        failures: one line for each run that failed.
        out: the directory of the runs, if they have one.

    >>> from asyncmanifold import Comparison, Run
    >>> Comparison("mine", Run(), runs={}).table
    {}
    """

    scenario: str
    run: Run
    runs: Mapping[Key, FinishedRun]
    failures: Sequence[str] = ()
    out: Path | None = None
    table: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", tabulate(run.summary for run in self.runs.values()))

    @cached_property
    def metric(self) -> str:
        """The name of the reported metric."""
        return next((str(run.summary["metric"]) for run in self.runs.values()), "none")

    def __repr__(self) -> str:
        return as_text(comparison_table(self), comparison_notes(self)) if self.runs else "no finished run"

    def _repr_html_(self) -> str:
        title, *_ = repr(self).splitlines()
        notes = "<br>".join(escape(note) for note in comparison_notes(self)) if self.runs else ""
        return f"<p>{escape(title)}</p>\n{html_table(self.table)}\n<p><small>{notes}</small></p>"

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each run: its method, its seed and the numbers of its summary."""
        return runs_frame([run.summary for run in self.runs.values()])

    def plot(self, against: str = "update") -> Any:
        """Return a figure of the scores against ``update`` or virtual ``time``, which a notebook shows."""
        from asyncmanifold.report.score_plot import plot_scores  # its libraries are an extra

        traces: dict[str, list[Any]] = {}
        for (method, *_), run in self.runs.items():
            traces.setdefault(method, []).append(run.evaluations)
        return plot_scores(traces, metric=self.metric, against=against, target=self.run.target)


def compare(
    task: Any,
    methods: Methods = None,
    *,
    seeds: Sequence[int] = (0, 1),
    training: LocalTraining | None = None,
    schedule: Schedule | None = None,
    run: Run | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    progress: bool | None = None,
    data: str | None = None,
    settings: Mapping[str, Any] | None = None,
    sinks: Sequence[str] = (),
) -> Comparison:
    """Run several methods with several seeds on a task, and return their table.

    Arguments:
        task: a ``Task``; a function of the seed that returns one; the place of such a function, as
            ``"module:function"`` or ``"file.py:function"``; or a scenario, by its name or its TOML file.
        methods: names, ``Method`` objects, or a dictionary of names and methods; ``"all"`` for every method,
            by default those of the paper.
        seeds: each method runs with each of them.
        training: how clients train; by default as the scenario says.
        schedule: when clients arrive; by default as the scenario says.
        run: how long a run is; by default as the scenario says. Its seed is not used.
        out: the directory for the runs, ``compare.json`` and ``table.md``; by default nothing is written.
        resume: continue the runs in ``out``.
        workers: how many runs are made at the same time, each in a process of its own; one run after another
            is made in this process.
        progress: show a progress bar; by default in a terminal and in a notebook.
        data: a scenario's data file.
        settings: further settings by key, such as ``{"local_lr": 0.01}``, for the methods that have the key.
        sinks: where else the runs' figures go, as ``"tensorboard=DIR"`` (docs/operating.md).

    >>> import torch
    >>> from asyncmanifold import Run, Task, compare
    >>> clients = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(5)]
    >>> task = Task(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, clients, test=clients[0])
    >>> found = compare(task, ["fedasync", "fedavg"], seeds=[0], run=Run(updates=6))
    >>> list(found.table)
    ['fedasync', 'fedavg']
    """
    many = ManyRuns(out=as_path(out), resume=resume, workers=workers, progress=progress, sinks=sinks)
    given = {"training": training, "schedule": schedule, "run": run}
    plain = method_configs(task, methods, settings=as_words(settings), data=data, given=given)
    configs: dict[Key, Config] = {
        (name, f"seed-{seed}"): with_seed(config, seed) for name, config in plain.items() for seed in seeds
    }
    runs, failures = many.run(configs)
    first = next(iter(configs.values()))
    found = Comparison(first.scenario, first.run, runs, failures, many.out)
    if found.out is not None:
        write_table(found.out, found.scenario, found.metric, found.table)
    return found


def as_path(out: str | Path | None) -> Path | None:
    """Return the path of a directory, if one is given."""
    return None if out is None else Path(out)


def as_words(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Return settings as ``--set`` would have them."""
    return {key: as_word(value) for key, value in (settings or {}).items()}


def as_word(value: Any) -> str:
    """Return a value as it is written after ``--set key=``."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
