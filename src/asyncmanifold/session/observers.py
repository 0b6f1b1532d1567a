"""Who observes a run: functions that see its records, and the model if they ask, and that can end it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from asyncmanifold.errors import InputError
from asyncmanifold.session.trace import Record

Observer = Callable[..., Any]
"""Takes a record; or a record and a function that returns a copy of the current model."""


class StopRun(Exception):  # noqa: N818 - not an error: the result is kept
    """Raise this in an observer to end a run after the current event; its result is kept.

    >>> from asyncmanifold import Records, StopRun
    >>> def stop_when_good(record):
    ...     if record["kind"] == "evaluation" and record["accuracy"] > 0.9:
    ...         raise StopRun("good enough")
    >>> Records(observer=stop_when_good).out
    """


class Observers:
    """Calls every observer with each record, and remembers whether one wants the run to end."""

    def __init__(self, given: Observer | Sequence[Observer] | None) -> None:
        self._observers = [(observer, _takes_model(observer)) for observer in as_observers(given)]
        self.stopped: str | None = None

    def tell(self, record: Record, model: Callable[[], nn.Module]) -> None:
        """Show a record to everybody."""
        for observer, takes_model in self._observers:
            try:
                observer(record, model) if takes_model else observer(record)
            except StopRun as wish:
                self.stopped = self.stopped or str(wish) or "an observer"

    def close(self) -> None:
        """Let observers that can be closed write what is left."""
        for observer, _ in self._observers:
            if callable(close := getattr(observer, "close", None)):
                close()


def as_observers(given: Observer | Sequence[Observer] | None) -> list[Observer]:
    """Return one observer, several or none as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, Sequence) else [given]


def _takes_model(observer: Any) -> bool:
    """Return whether an observer needs a second argument, for the model; one with a default is its own."""
    if not callable(observer):
        raise InputError(f"Records(observer={observer!r}) must be a function of a record, or several")
    try:
        parameters = inspect.signature(observer).parameters.values()
    except ValueError:  # a function written in C has no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in positional) > 1
