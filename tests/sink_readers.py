"""Reads back what sinks have written: with each library itself, or from the bytes that it sends."""

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def tensorboard_curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """Return a curve from a run's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def mlflow_curve(uri: str, title: str, name: str) -> list[tuple[int, float]]:
    """Return a curve of the one run at a tracking URI, which has ended under this title."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("asyncmanifold").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", title)
    return [(entry.step, entry.value) for entry in client.get_metric_history(run.info.run_id, name)]


def wandb_records(folder: Path, seconds: float = 60.0) -> list[Any]:
    """Return all records of the one offline run in a folder; another process writes them, a little later."""
    deadline = time.monotonic() + seconds
    while True:
        records = list(_read_wandb(folder))
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        assert time.monotonic() < deadline, f"the run has not ended within {seconds:g} s"
        time.sleep(0.2)


def _read_wandb(folder: Path) -> Iterator[Any]:
    """Yield all records that are there: a LevelDB log of protobuf messages.

    After 7 bytes come blocks of 32 KiB; each piece of a record has a checksum (4 bytes), a length (2) and a
    kind (1) before it, and a record ends with a piece of kind 1 (whole) or 4 (last).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (room := 2**15 - place % 2**15) < 7:
            place += room
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def wandb_curve(folder: Path, title: str, name: str) -> list[tuple[int, float]]:
    """Return a curve of the one offline run in a folder, which has ended under this title."""
    records = wandb_records(folder)
    assert [r.run.display_name for r in records if r.WhichOneof("record_type") == "run"] == [title]
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    return [(row["_step"], row[name]) for row in rows if name in row]


class Collector(ThreadingHTTPServer):
    """An OTLP collector that keeps the last value of every metric, by name, run and kind."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorRequest)
        self.values: dict[tuple[str, str, str | None], float] = {}
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class CollectorRequest(BaseHTTPRequestHandler):
    """Takes an export of metrics."""

    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    labels = {pair.key: pair.value.string_value for pair in point.attributes}
                    where = metric.name, labels["run"], labels.get("kind")
                    self.server.values[where] = getattr(point, point.WhichOneof("value"))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a free port, until the block ends."""
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
