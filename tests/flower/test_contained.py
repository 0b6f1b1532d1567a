"""Nodes that write their own wire form, send too much, or never finish: refused, and nobody is held up."""

from itertools import pairwise

from flower_demo import free_port, words

from conftest import ROOT, finish, trace

APP = ROOT / "tests" / "flower" / "app"
HONEST, SILENT = 0, 1
TROUBLES = {2: "garbage", 3: "other", 4: "large", 5: "old"}
REASONS = {
    SILENT: "the upload of the reply did not end within the deadline",
    2: "malformed reply: Error parsing message",
    3: "the reply says that it answers another message",
    4: "bytes or more, the most for this model is",
    5: "the node has asyncmanifold 0.1.0, the server has asyncmanifold",
}
DEADLINE = 120.0
LONGEST_PAUSE = 150.0
"""Seconds between two updates of the honest node on a busy machine; a run that waited for the upload of the
silent one would stand still for longer."""


def test_no_node_can_crash_or_freeze_a_run(federation, tmp_path):
    out = tmp_path / "run"
    federation.start_node(partition_id=HONEST, slowness=15.0, name="honest")
    federation.start(
        *("python", str(ROOT / "tests" / "flower" / "hostile_supernode.py")),
        *("--insecure", "--superlink", federation.address, "--port", str(free_port())),
        *("--node-config", words({"partition_id": SILENT, "name": "silent"})),
    )
    for part, trouble in TROUBLES.items():
        federation.start_node(partition_id=part, trouble=trouble, name=trouble)
    config = {"clients": 6, "num_updates": 6, "queue_depth": 1, "method": "fedasync", "deadline": DEADLINE}
    summary = finish(federation, federation.run(app=APP, out=str(out), evaluate_clients=False, **config), out)
    assert summary["updates"] == 6
    updates = trace(out, "update")
    assert {record["name"] for record in updates} == {"honest"}
    times = [record["time"] for record in updates]
    assert max(late - early for early, late in pairwise(times)) < LONGEST_PAUSE
    refused = trace(out, "failed") + trace(out, "rejected")
    reasons = {record["reason"] for record in refused}
    for reason in REASONS.values():
        assert any(reason in found for found in reasons), (reason, reasons)
    assert not {record["node"] for record in refused} & {record["node"] for record in updates}
