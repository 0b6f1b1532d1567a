"""What a run returns: its models and its numbers, short on the screen, and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from asyncmanifold.errors import InputError
from asyncmanifold.files import load_tensors
from asyncmanifold.session.summary import Summary
from asyncmanifold.session.trace import Record


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run.

    Arguments:
        model: the final model, or the average if the method has one.
        summary: the numbers of the run, as in ``summary.json``.
        trace: every record, as in ``trace.jsonl``.
        best_model: the best model among those evaluated; None if none was.

    >>> from asyncmanifold import Result
    >>> numbers = {"method": "fedasync", "scenario": "task", "seed": 0, "metric": "accuracy"}
    >>> Result(None, {**numbers, "final": 0.91, "best": 0.93, "updates": 300, "ended": "updates"}, trace=[])
    Result(fedasync on task, seed 0: accuracy 0.91 at the end, 0.93 at best, 300 updates)
    """

    model: nn.Module
    summary: Summary
    trace: list[Record]
    best_model: nn.Module | None = None

    def __repr__(self) -> str:
        about = self.summary

        def number(name: str) -> str:
            return "none" if about.get(name) is None else f"{about[name]:.4g}"

        ended = "" if about.get("ended", "updates") == "updates" else f", ended by {about['ended']}"
        return (
            f"Result({about.get('method')} on {about.get('scenario')}, seed {about.get('seed')}: "
            f"{about.get('metric')} {number('final')} at the end, {number('best')} at best, "
            f"{about.get('updates')} updates{ended})"
        )

    def to_pandas(self, kind: str = "evaluation") -> Any:
        """Return a DataFrame with a row for each record of a kind: ``evaluation``, ``update`` …"""
        return frame(
            {name: value for name, value in record.items() if name != "kind"}
            for record in self.trace
            if record["kind"] == kind
        )

    def plot(self, against: str = "update") -> Any:
        """Return a figure of the scores against ``update``, virtual ``time`` or ``upload`` (megabytes)."""
        from asyncmanifold.report.score_plot import plot_scores  # its libraries are an extra

        about = self.summary
        traces = {str(about["method"]): [self.trace]}
        return plot_scores(traces, metric=about["metric"], against=against, target=about["target"])


def load_model(module: nn.Module, path: str | Path, *, best: bool = False) -> nn.Module:
    """Load a run's model into a module of the same structure, and return the module in evaluation mode.

    Arguments:
        module: changed in place.
        path: the run's directory, or a .safetensors file of it.
        best: load the best model among those evaluated, not the final one.

    >>> import tempfile, torch
    >>> from asyncmanifold import Records, Run, Task, load_model, simulate
    >>> clients = [(torch.randn(20, 4), torch.randint(3, (20,))) for _ in range(5)]
    >>> task = Task(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, clients, test=clients[0])
    >>> with tempfile.TemporaryDirectory() as out:
    ...     made = simulate(task, "fedasync", run=Run(updates=4), records=Records(out=out))
    ...     same = load_model(torch.nn.Linear(4, 3), out)
    >>> torch.equal(made.model.weight, same.weight)
    True
    """
    place = Path(path)
    file = place / ("best.safetensors" if best else "model.safetensors") if place.is_dir() else place
    if not file.is_file():
        raise InputError(f"{file}: no such file" + (", the run has not finished" if place.is_dir() else ""))
    tensors, _ = load_tensors(file)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file}: holds another model than {type(module).__name__}: {reason}") from error
    return module.eval()


def frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return rows as a DataFrame of pandas."""
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        raise InputError(
            "to_pandas needs the extra 'notebook': pip install 'asyncmanifold[notebook]'"
        ) from error
    return pandas.DataFrame(list(rows))


def runs_frame(summaries: Sequence[Mapping[str, Any]]) -> Any:
    """Return a DataFrame with a row for each summary; each metric has a column of its own.

    A metric whose name is a number of the summary, such as ``gini``, is in the column ``gini (metric)``.
    """
    rows = []
    for summary in summaries:
        plain = {name: value for name, value in summary.items() if not isinstance(value, dict | list)}
        first = {name: plain.pop(name) for name in ("method", "seed") if name in plain}
        scores: Mapping[str, Any] = summary.get("scores", {})
        own = {f"{name} (metric)" if name in summary else name: value for name, value in scores.items()}
        rows.append(first | plain | own)
    return frame(rows)
