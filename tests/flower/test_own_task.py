"""A person's own task on running SuperNodes: the example's app with ``my.py:build``, and two nodes."""

import tomllib

from conftest import QUICK, assert_replayed, finish, trace

MINE = """
import torch
from torch import nn
from asyncmanifold import Task


def build(seed, clients: int = 3, slope: float = 1.0):
    random = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(24, 4, generator=random) for _ in range(clients + 1)]
    data = [(each, slope * each.sum(dim=1, keepdim=True)) for each in inputs]
    torch.manual_seed(seed)
    return Task(nn.Linear(4, 1), nn.functional.mse_loss, data[:-1], data[-1], validation=data[:-1])
"""


def test_an_own_task_is_trained_scored_and_replayed(federation, tmp_path):
    (tmp_path / "my.py").write_text(MINE)
    place, out = f"{tmp_path / 'my.py'}:build", tmp_path / "run"
    for part in range(2):
        federation.start_node(partition_id=part, num_partitions=2, task=place)
    config = QUICK | {"out": str(out), "scenario": place, "method": "asyncsgd", "settings": "slope=2"}
    config |= {"num_updates": 4, "evaluate_every": 2, "clients": 2, "evaluate_clients": True}
    summary = finish(federation, federation.run(queue_depth=1, **config), out)
    assert (summary["updates"], summary["failed"], summary["rejected"]) == (4, 0, 0)
    assert summary["metric"] == "loss"
    assert {record["partition"] for record in trace(out, "update")} == {0, 1}
    assert {record["examples"] for record in trace(out, "update")} == {24}
    first, *_, last = (record["loss"] for record in trace(out, "evaluation"))
    assert last < first
    task = tomllib.loads((out / "config.toml").read_text())["task"]
    assert task == {"name": place, "clients": 2, "slope": 2.0}
    assert_replayed(out)
