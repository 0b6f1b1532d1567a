"""A run on Flower while everything goes wrong: ``soak.py --minutes 10``. Then its files are checked.

Nodes are killed, stopped, slow and lying at random; the server is killed, the SuperLink is killed and started
again, the disk is filled where a small one can be mounted. A supervisor resumes the run. In the end every
accepted update must be in the files exactly once, versions must be gapless, memory flat, and a replay must
give the same model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import torch
from flower_demo import APP as EXAMPLE
from flower_demo import BIN, Federation, Process, wait_for_port
from safetensors.torch import load_file

from asyncmanifold.commands.cli import main as asyncmanifold

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "tests" / "flower" / "app"
HONEST, CLIENTS = 3, 6
LIES = ("nan", "shape", "garbage", "other", "large", "old", "raises")
UPDATES_PER_MINUTE = 4
PAUSE = 30.0
"""Seconds between two troubles."""
DISK_MEGABYTES = 24
FLAT = 1.3


class Soak:
    """The federation under test, and the troubles that befall it."""

    def __init__(self, federation: Federation, out: Path, seed: int) -> None:
        self.federation, self.out = federation, out
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.memory: list[tuple[float, int]] = []
        self.nodes: dict[int, Process] = {}
        for part in range(CLIENTS):
            self.start_node(part)

    def start_node(self, part: int) -> None:
        """Start the node of a part: honest, or lying in a new way each time."""
        lie = {} if part < HONEST else {"trouble": self.random.choice(LIES)}
        slowness = self.random.choice((0.0, 5.0, 15.0))
        self.nodes[part] = self.federation.start_node(
            partition_id=part, num_partitions=CLIENTS, name=f"part-{part}", slowness=slowness, **lie
        )

    def kill_node(self) -> None:
        """A node is killed, and another is started in its place."""
        part = self.random.randrange(CLIENTS)
        with suppress(ProcessLookupError):
            os.killpg(self.nodes[part].pid, signal.SIGKILL)
        self.start_node(part)

    def stop_node(self) -> None:
        """A node stands still for a while."""
        group = self.nodes[self.random.randrange(CLIENTS)].pid
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGSTOP)
            time.sleep(PAUSE / 2)
            os.killpg(group, signal.SIGCONT)

    def kill_server(self) -> None:
        """The process that holds the model is killed."""
        for server in self.federation.offspring("flwr-serverapp"):
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)

    def kill_superlink(self) -> None:
        """The SuperLink is killed, with all that it has started, and started again."""
        for pid in (self.federation.processes[0].pid, *self.federation.offspring("flwr-serverapp")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(2.0)
        self.federation.processes[0].wait()
        self.federation.processes[0] = start_superlink(self.federation)

    def fill_disk(self) -> None:
        """The run's disk is full for a while."""
        filler = self.out.parent / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(2**16))
                file.flush()
        time.sleep(PAUSE)
        filler.unlink()

    def measure(self) -> None:
        """Note the server's memory."""
        for server in self.federation.offspring("flwr-serverapp"):
            with suppress(OSError, ValueError, IndexError):
                status = Path(f"/proc/{server}/status").read_text()
                self.memory.append((time.monotonic(), int(status.split("VmRSS:")[1].split()[0]) * 1024))


