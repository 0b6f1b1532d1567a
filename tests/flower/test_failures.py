"""One run with everything that goes wrong: it ends well, and no bad node touches the model."""

import os
import signal

from conftest import ROOT, assert_replayed, finish, trace, until

APP = ROOT / "tests" / "flower" / "app"
HONEST, KILLED, LATE = 0, 1, 2
PACE = 10.0
"""Seconds added to every honest job: the run outlasts the minute that Flower needs to find a node dead."""
TROUBLES = {3: "raises", 4: "nan", 5: "shape"}
REASONS = {
    ("failed", "<class 'RuntimeError'>:<'out of memory'>"),
    ("failed", "the node is gone"),
    ("rejected", "non-finite"),
    ("rejected", "offsets have shape"),
}


def test_a_run_survives_what_its_nodes_do(federation, tmp_path):
    out = tmp_path / "run"
    federation.start_node(partition_id=HONEST, slowness=PACE)
    victim = federation.start_node(partition_id=KILLED, slowness=60.0)
    for part, trouble in TROUBLES.items():
        federation.start_node(partition_id=part, trouble=trouble)
    run = federation.run(app=APP, out=str(out), clients=6, num_updates=15, queue_depth=1, method="fedasync")
    until(lambda: is_training(federation, victim) and trace(out, "update"))
    os.killpg(victim.pid, signal.SIGKILL)
    for part in (KILLED, LATE):
        federation.start_node(partition_id=part, slowness=PACE)

    summary = finish(federation, run, out)
    assert summary["updates"] == 15
    assert_replayed(out)
    updates = trace(out, "update")
    assert {record["partition"] for record in updates} == {HONEST, KILLED, LATE}
    refused = trace(out, "failed") + trace(out, "rejected")
    for kind, reason in REASONS:
        assert [record for record in refused if record["kind"] == kind and reason in record["reason"]]
    assert not {record["node"] for record in refused} & {record["node"] for record in updates}
    (gone,) = {record["node"] for record in refused if "the node is gone" in record["reason"]}
    assert gone in {record["node"] for record in trace(out, "left")}
    joined = {record["node"]: record["time"] for record in trace(out, "joined")}
    for part in (KILLED, LATE):
        (node,) = {record["node"] for record in updates if record["partition"] == part}
        assert joined[node] > updates[0]["time"]
    assert {record["seconds"] for record in trace(out, "resting")} >= {60.0}


def is_training(federation, node):
    return any(os.getpgid(pid) == node.pid for pid in federation.offspring("flwr-clientapp"))
