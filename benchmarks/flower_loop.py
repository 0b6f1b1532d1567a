"""The server's loop on a grid in this process: what an update costs besides the rule, by nodes and by size.

Nodes answer at once with an update that was made before, so that all time is the server's: choosing nodes,
writing and reading messages, absorbing, and, with files, making every accepted update durable. Numbers of
nodes are compared by processor time, which other programs disturb less; everything else by wall time.
"""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from asyncmanifold import METHODS, LocalTraining, Parcel, ServerState, Update, absorb
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.flower.arrays import array_record
from asyncmanifold.flower.codec import Sender, reply_content
from asyncmanifold.flower.identity import Identity
from asyncmanifold.vectors import Statistics

FEW, MANY = 100, 10_000
SMALL, LARGE = 10_000, 10_000_000
REPEATS = 3
IN_A_PULL, WARM_UP = 8, 2
METHOD = "asyncbezier"
EACH = f"parameters, {METHOD}, best of {REPEATS}"
POLICY = Policy(poll_seconds=1e-4, evaluate_clients=False)


class BenchGrid:
    """Answers a fixed number of messages in every pull, in the order in which they were sent."""

    def __init__(self, nodes: int, content: RecordDict, in_a_pull: int) -> None:
        TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1
        self._nodes = [NodeInfo(node_id=100 + node) for node in range(nodes)]
        self._content, self._in_a_pull = content, in_a_pull
        self._waiting: dict[str, Message] = {}
        self._sent = 0
        self.pulls: list[tuple[float, float]] = []

    def get_nodes(self) -> list[NodeInfo]:
        return self._nodes

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = []
        for message in messages:
            message_id = str(self._sent)
            message.metadata.__dict__["_message_id"] = message_id
            message.content = RecordDict()  # as if it had left
            self._waiting[message_id] = message
            self._sent += 1
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        self.pulls.append((perf_counter(), process_time()))
        ready = [message_id for message_id, _ in zip(message_ids, range(self._in_a_pull), strict=False)]
        return [Message(self._content, reply_to=self._waiting.pop(message_id)) for message_id in ready]


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # after the import of flwr, which sets its own
    seconds: dict[str, list[float]] = {"few": [], "many": [], "files": [], "large": [], "rule": []}
    processor: dict[str, list[float]] = {"few": [], "many": []}
    for _ in range(REPEATS):
        for name, nodes in (("few", FEW), ("many", MANY)):
            wall, own = loop(nodes, SMALL, updates=400)
            seconds[name].append(wall)
            processor[name].append(own)
        with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
            seconds["files"].append(loop(FEW, SMALL, updates=400, out=Path(folder) / "run")[0])
        seconds["large"].append(loop(8, LARGE, updates=16)[0])
        seconds["rule"].append(rule(LARGE, updates=16))
    few, many = (min(processor[name]) for name in ("few", "many"))
    best = {name: min(found) for name, found in seconds.items()}
    print(
        json.dumps(
            {
                "flower_update_10000_over_100_nodes": {
                    "value": many / few,
                    "detail": f"{many * 1e3:.2f} over {few * 1e3:.2f} ms of processor time, {SMALL:,} {EACH}",
                },
                "flower_with_files_over_without": {
                    "value": best["few"] / best["files"],
                    "detail": f"{1 / best['files']:.0f} over {1 / best['few']:.0f} per s, {SMALL:,} {EACH}",
                },
                "flower_update_over_rule_10m": {
                    "value": best["large"] / best["rule"],
                    "detail": f"{best['large'] * 1e3:.0f} over {best['rule'] * 1e3:.0f} ms, {LARGE:,} {EACH}",
                },
            }
        )
    )


def loop(nodes: int, parameters: int, updates: int, out: Path | None = None) -> tuple[float, float]:
    """Return wall and processor seconds per update, after the nodes have been given their first jobs."""
    model = nn.Linear(parameters - 1, 1)
    method = METHODS[METHOD]
    server = AsyncServer(model, METHOD, training=LocalTraining(), policy=POLICY)
    sender = Sender(Identity.of(model, method.embedding), "")
    parcel = Parcel({"offsets": offsets(parameters), **Statistics.none().named("statistics")}, 1.0, 1.0)
    grid: Any = BenchGrid(nodes, reply_content(parcel, 10, 0, sender), IN_A_PULL)
    total = updates + IN_A_PULL * WARM_UP
    server.start(grid, array_record(model.state_dict()), total, evaluate_every=total, out=out)
    pulls = grid.pulls[WARM_UP:]
    (first, own_first), (last, own_last) = pulls[0], pulls[-1]
    made = IN_A_PULL * (len(pulls) - 1)
    return (last - first) / made, (own_last - own_first) / made


def rule(parameters: int, updates: int) -> float:
    """Return the seconds per update of the rule alone, on models whose memory is used again."""
    method = METHODS[METHOD]
    update = Update(client=0, version=0, offsets=offsets(parameters))
    state, spare = ServerState(torch.zeros(parameters)), torch.zeros(parameters)
    base, started = state.theta.clone(), 0.0
    for number in range(updates + 2):
        if number == 2:
            started = perf_counter()
        before = state
        state, _ = absorb(method, before, update, base=base, weight=0.1, out=spare)
        spare = before.theta
    return (perf_counter() - started) / updates


def offsets(parameters: int) -> torch.Tensor:
    points = METHODS[METHOD].embedding.points
    return 1e-3 * torch.randn(points, parameters, generator=torch.Generator().manual_seed(0))


if __name__ == "__main__":
    main()