def start_superlink(federation: Federation) -> Process:
    """Start a SuperLink on the federation's port, with its database."""
    port = federation.address.partition(":")[2]
    link = federation.start(
        *("flower-superlink", "--insecure", "--disable-runtime-dependency-installation"),
        *("--port", port, "--database", str(federation.folder / "superlink.db")),
    )
    federation.processes.remove(link)
    wait_for_port(int(port), link)
    return link


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk at a folder, if that is allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="A run on Flower while everything goes wrong.")
    parser.add_argument("--minutes", type=float, default=10.0, help="about how long (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "src", EXAMPLE, ROOT / "examples")))
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    database = ("--database", str(folder / "federation" / "superlink.db"))
    with small_disk(folder / "disk") as is_small, Federation(folder / "federation", *database) as federation:
        soak = Soak(federation, folder / "disk" / "run", options.seed)
        updates = max(8, round(UPDATES_PER_MINUTE * options.minutes))
        seconds = soak_until_finished(soak, updates, is_small, limit=600.0 + 180.0 * options.minutes)
        figures = check(soak, updates)
    print(json.dumps({"seconds": round(seconds), "troubles": dict(soak.happened), **figures}, indent=1))
    return 0


def soak_until_finished(soak: Soak, updates: int, is_small: bool, limit: float) -> float:
    """Run under supervision with one trouble after another; return the seconds."""
    config = f"clients={CLIENTS} num-updates={updates} deadline=120.0 queue-depth=1 evaluate-clients=false"
    config += ' settings="global_lr=0.3 concentration=2" evaluate-every=10 rest-seconds=5.0'
    command = ["supervise", str(APP), "loopback", "--out", str(soak.out), "--run-config", config]
    supervisor = soak.federation.start("asyncmanifold", "flower", *command, "--attempts", "20", shown=True)
    troubles: list[Callable[[], None]] = [
        *[soak.kill_node] * 3,
        *[soak.stop_node] * 3,
        *[soak.kill_server] * 2,
        soak.kill_superlink,
        *([soak.fill_disk] if is_small else []),
    ]
    left: list[Callable[[], None]] = []  # every trouble comes before any of them comes again
    started = time.monotonic()
    while supervisor.poll() is None:
        assert time.monotonic() - started < limit, "the run has not come to its end"
        until = time.monotonic() + PAUSE * soak.random.uniform(0.5, 1.5)
        while time.monotonic() < until and supervisor.poll() is None:
            soak.measure()
            time.sleep(1.0)
        if supervisor.poll() is None:
            left = left or soak.random.sample(troubles, len(troubles))
            trouble = left.pop()
            print(f"soak: {trouble.__name__.replace('_', ' ')}", flush=True)
            soak.happened[trouble.__name__] += 1
            trouble()
    assert supervisor.returncode == 0, f"the supervisor has ended with {supervisor.returncode}"
    return time.monotonic() - started


def check(soak: Soak, updates: int) -> dict[str, float]:
    """Check the run's files; return the figures."""
    records = [json.loads(line) for line in (soak.out / "trace.jsonl").read_text().splitlines()]
    kinds = Counter(record["kind"] for record in records)
    accepted = [record for record in records if record["kind"] == "update"]
    assert [record["update"] for record in accepted] == list(range(1, updates + 1)), "updates are not gapless"
    assert len({record["job"] for record in accepted}) == updates, "a job was absorbed twice"
    assert [record["version"] for record in accepted] == list(range(1, updates + 1)), (
        "versions are not gapless"
    )
    assert all(record["partition"] < HONEST for record in accepted), "a lie was absorbed"
    again = soak.out.with_name("again")
    replay = ["--replay", str(soak.out / "trace.jsonl"), "--out", str(again), "--quiet"]
    assert asyncmanifold(["run", str(soak.out / "config.toml"), *replay]) == 0
    made, expected = (load_file(folder / "model.safetensors") for folder in (again, soak.out))
    for name, tensor in expected.items():
        assert torch.equal(made[name], tensor), f"the replay gives another {name}"
    half = len(soak.memory) // 2
    first, last = (median(size for _, size in part) for part in (soak.memory[:half], soak.memory[half:]))
    assert last < FLAT * first, f"the server's memory has grown from {first} to {last}"
    refused = kinds["failed"] + kinds["rejected"]
    memory = {"memory_first_half_mb": round(first / 1e6), "memory_second_half_mb": round(last / 1e6)}
    return {"updates": len(accepted), "refused": refused, "rests": kinds["resting"], **memory}


if __name__ == "__main__":
    assert BIN.exists()
    sys.exit(main())
