"""What the asynchronous server costs on Flower, beyond Flower: seconds and bytes per update.

One SuperNode on loopback answers almost empty jobs, one at a time, for the library's server and for two
plain loops over the same message: Flower's ``send_and_receive``, which asks for replies every 3 seconds, and
push and pull at the library's own interval. Run by hand; this file is also the Flower app that is measured.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from asyncmanifold import METHODS, LocalTraining
from asyncmanifold.client.training import Trainer
from asyncmanifold.flower import AsyncServer, Policy, train_reply
from asyncmanifold.flower.codec import Sender, TrainingRequest, job_content, model_record, reply_content
from asyncmanifold.flower.identity import Identity
from asyncmanifold.server.outgoing import pack_update
from asyncmanifold.server.protocol import Job
from asyncmanifold.tasks.data import TensorData
from asyncmanifold.vectors import FlatModel

TRAINING = LocalTraining(point_epochs=1, curve_epochs=1)
POLICY = Policy(queue_depth=1, evaluate_clients=False)
TURNS = 3
"""So that a busy minute of the machine falls on all that is measured."""
METHOD = METHODS["asyncbezier"]
PROJECT = """
[project]
name = "overhead"
version = "0.1.0"
description = "Round trips of almost empty jobs"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "asyncmanifold"
[tool.flwr.app.components]
serverapp = "overhead.apps:server_app"
clientapp = "overhead.apps:client_app"
[tool.flwr.app.config]
width = 1000
updates = 5
out = ""
"""
server_app = ServerApp()
client_app = ClientApp()
Seconds = dict[str, list[float]]


@client_app.train()
def train(message: Message, context: Context) -> Message:
    width = int(context.run_config["width"])
    return train_reply(message, context, make_model(width), nn.functional.mse_loss, make_data(width))


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Measure all three in turn, several times over, and write the figures."""
    model, updates = make_model(int(context.run_config["width"])), int(context.run_config["updates"])
    (node,) = wait_for_node(grid)
    measured: dict[str, Callable[[], Seconds]] = {
        "send and receive": lambda: timed(updates, lambda: send_and_receive(grid, job_message(model, node))),
        "push and pull": lambda: timed(updates, lambda: push_and_pull(grid, job_message(model, node))),
        "server": lambda: serve_updates(grid, model, updates),
    }
    figures: dict[str, Seconds] = {name: {"wall": [], "processor": []} for name in measured}
    for _ in range(TURNS):
        for name, measure_once in measured.items():
            for kind, seconds in measure_once().items():
                figures[name][kind] += seconds
    Path(str(context.run_config["out"])).write_text(json.dumps(figures))


def serve_updates(grid: Grid, model: nn.Module, updates: int) -> Seconds:
    """Return wall and processor time of one update after another of the library's server."""
    marks: list[tuple[float, float]] = []

    def mark(update: int, arrays: ArrayRecord) -> None:
        marks.append((time.perf_counter(), time.process_time()))

    server = AsyncServer(model, METHOD, training=TRAINING, policy=POLICY)
    server.start(grid, ArrayRecord(model.state_dict()), updates, evaluate_fn=mark, evaluate_every=1)
    pairs = list(pairwise(marks))
    return {kind: [b[i] - a[i] for a, b in pairs] for i, kind in enumerate(("wall", "processor"))}


def timed(count: int, call: Callable[[], None]) -> Seconds:
    """Return wall and processor time of one call after another."""
    taken: Seconds = {"wall": [], "processor": []}
    for _ in range(count):
        wall, processor = time.perf_counter(), time.process_time()
        call()
        taken["wall"].append(time.perf_counter() - wall)
        taken["processor"].append(time.process_time() - processor)
    return taken


def send_and_receive(grid: Grid, message: Message) -> None:
    (reply,) = grid.send_and_receive([message])
    assert reply.has_content()


