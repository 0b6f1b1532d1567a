"""A deployment is watched over HTTP and controlled by the command while it runs, as an operator would.

Its figures go to all sinks meanwhile, each with its real library.
"""

import json
import threading
from urllib.request import urlopen

import pytest

from asyncmanifold.commands.cli import main
from asyncmanifold.watch.watch_server import WatchServer
from conftest import assert_replayed, finish, trace, until
from sink_readers import collector, mlflow_curve, tensorboard_curve, wandb_curve

NODES = 2


@pytest.fixture
def otlp():
    with collector() as server:
        yield server


def test_a_deployment_is_watched_and_controlled(federation, tmp_path, capsys, otlp, monkeypatch):
    out, board, tracking = tmp_path / "run", tmp_path / "board", (tmp_path / "mlflow").as_uri()
    sink = f"tensorboard={board} mlflow={tracking} wandb=wards opentelemetry={otlp.address}"
    for part in range(NODES):
        federation.start_node(partition_id=part, num_partitions=NODES, name=f"ward-{part}", threads=1)
    config = {"clients": NODES, "num_updates": 500, "evaluate_every": 2, "method": "fedasync"}
    run = federation.run(out=str(out), settings="global_lr=0.5", sink=sink, **config)
    until(lambda: len({record["client"] for record in trace(out, "update")}) == NODES)

    with WatchServer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            state = read(server.address + "state")
            text = urlopen(server.address + "metrics", timeout=10).read().decode()
        finally:
            server.shutdown()
            thread.join()
    (brief,) = state["runs"]
    assert (brief["state"], brief["total"], brief["metric"]) == ("running", 500, "accuracy")
    assert brief["training"] >= 1
    assert {client["name"] for client in state["chosen"]["clients"]} == {"ward-0", "ward-1"}
    assert 'asyncmanifold_updates_total{run="run"}' in text

    assert main(["report", str(out), "--out", str(tmp_path / "page")]) == 0
    assert "1 unfinished of 1 method" in (tmp_path / "page" / "report.html").read_text()
    capsys.readouterr()

    def ask(*words, code=0):
        assert main(["control", str(out), *words]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    assert ask("pause").startswith("paused after update")
    assert "(ward-1) is excluded" in ask("exclude", "ward-1")
    assert "changed from None to 300" in ask("set", "policy.deadline=300")
    assert "changed from 500 to 400" in ask("updates", "400")
    assert "no such node" in ask("exclude", "ward-7", code=2)
    assert ask("resume").startswith("resumed after update")
    resumed = len(trace(out, "update"))
    until(lambda: len(trace(out, "update")) >= resumed + 2)
    asked = {record["command"]: record for record in trace(out, "control")}
    assert list(asked) == ["pause", "exclude", "set", "updates", "resume"]
    sent = [record["dispatched"] for record in trace(out, "update")]
    assert not [one for one in sent if asked["pause"]["time"] < one < asked["resume"]["time"]]
    excluded = asked["exclude"]
    since = [record for record in trace(out, "update") if record["time"] > excluded["time"]]
    assert {record["client"] for record in since} == {1 - excluded["client"]}
    assert "is readmitted" in ask("readmit", "ward-1")
    until(lambda: trace(out, "update")[-1]["client"] == excluded["client"])
    assert ask("stop").startswith("stopped after update")

    summary = finish(federation, run, out)
    assert (summary["ended"], summary["controls"]) == ("stopped", 7)
    assert summary["updates"] == len(trace(out, "update"))
    assert "no run is going on there" in ask("stop", code=2)
    assert_replayed(out)
    expected = [(record["update"], record["loss"]) for record in trace(out, "update")]
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert mlflow_curve(tracking, "run", "update/loss") == expected
    assert wandb_curve(federation.folder.parent, "run", "update/loss") == expected
    shown = tensorboard_curve(board / "run", "update/loss")
    assert shown == [(step, pytest.approx(value)) for step, value in expected]
    assert otlp.values["asyncmanifold.done", "run", None] == summary["updates"]


def read(address):
    return json.loads(urlopen(address, timeout=10).read())
