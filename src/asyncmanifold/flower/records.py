"""A deployment's records: the simulator's files, written by a server on Flower."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from safetensors import SafetensorError

from asyncmanifold.errors import InputError
from asyncmanifold.files import load_tensors, save_tensors, write_json
from asyncmanifold.flower.codec import arrays_of
from asyncmanifold.server.protocol import ServerState
from asyncmanifold.simulation.checkpoint import pack_progress, unpack_progress
from asyncmanifold.simulation.directory import RunDirectory
from asyncmanifold.simulation.engine import Best
from asyncmanifold.summary import summarise
from asyncmanifold.trace import FileTrace, MemoryTrace, Record, read_trace
from asyncmanifold.vectors import FlatModel

PLACES = ("kind", "update", "version", "time", "wall_seconds")
"""What an evaluation's record has besides its scores."""
TRAIN_METRICS = ("loss", "train_seconds", "staleness", "client")


class Records:
    """Trace, checkpoint, model and summary of a run, in a directory or, without one, in memory."""

    def __init__(
        self,
        out: str | Path | None,
        config: dict[str, Any],
        labels: dict[str, Any],
        target: float | None,
        *,
        resume: bool,
    ) -> None:
        self._labels, self._target = labels, target
        self._directory = None if out is None else RunDirectory(Path(out), config, resume=resume)
        self._trace: FileTrace | MemoryTrace = MemoryTrace()

    @property
    def is_finished(self) -> bool:
        """Whether the directory holds a run that has come to its end."""
        return self._directory is not None and self._directory.is_finished

    @property
    def metric(self) -> str | None:
        """The name of the score that is reported, once there is one."""
        return next(iter(self._metrics()), None)

    def restore(self) -> tuple[ServerState, Best | None, dict[str, Any]] | None:
        """Open the trace; return what the last checkpoint holds. What came after it is cut off the trace."""
        if self._directory is None:
            return None
        checkpoint = self._directory.checkpoint
        if not checkpoint.exists():
            self._trace = FileTrace(self._directory.trace)
            return None
        try:
            tensors, numbers = load_tensors(checkpoint)
            state, best = unpack_progress(tensors, numbers)
            self._trace = FileTrace(self._directory.trace, int(numbers["trace_position"]))
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{checkpoint}: damaged, remove it to start over: {error}") from error
        return state, best, numbers

    def write(self, record: Record) -> None:
        """Append a record to the trace."""
        self._trace.write(record)

    def checkpoint(self, state: ServerState, best: Best | None, numbers: Mapping[str, Any]) -> None:
        """Put on disk what the rest of the run depends on."""
        if self._directory is None or not isinstance(self._trace, FileTrace):
            return
        tensors, progress = pack_progress(state, best)
        save_tensors(
            self._directory.checkpoint,
            tensors,
            {**progress, **numbers, "trace_position": self._trace.position()},
        )

    def conclude(self, model: FlatModel, state: ServerState, scores: Mapping[int, float]) -> Result:
        """Write model and summary, and return the result."""
        model.load(*state.returned())
        per_client = [scores.get(client) for client in range(max(scores) + 1)] if scores else None
        summary = self._labels | summarise(
            self._trace,
            metrics=self._metrics(),
            target=self._target,
            per_client=per_client,
            validation=None,
        )
        summary["parameters"] = model.size
        if self._directory is not None:
            metadata = self._labels | {"updates": state.updates, "version": state.version}
            save_tensors(self._directory.model, model.named_tensors(), metadata)
            write_json(self._directory.summary, summary)
        return self._result(model, scores)

    def finished(self, model: FlatModel) -> Result:
        """Return the result of a run that ended earlier."""
        assert self._directory is not None
        tensors, _ = load_tensors(self._directory.model)
        model.module.load_state_dict(tensors)
        for record in read_trace(self._directory.trace):
            self._trace.write(record)
        per_client = self._directory.read_summary()["per_client"] or []
        return self._result(model, {i: score for i, score in enumerate(per_client) if score is not None})

    def close(self) -> None:
        """Close the files and let other processes use the directory."""
        self._trace.close()
        if self._directory is not None:
            self._directory.close()

    def _metrics(self) -> list[str]:
        for record in self._trace:
            if record["kind"] == "evaluation":
                return [name for name in record if name not in PLACES]
        return []

    def _result(self, model: FlatModel, scores: Mapping[int, float]) -> Result:
        """Return what Flower's strategies return, with updates in place of rounds."""
        result = Result(arrays=arrays_of(model.named_tensors()))
        last = 0
        for record in self._trace:
            if record["kind"] == "update":
                last = record["update"]
                result.train_metrics_clientapp[last] = MetricRecord(
                    {name.replace("_", "-"): record[name] for name in TRAIN_METRICS}
                )
            elif record["kind"] == "evaluation":
                known = {name: record[name] for name in self._metrics() if record[name] is not None}
                result.evaluate_metrics_serverapp[record["update"]] = MetricRecord(known)
        if scores:
            mean = sum(scores.values()) / len(scores)
            result.evaluate_metrics_clientapp[last] = MetricRecord({self.metric or "score": mean})
        return result
