"""Asynchronous training on real Flower processes: a SuperLink and four SuperNodes of different speed.

Everything runs on this machine, on free ports of the loopback interface, and is ended at the end.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from asyncmanifold.commands.printing import print_summary
from asyncmanifold.report import write_report
from asyncmanifold.session.trace import read_trace

APP = Path(__file__).resolve().parent / "flower-app"
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_raylet_start_wait_time_s": "180",  # for the simulation engine on a busy machine
}
SLOWNESS = (0.0, 3.0, 6.0, 12.0)
"""Seconds that each node of the demonstration sleeps per job."""
SETTINGS = "global_lr=0.5 concentration=2"
"""The scenario's own rate is for fifteen clients: with few, each has a large share, and half of it is enough.
With a concentration of 2 every node has most digits, as the departments of one hospital might."""
START_SECONDS = 60.0
STOP_SECONDS = 10.0

Process = subprocess.Popen[bytes]


class Federation:
    """A SuperLink, and SuperNodes that join and leave; leaving the block ends every process."""

    def __init__(self, folder: Path, *options: str) -> None:
        """Keep Flower's own files and the logs in ``folder``; ``options`` are the SuperLink's."""
        self.folder = folder
        self.processes: list[Process] = []
        self.address = f"127.0.0.1:{free_port()}"
        (folder / "home").mkdir(parents=True)
        connection = f'[superlink.loopback]\naddress = "{self.address}"\ninsecure = true\n'
        (folder / "home" / "config.toml").write_text(connection)
        path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
        self._environment = {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(folder / "home"), "PATH": path}
        self._options = options

    def __enter__(self) -> "Federation":
        no_install = "--disable-runtime-dependency-installation"
        port = self.address.partition(":")[2]
        link = self.start("flower-superlink", "--insecure", no_install, "--port", port, *self._options)
        try:
            wait_for_port(int(port), link)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started here, and what that has started, in a group of its own or not."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while (left := self.offspring()) and time.monotonic() < deadline + STOP_SECONDS:
            for pid in left if time.monotonic() > deadline else []:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, program: str, *options: str, shown: bool = False) -> Process:
        """Start one of Flower's programs; in a process group of its own, Ctrl-C does not reach it."""
        with (self.folder / f"{len(self.processes)}-{program}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / program), *options],
                stdout=None if shown else log,
                stderr=None if shown else subprocess.STDOUT,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_node(self, **config: Any) -> Process:
        """Start a SuperNode with such a node config."""
        return self.start(
            *("flower-supernode", "--insecure", "--superlink", self.address),
            *("--port", str(free_port()), "--node-config", words(config)),
        )

    def run(self, *options: str, app: Path = APP, shown: bool = False, **config: Any) -> Process:
        """Start a run of the app with such a run config; its server's log goes to a file, or is shown."""
        command = ("run", str(app), "loopback", "--stream", "--run-config", words(config))
        return self.start("flwr", *command, *options, shown=shown)

    def offspring(self, command: str = "") -> list[int]:
        """Return the processes that have inherited this federation's environment, as far as Linux tells."""
        for process in self.processes:
            process.poll()
        mark = f"FLWR_HOME={self.folder / 'home'}\0".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes() and command in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
        return found


def words(config: dict[str, Any]) -> str:
    """Return settings as Flower's command line takes them: TOML values, underscores as hyphens."""
    return " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: Process) -> None:
    """Wait until a process listens."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} does not listen on port {port}")


def main(updates: int = 24) -> int:
    """Run the demonstration; return the exit code."""
    out = Path("build/flower-demo").resolve()
    shutil.rmtree(out, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="flower-demo-") as folder, Federation(Path(folder)) as federation:
        for part, slowness in enumerate(SLOWNESS):
            federation.start_node(partition_id=part, num_partitions=len(SLOWNESS), slowness=slowness)
        print(f"SuperLink on {federation.address}, nodes with {SLOWNESS} seconds of extra work per job")
        run = federation.run(
            out=str(out), num_updates=updates, queue_depth=1, evaluate_every=4, settings=SETTINGS, shown=True
        )
        run.wait()
        print("stopping SuperLink and SuperNodes")
    if not (out / "summary.json").exists():
        print("the run did not come to its end, see the log above", file=sys.stderr)
        return 1
    show(out)
    return 0


def show(out: Path) -> None:
    """Print what the run came to, who contributed how much, and where the report is."""
    print_summary(json.loads((out / "summary.json").read_text()), out)
    updates = [record for record in read_trace(out / "trace.jsonl") if record["kind"] == "update"]
    for part, slowness in enumerate(SLOWNESS):
        count = sum(record["partition"] == part for record in updates)
        print(f"  node {part}        {count} updates, {slowness:g} s slower per job")
    print(f"report: {write_report(out)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
