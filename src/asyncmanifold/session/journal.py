"""A run's files: trace, checkpoint, model and summary, in a directory or, without one, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.files import load_tensors, load_tree, save_tensors, save_tree, write_json
from asyncmanifold.session.directory import RunDirectory
from asyncmanifold.session.session import Session
from asyncmanifold.session.summary import Summary, summarise
from asyncmanifold.session.trace import FileTrace, MemoryTrace, Record
from asyncmanifold.vectors import FlatModel

Observer = Callable[[Record], None]


@dataclass(frozen=True, kw_only=True)
class Records:
    """Where a run is stored, and who observes it.

    Arguments:
        out: the run's directory; by default the run is kept in memory.
        resume: continue an interrupted run in ``out``, with the same result to the last bit.
        observer: a function that is called with every record of the trace.
        config: the configuration to write beside the trace; by default it is made from the run's settings.
        labels: ``scenario``, ``method`` and ``seed`` as summaries and reports name them.

    >>> from asyncmanifold import Records
    >>> Records(out="runs/one", resume=True).out
    'runs/one'
    """

    out: str | Path | None = None
    resume: bool = False
    observer: Observer | None = None
    config: Mapping[str, Any] | None = None
    labels: Mapping[str, Any] | None = None


class Journal:
    """The files of one run while it is running."""

    def __init__(self, records: Records, config: Mapping[str, Any], labels: Mapping[str, Any]) -> None:
        """Open the directory, if any; ``config`` and ``labels`` are defaults for those of ``records``."""
        self.labels = dict(records.labels or labels)
        self._observer = records.observer
        self._trace: FileTrace | MemoryTrace = MemoryTrace()
        self.directory: RunDirectory | None = None
        if records.out is not None:
            described = dict(records.config or config)
            self.directory = RunDirectory(Path(records.out), described, resume=records.resume)

    @property
    def is_finished(self) -> bool:
        """Whether the directory holds a finished run."""
        return self.directory is not None and self.directory.is_finished

    @property
    def records(self) -> list[Record]:
        """All records so far, including those of interrupted calls."""
        return list(self._trace)

    def restore(self, unpack: Callable[[Any], None] | None = None) -> None:
        """Open the trace, and pass the last checkpoint, if there is one, to ``unpack``.

        The trace is cut to its length at the checkpoint: the updates after it are made again and would
        otherwise be recorded twice. Without ``unpack`` the run starts over.
        """
        if self.directory is None:
            return
        checkpoint, keep = self.directory.checkpoint, 0
        if unpack is not None and checkpoint.exists():
            try:
                tree = load_tree(checkpoint)
                unpack(tree)
                keep = int(tree["trace_position"])
            except (InputError, AttributeError, LookupError, TypeError) as error:
                raise InputError(f"{checkpoint}: damaged, remove it to start over: {error}") from error
        self._trace = FileTrace(self.directory.trace, keep)

    def write(self, record: Record) -> None:
        """Append a record, and show it to the observer."""
        self._trace.write(record)
        self.tell(record)

    def tell(self, record: Record) -> None:
        """Show the observer something that is not part of the trace."""
        if self._observer is not None:
            self._observer(record)

    def checkpoint(self, tree: Mapping[str, Any]) -> None:
        """Write a checkpoint, atomically: everything that the rest of the run depends on."""
        if self.directory is not None and isinstance(self._trace, FileTrace):
            save_tree(self.directory.checkpoint, {**tree, "trace_position": self._trace.position()})

    def conclude(
        self, session: Session, per_client: Sequence[float | None] | None, validation: float | None = None
    ) -> Summary:
        """Write the final model and the summary, and return the summary."""
        model, state = session.model, session.state
        model.load(*state.returned())
        summary = self.labels | summarise(
            self._trace,
            metrics=session.metrics,
            target=session.run.target,
            per_client=per_client,
            validation=validation,
        )
        summary["parameters"] = model.size
        if self.directory is not None:
            metadata = self.labels | {"updates": state.updates, "version": state.version}
            save_tensors(self.directory.model, model.named_tensors(), metadata)
            write_json(self.directory.summary, summary)
        return summary

    def load_finished(self, model: FlatModel) -> Summary:
        """Load the final model of a finished run into ``model``, and return its summary."""
        assert self.directory is not None
        tensors, _ = load_tensors(self.directory.model)
        model.module.load_state_dict(tensors)
        self._trace = FileTrace(self.directory.trace, self.directory.trace.stat().st_size)
        return self.directory.read_summary()

    def give_up(self) -> None:
        """Remove the run's files if the run has not begun, so that the directory can be used again."""
        self._trace.close()
        if self.directory is not None:
            self.directory.give_up()

    def close(self) -> None:
        """Close the files and let other processes use the directory."""
        self._trace.close()
        if self.directory is not None:
            self.directory.close()
