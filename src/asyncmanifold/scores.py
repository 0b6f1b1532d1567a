"""How a task scores outputs: torchmetrics' metrics or plain functions, and whether more or less is better."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from asyncmanifold.errors import InputError
from asyncmanifold.metrics import Metric

RECORDED = ("kind", "update", "version", "time", "wall_seconds", "loss", "num-examples")
"""Names that the records of an evaluation use already."""


@dataclass(frozen=True)
class Score:
    """A metric, and whether more or less of it is better.

    Arguments:
        measure: a function of (outputs, targets) that returns a number, which is called once with those of
            all examples; or a metric of torchmetrics, or a class or function without arguments that makes
            one: any object with ``update(outputs, targets)`` and ``compute()``.
        higher_is_better: whether more is better; not needed for a metric that says so itself, as
            torchmetrics' do.

    >>> import torch
    >>> from asyncmanifold import Score
    >>> def rmse(outputs, targets):
    ...     return torch.nn.functional.mse_loss(outputs, targets).sqrt()
    >>> score = Score(rmse, higher_is_better=False).start()
    >>> score.update(torch.tensor([1.0]), torch.tensor([4.0]))
    >>> score.update(torch.tensor([2.0]), torch.tensor([6.0]))
    >>> round(float(score.compute()), 4)  # the root of (9 + 16) / 2, not the mean of 3 and 4
    3.5355
    """

    measure: Any
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        if not (callable(self.measure) or is_metric(self.measure)):
            raise InputError(f"{self._name} must be a function (outputs, targets) or a metric")
        if self.higher_is_better is not None:
            return
        direction = None if self._is_function else getattr(self.start(), "higher_is_better", None)
        if not isinstance(direction, bool):
            raise InputError(
                f"{self._name} does not say whether more is better: Score({self._name}, higher_is_better=…)"
            )
        object.__setattr__(self, "higher_is_better", direction)

    def start(self) -> Metric:
        """Return a metric without any batches yet."""
        if self._is_function:
            return _Whole(self.measure)
        if not is_metric(self.measure):
            made = self.measure()
            if not is_metric(made):
                raise InputError(f"{self._name} made a {type(made).__name__}, must be a metric")
            return made  # type: ignore[no-any-return]
        fresh = copy.deepcopy(self.measure)
        if hasattr(fresh, "reset"):
            fresh.reset()
        return fresh  # type: ignore[no-any-return]

    @property
    def highest(self) -> float | None:
        """The highest score there is, if the metric says so under torchmetrics' name."""
        bound = None if self._is_function else getattr(self.start(), "plot_upper_bound", None)
        return float(bound) if self.higher_is_better and isinstance(bound, int | float) else None

    @property
    def _is_function(self) -> bool:
        """Whether this is a function of outputs and targets, not a metric or what makes one."""
        measure = self.measure
        if is_metric(measure) or isinstance(measure, type):
            return False
        if isinstance(measure, partial) and isinstance(measure.func, type):
            return False
        if isinstance(measure, nn.Module):
            return True
        try:
            parameters = inspect.signature(measure).parameters.values()
        except ValueError:  # a function written in C has no signature
            return True
        return any(p.kind is p.VAR_POSITIONAL or (p.default is p.empty) for p in parameters)

    @property
    def _name(self) -> str:
        return getattr(self.measure, "__name__", None) or type(self.measure).__name__


def is_metric(thing: Any) -> bool:
    """Return whether this accumulates batches, as torchmetrics' metrics do."""
    return not isinstance(thing, type) and hasattr(thing, "update") and hasattr(thing, "compute")


def read_scores(metrics: Mapping[str, Any]) -> dict[str, Score]:
    """Return a user's metrics as scores; an ``InputError`` names the one that cannot be used."""
    scores: dict[str, Score] = {}
    for name, given in metrics.items():
        if not isinstance(name, str) or not name or name in RECORDED:
            raise InputError(
                f"Task(metrics=…): a metric cannot be named {name!r}: records use {', '.join(RECORDED)}"
            )
        try:
            scores[name] = given if isinstance(given, Score) else Score(given)
        except InputError as error:
            raise InputError(f"Task(metrics=…): {name!r}: {error}") from error
    return scores


def as_number(name: str, value: Any) -> float:
    """Return a computed score as a number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"metric {name!r} gave a {type(value).__name__}, must be one number") from error


class _Whole:
    """Keeps all outputs and targets, since most functions of a whole set are not means over batches."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._batches: list[tuple[Any, Any]] = []

    def update(self, outputs: Any, targets: Any) -> None:
        self._batches.append((outputs, targets))

    def compute(self) -> Any:
        outputs, targets = zip(*self._batches, strict=True)
        try:
            joined = _join(outputs), _join(targets)
        except (RuntimeError, TypeError) as error:
            raise InputError(
                "outputs of different shapes cannot be joined for a function: use an object with update and "
                "compute"
            ) from error
        return self._function(*joined)


def _join(parts: tuple[Any, ...]) -> Any:
    """Return batches as one: tensors, or dictionaries and tuples of them."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return type(first)(**{name: _join(tuple(part[name] for part in parts)) for name in first})
    if isinstance(first, tuple | list):
        return type(first)(_join(entries) for entries in zip(*parts, strict=True))
    raise TypeError(type(first).__name__)