def push_and_pull(grid: Grid, message: Message) -> None:
    sent = list(grid.push_messages([message]))
    while not (replies := list(grid.pull_messages(sent))):
        time.sleep(POLICY.poll_seconds)
    assert replies[0].has_content()


def wait_for_node(grid: Grid) -> list[int]:
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(POLICY.poll_seconds)
    return nodes


def make_model(width: int) -> nn.Module:
    return nn.Linear(width, width)


def make_data(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, width), torch.zeros(2, width)


def make_job(flat: FlatModel) -> Job:
    epochs = {"point_epochs": TRAINING.point_epochs, "curve_epochs": TRAINING.curve_epochs}
    return Job(number=0, client=0, version=0, theta=flat.vector, statistics=flat.read_statistics(), **epochs)


def job_of(model: nn.Module) -> RecordDict:
    flat = FlatModel(model)
    job = make_job(flat)
    request = TrainingRequest(job, METHOD.embedding, (), TRAINING, 0, Identity.of(model, METHOD.embedding))
    return job_content(request, model_record(job.theta, job.statistics), ConfigRecord())


def job_message(model: nn.Module, node: int) -> Message:
    return Message(job_of(model), dst_node_id=node, message_type="train")


def reply_of(model: nn.Module, width: int) -> RecordDict:
    job = make_job(FlatModel(model))
    trainer = Trainer(model, nn.functional.mse_loss, METHOD.embedding, TRAINING, 0)
    update = trainer.train(job, TensorData(*make_data(width)))
    sender = Sender(Identity.of(model, METHOD.embedding), name="")
    return reply_content(pack_update(update, job, (), 0), 2, 0, sender)


def count_bytes(width: int) -> dict[str, Any]:
    """Return what a job and its update weigh on the wire, and what their numbers alone weigh."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    def weight(content: RecordDict) -> int:
        return sum(len(part.deflate()) for part in get_all_nested_objects(content).values())

    model = make_model(width)
    parameters = sum(p.numel() for p in model.parameters())
    points = METHOD.embedding.points
    measured = weight(job_of(model)) + weight(reply_of(model, width))
    return {
        "parameters": parameters,
        "control_points": points,
        "job_bytes": weight(job_of(model)),
        "update_bytes": weight(reply_of(model, width)),
        "bytes_over_theory": measured / (4 * parameters * (1 + points)),
    }


def measure(width: int, updates: int) -> dict[str, Seconds]:
    """Return the times of a real run."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    from flower_demo import Federation

    with tempfile.TemporaryDirectory(prefix="flower-overhead-") as name:
        folder = Path(name)
        package = folder / "app" / "overhead"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        shutil.copy(__file__, package / "apps.py")
        (folder / "app" / "pyproject.toml").write_text(PROJECT)
        out = folder / "figures.json"
        with Federation(folder / "federation") as federation:
            federation.start_node(partition_id=0, num_partitions=1)
            run = federation.run(app=folder / "app", width=width, updates=updates, out=str(out), shown=True)
            run.wait()
        figures: dict[str, Seconds] = json.loads(out.read_text())
        return figures


def lines(figures: dict[str, Any]) -> Iterator[str]:
    for name, kinds in figures["seconds"].items():
        wall, processor = median(kinds["wall"]), median(kinds["processor"])
        yield f"{name:<18}{wall:7.2f} s per update, {processor:.3f} s of processor time on the server"
    for name, value in figures["bytes"].items():
        yield f"{name:<18}{value:,.4f}" if isinstance(value, float) else f"{name:<18}{value:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1000, help="width × (width + 1) parameters")
    parser.add_argument(
        "--updates", type=int, default=4, help="of each kind in each turn (default: %(default)s)"
    )
    options = parser.parse_args()
    figures = {"bytes": count_bytes(options.width), "seconds": measure(options.width, options.updates)}
    out = Path("build/flower-overhead.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(figures, indent=2))
    print("\n".join(lines(figures)))


if __name__ == "__main__":
    main()
