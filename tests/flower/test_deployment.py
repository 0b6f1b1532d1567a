"""The example's app on a SuperLink and three SuperNodes, one of them slow."""

import os
import signal

import pytest

from conftest import METHODS, QUICK, assert_replayed, finish, trace, until

SLOW = 2
"""The partition of the slow node."""


@pytest.fixture(scope="module", autouse=True)
def nodes(federation):
    for part in range(3):
        federation.start_node(partition_id=part, num_partitions=3, slowness=20.0 if part == SLOW else 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_on_nodes_of_different_speed(federation, method, tmp_path):
    out = tmp_path / "run"
    config = QUICK | {"out": str(out), "method": method, "settings": METHODS[method], "clients": 3}
    summary = finish(federation, federation.run(queue_depth=1, **config), out)
    assert (summary["method"], summary["updates"], summary["failed"]) == (method, 8, 0)
    parts = [record["partition"] for record in trace(out, "update")]
    assert min(parts.count(0), parts.count(1)) > parts.count(SLOW)
    assert_replayed(out)


def test_a_killed_server_is_resumed_by_a_second_run(federation, tmp_path):
    out = tmp_path / "run"
    config = QUICK | {"out": str(out), "method": "asyncbezier", "clients": 3, "evaluate_clients": True}
    config["evaluate_seconds"] = 300.0
    first = federation.run(**config)
    until(lambda: len(trace(out, "update")) >= 3)
    (server,) = federation.offspring("flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    first.terminate()
    before = trace(out, "update")  # a line is written when its update is on disk
    summary = finish(federation, federation.run(resume=True, **config), out)
    updates = trace(out, "update")
    assert [record["update"] for record in updates] == list(range(1, 9))
    assert len({record["job"] for record in updates}) == 8
    assert updates[: len(before)] == before != []
    assert len([score for score in summary["per_client"] if score is not None]) == 3
    assert_replayed(out)
