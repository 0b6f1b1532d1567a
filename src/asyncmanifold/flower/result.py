"""A run's records in the form that Flower's own strategies return, with updates in place of rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result as FlowerResult

from asyncmanifold.flower.arrays import array_record
from asyncmanifold.session.trace import PLACES, Record
from asyncmanifold.vectors import FlatModel

TRAIN_METRICS = ("loss", "train_seconds", "staleness", "client")


def flower_result(model: FlatModel, records: Iterable[Record], scores: Mapping[int, float]) -> FlowerResult:
    """Return the final arrays and the metrics; ``scores`` are the clients' final scores."""
    result = FlowerResult(arrays=array_record(model.named_tensors()))
    last, metric = 0, "score"
    for record in records:
        if record["kind"] == "update":
            last = record["update"]
            result.train_metrics_clientapp[last] = MetricRecord(
                {name.replace("_", "-"): record[name] for name in TRAIN_METRICS if record[name] is not None}
            )
        elif record["kind"] == "evaluation":
            known = {name: value for name, value in record.items() if name not in PLACES}
            metric = next(iter(known), metric)
            finite = {name: value for name, value in known.items() if value is not None}
            result.evaluate_metrics_serverapp[record["update"]] = MetricRecord(finite)
    if scores:
        mean = sum(scores.values()) / len(scores)
        result.evaluate_metrics_clientapp[last] = MetricRecord({metric: mean})
    return result
