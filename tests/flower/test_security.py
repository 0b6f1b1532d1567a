"""TLS and node authentication with Flower's own processes: only a registered node is given work."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from certificates import write_certificates, write_node_key

BIN = Path(sys.executable).parent
UPDATES = 2
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}
PROJECT = """
[project]
name = "tiny-app"
version = "1.0.0"
description = "A linear model on random numbers"
license = "Apache-2.0"
dependencies = ["asyncmanifold[flower]"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "tiny_app.server_app:app"
clientapp = "tiny_app.client_app:app"

[tool.flwr.app.config]
updates = 1
out = ""
"""
SERVER = """
from asyncmanifold.flower import AsyncServer, Policy
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    model = nn.Linear(4, 2)
    policy = Policy(queue_depth=2, wait_seconds=60, evaluate_clients=False)
    given = context.run_config
    AsyncServer(model, "asyncsgd", policy=policy).start(
        grid, ArrayRecord(model.state_dict()), given["updates"], out=given["out"]
    )
"""
CLIENT = """
import torch
from asyncmanifold.flower import train_reply
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    data = torch.randn(16, 4), torch.randint(2, (16,))
    return train_reply(message, context, nn.Linear(4, 2), nn.functional.cross_entropy, data)
"""


class Consortium:
    """A SuperLink with TLS that knows its nodes by their keys, and what is started around it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._home = folder / "home"
        self._home.mkdir()
        connection = f'[superlink.consortium]\naddress = "{self.address}"\n'
        (self._home / "config.toml").write_text(f'{connection}root-certificates = "{folder / "ca.pem"}"\n')
        path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
        self._environment = {**os.environ, **SETTINGS, "FLWR_HOME": str(self._home), "PATH": path}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, program: str, *options: str) -> subprocess.Popen[bytes]:
        """Start one of Flower's programs in a process group of its own; its log is ``NAME.log``."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [BIN / program, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )
        return self._processes[name]

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self.start(
            *("superlink", "flower-superlink", "--port", str(self.port), "--enable-supernode-auth"),
            *("--ssl-certfile", "superlink.pem", "--ssl-keyfile", "superlink.key"),
            *("--ssl-ca-certfile", "ca.pem", "--disable-runtime-dependency-installation"),
        )
        self.wait_until("the SuperLink listens", lambda: listens(self.port), seconds=60)

    def start_node(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a SuperNode that gives up soon if it cannot connect."""
        own_port = ("--port", str(free_port()), "--max-retries", "2")
        return self.start(name, "flower-supernode", "--superlink", self.address, *own_port, *options)

    def command(self, *words: str) -> str:
        """Run ``flwr`` with such words to its end and return what it printed."""
        ran = subprocess.run(
            [BIN / "flwr", *words],
            env=self._environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def wait_until(self, what: str, happened: Callable[[], bool], *, seconds: float) -> None:
        """Wait until something has happened; where it does not, fail with the end of every log."""
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{name}: {self.log(name)[-2000:]}" for name in self._processes)
                pytest.fail(f"not in {seconds:g} s: {what}\n{logs}")
            time.sleep(0.2)

    def log(self, name: str) -> str:
        """Return what a process has written so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End every process group that was started, and what has left its group."""
        for process in self._processes.values():
            signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        while self._offspring() and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in self._processes.values():
            signal_group(process.pid, signal.SIGKILL)
        for pid in self._offspring():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes.values():
            process.wait(10)

    def _offspring(self) -> list[int]:
        """Return the processes that carry this consortium's environment; a SuperLink's leave its group."""
        for process in self._processes.values():
            process.poll()
        mark, found = f"FLWR_HOME={self._home}\0".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found


@pytest.fixture
def consortium(tmp_path: Path) -> Iterator[Consortium]:
    write_certificates(tmp_path)
    consortium = Consortium(tmp_path)
    try:
        consortium.start_superlink()
        yield consortium
    finally:
        consortium.stop()


def test_only_a_registered_node_is_given_work(consortium: Consortium, tmp_path: Path) -> None:
    write_app(tmp_path / "app")
    write_node_key(tmp_path / "member")
    write_node_key(tmp_path / "stranger")
    trust, key = ("--root-certificates", "ca.pem"), "--auth-supernode-private-key"
    told = consortium.command("supernode", "register", "member.pub", "consortium", "--format", "json")
    member = int(json.loads(told)["node-id"])

    refused = {
        "unregistered": consortium.start_node("unregistered", *trust, key, "stranger"),
        "without-key": consortium.start_node("without-key", *trust),
        "without-tls": consortium.start_node("without-tls", "--insecure"),
    }
    running = consortium.start_node("member", *trust, key, "member")
    out = tmp_path / "out"
    consortium.command("run", "app", "consortium", "--run-config", f'updates={UPDATES} out="{out}"')
    consortium.wait_until("the run ends", (out / "summary.json").exists, seconds=240)

    assert [record["node"] for record in records(out, "update")] == [member] * UPDATES
    assert {record["node"] for record in records(out, "joined")} == {member}
    assert running.poll() is None
    for name, process in refused.items():
        assert process.wait(30) != 0, name
        assert "could not establish a connection" in consortium.log(name), name
    assert consortium.log("superlink").count("Activated node_id") == 1


def records(out: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind in a run's trace."""
    lines = map(json.loads, (out / "trace.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == kind]


def write_app(folder: Path) -> None:
    """Write a Flower app that trains a linear model on random numbers."""
    package = folder / "tiny_app"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("server_app", SERVER), ("client_app", CLIENT)):
        (package / f"{name}.py").write_text(text)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group, if there still is one."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
