"""A run's files: trace, checkpoint, model and summary, in a directory or, without one, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from asyncmanifold.arithmetic import describe_arithmetic, explain_difference
from asyncmanifold.errors import InputError
from asyncmanifold.files import load_tree, save_tree, write_json
from asyncmanifold.server.protocol import Rejected
from asyncmanifold.session.control import STOPPED
from asyncmanifold.session.control_desk import ControlDesk
from asyncmanifold.session.directory import RunDirectory
from asyncmanifold.session.kept_models import KeptModels
from asyncmanifold.session.live_jobs import LiveJobs
from asyncmanifold.session.model_files import leave_models, load_weights
from asyncmanifold.session.observers import Observer, Observers
from asyncmanifold.session.recovery import Recovery
from asyncmanifold.session.session import Session
from asyncmanifold.session.summary import Summary, summarise
from asyncmanifold.session.trace import FileTrace, MemoryTrace, Record, read_tail
from asyncmanifold.session.update_log import UpdateLog
from asyncmanifold.vectors import FlatModel

SHORT_LOG = 2**24
"""Bytes of logged updates that are never worth a checkpoint."""
LOG_FACTOR = 4
"""How many times as long as the last checkpoint a log may become, which a resume has to read."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """Where a run is stored, and who observes it.

    Arguments:
        out: the run's directory; by default the run is kept in memory.
        resume: continue an interrupted run in ``out``, with the same result to the last bit.
        change: paths of settings that may differ from those of the interrupted run, such as
            ``"method.global_lr"``; every change is recorded in the trace, and in the directory's
            configuration.
        back_to: go back to the kept model of this update when the run is resumed (``Run.keep_models``).
        observer: a function that is called with every record of the trace, or several of them. One with a
            second argument is also given a function that returns a copy of the current model. It may raise
            ``StopRun`` to end the run.
        config: the configuration to write beside the trace; by default it is made from the run's settings.
        labels: ``scenario``, ``method`` and ``seed`` as summaries and reports name them.

    >>> from asyncmanifold import Records
    >>> Records(out="runs/one", resume=True).out
    'runs/one'
    """

    out: str | Path | None = None
    resume: bool = False
    change: Sequence[str] = ()
    back_to: int | None = None
    observer: Observer | Sequence[Observer] | None = None
    config: Mapping[str, Any] | None = None
    labels: Mapping[str, Any] | None = None


class Journal:
    """The files of one run while it is running."""

    def __init__(
        self,
        records: Records,
        config: Mapping[str, Any],
        labels: Mapping[str, Any],
        fingerprint: Mapping[str, str] | None = None,
    ) -> None:
        """Open the directory, if any; ``config`` and ``labels`` are defaults for those of ``records``.

        A run in the directory with another ``fingerprint`` of its task is refused.
        """
        self.labels = dict(records.labels or labels)
        self._observers = Observers(records.observer)
        self._session: Session | None = None
        self._back_to = records.back_to if records.resume else None
        self._arithmetic = describe_arithmetic()
        self._trace: FileTrace | MemoryTrace = MemoryTrace()
        self.directory: RunDirectory | None = None
        self._log: UpdateLog | None = None
        self._waiting: list[Record] = []
        self._since = 0  # the version at the last checkpoint
        self._bases: set[int] = set()  # older versions whose models the log holds
        self._checkpoint_size = 0
        if records.out is not None:
            described = dict(records.config or config)
            self.directory = RunDirectory(
                Path(records.out),
                described,
                resume=records.resume,
                change=records.change,
                fingerprint=fingerprint,
            )
        place = None if self.directory is None else self.directory.path
        self.live, self.desk = LiveJobs(place), ControlDesk(None)
        self._was_stopped = records.resume and self.directory is not None and self.directory.is_stopped

    @property
    def is_finished(self) -> bool:
        """Whether the directory holds a finished run, which is not to be continued with other settings."""
        if self.directory is None or self._was_stopped:
            return False
        return self.directory.is_finished and not self.directory.changes

    @property
    def records(self) -> list[Record]:
        """All records so far, including those of interrupted calls."""
        return list(self._trace)

    def restore(self, unpack: Callable[[Any], None] | None = None) -> None:
        """Open the trace, and pass the last checkpoint, if there is one, to ``unpack``.

        The trace is cut to its length at the checkpoint: the updates after it are made again and would
        otherwise be recorded twice. Without ``unpack`` the run starts over.
        """
        if self.directory is not None:
            keep = 0 if unpack is None else self._load_checkpoint(unpack)
            self._trace = FileTrace(self.directory.trace, keep)

    def _load_checkpoint(self, unpack: Callable[[Any], None]) -> int:
        """Pass the last checkpoint to ``unpack``; return the length of the trace at that time."""
        assert self.directory is not None
        checkpoint = self.directory.checkpoint
        if not checkpoint.exists():
            return 0
        try:
            tree = load_tree(checkpoint)
            unpack(tree)
            self._compare_arithmetic(tree["arithmetic"])
            return int(tree["trace_position"])
        except (InputError, AttributeError, LookupError, TypeError) as error:
            raise InputError(f"{checkpoint}: damaged, remove it to start over: {error}") from error

    def restore_logged(
        self, session: Session, unpack: Callable[[Any], None], note: Callable[[Record], None]
    ) -> None:
        """Like ``restore``, and absorb the updates that were accepted since, bit for bit.

        From now on an update is on disk before anybody learns of it: records wait for ``commit``, and
        updates are logged. ``note`` is called with every record since the checkpoint, so that an engine can
        follow.
        """
        if self.directory is None:
            return

        def pass_on(record: Record) -> None:
            note(record)
            self.write(record)

        keep = self._load_checkpoint(unpack)
        self._log = UpdateLog(self.directory.log)
        if self.directory.checkpoint.exists():
            try:
                tail = read_tail(self.directory.trace, keep)
                Recovery(session, tail, pass_on).absorb(self._log.entries())
            except (InputError, Rejected, LookupError, TypeError, ValueError) as error:
                raise InputError(
                    f"{self.directory.log}: damaged, remove it to go on from the checkpoint: {error}"
                ) from error
        else:
            self._log.cut()
        self._trace = FileTrace(self.directory.trace, keep)
        self.commit()
        self._since = session.state.version
        session.log = self._append

    def _append(self, entry: dict[str, Any], base: Tensor) -> None:
        """Log an update, with its base model if neither checkpoint nor log has it."""
        assert self._log is not None
        version = entry["job"]["version"]
        if version < self._since and version not in self._bases:
            self._bases.add(version)
            entry["base"] = base.clone()  # its memory may be reused before the entry is written
        self._log.append(entry)

    def begin(self, session: Session, time: float) -> None:
        """Record settings that were changed, and go back if told to; the next checkpoint makes both final.

        A run that was told to stop, and has, goes on; one that was killed before it could will stop now.
        """
        if self._was_stopped and session.ended == STOPPED:
            session.ended = None
        if session.control.is_paused:
            self.tell({"kind": "warning", "reason": "the run is paused, until `control DIR resume`"})
        for change in self.directory.changes if self.directory is not None else ():
            self.write({"kind": "changed", "update": session.state.updates, "time": time, **change})
            session.ended = None  # a budget or a target that ended the run may be another one now
        if self._back_to is not None:
            session.go_back(time, self._back_to)

    def kept_models(self, most: int) -> KeptModels:
        """Return where good models are kept: in the directory, if there is one."""
        return KeptModels(None if self.directory is None else self.directory.kept, most)

    def write(self, record: Record) -> None:
        """Append a record, and show it to the observer; with a log, both wait for ``commit``."""
        self._waiting.append(record)
        if self._log is None:
            self.commit()

    def commit(self) -> None:
        """Make everything durable that was accepted, then write the waiting records and show them.

        Nothing that depends on an update may leave the process before. Raises ``RunError`` on a full disk:
        the waiting updates are then not accepted, nobody is told of them, and the run can be resumed.
        """
        waiting, self._waiting = self._waiting, []
        if self._log is not None:
            self._log.commit()
        if waiting:
            self._trace.write_all(waiting)
        for record in waiting:
            self.tell(record)

    def tell(self, record: Record) -> None:
        """Show the observer something that is not part of the trace."""
        self._observers.tell(record, self._copy_model)
        if self._observers.stopped is not None and self._session is not None:
            self._session.end(self._observers.stopped)

    def _copy_model(self) -> nn.Module:
        assert self._session is not None
        return self._session.copy_model()

    @property
    def is_log_long(self) -> bool:
        """Whether a new checkpoint is worth its time: the log is several times as long as the last one."""
        if self._log is None or self.directory is None:
            return False
        return self._log.size > max(SHORT_LOG, LOG_FACTOR * self._checkpoint_size)

    def checkpoint(self, tree: Mapping[str, Any]) -> None:
        """Write a checkpoint, atomically: everything that the rest of the run depends on. Cut the log."""
        self.commit()
        if self.directory is None or not isinstance(self._trace, FileTrace):
            return
        path = self.directory.checkpoint
        save_tree(path, {**tree, **self._facts()})
        self._checkpoint_size = path.stat().st_size
        self.directory.adopt_changes(is_reopened=self._was_stopped)
        self._was_stopped = False
        if self._log is not None:
            self._log.cut()
            self._since, self._bases = tree["state"]["version"], set()

    def _facts(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides the run's state."""
        assert isinstance(self._trace, FileTrace)
        return {"trace_position": self._trace.position(), "arithmetic": self._arithmetic}

    def _compare_arithmetic(self, made: Mapping[str, str]) -> None:
        """Tell the observer if the rest of the run may differ from what the first machine would have made."""
        if (difference := explain_difference(made, self._arithmetic)) is not None:
            assert self.directory is not None
            self.tell({"kind": "warning", "reason": f"{self.directory.path}: {difference}"})

    def conclude(
        self, session: Session, per_client: Sequence[float | None] | None, validation: float | None = None
    ) -> Summary:
        """Write the final model and the summary, and return the summary."""
        self.commit()
        leave_models(self.directory, session, self.labels)
        summary = self.labels | summarise(
            self._trace,
            metrics=session.metrics,
            target=session.run.target,
            final_evaluations=session.run.final_evaluations,
            per_client=per_client,
            validation=validation,
            lower_is_better=session.scores.lower_is_better,
            is_buffered=session.method.buffer is not None,
        )
        if summary["advice"] is not None:
            self.tell({"kind": "warning", "reason": summary["advice"]})
        summary |= session.privacy.summary()
        summary |= {"ended": session.ended or "updates", "parameters": session.model.size}
        summary["arithmetic"] = self._arithmetic
        if self.directory is not None:
            write_json(self.directory.summary, summary)
        return summary

    def attach(self, session: Session) -> None:
        """Let observers see a session's model and end its run."""
        self._session = session
        if self.directory is not None:
            session.control.superseded = {change["key"] for change in self.directory.changes}

    def open_desk(self) -> ControlDesk:
        """Take requests from outside from now on."""
        self.desk = ControlDesk(None if self.directory is None else self.directory.path)
        return self.desk

    def load_finished(self, model: FlatModel) -> Summary:
        """Load the final model of a finished run into ``model``, and return its summary."""
        assert self.directory is not None
        load_weights(self.directory.model, model)
        self._trace = FileTrace(self.directory.trace, self.directory.trace.stat().st_size)
        return self.directory.read_summary()

    def give_up(self) -> None:
        """Remove the run's files if the run has not begun, so that the directory can be used again."""
        self._trace.close()
        if self.directory is not None:
            self.directory.give_up()

    def close(self) -> None:
        """Close the files and let other processes use the directory."""
        self.live.close()
        self.desk.close()
        self._observers.close()
        self._trace.close()
        if self._log is not None:
            self._log.close()
        if self.directory is not None:
            self.directory.close()
