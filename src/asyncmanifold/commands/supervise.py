"""Start a run on Flower, resume it whenever it ends before its time, and end with a true exit code.

``flwr run --stream`` ends with exit code 0 whatever became of the run, and Flower notices a killed server
only after most of a minute. The run's own directory knows better: its summary is the last file that a run
writes, and a server that is alive keeps it locked.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncmanifold.errors import InputError
from asyncmanifold.session.control import STOPPED
from asyncmanifold.session.locks import is_locked

STARTED = re.compile(r"started run (\d+)")
LONGEST_WAIT = 300.0
POLL_SECONDS = 1.0
STOP_SECONDS = 60.0
LAST_WORDS_SECONDS = 10.0
"""How long Flower may still show the log of a server that has failed."""


@dataclass(frozen=True)
class SupervisedRun:
    """A run that is started again until it has finished.

    Arguments:
        app: the Flower app's directory.
        superlink: the name of the SuperLink connection in Flower's configuration.
        out: the run's directory, on this machine.
        run_config: the app's settings, as ``flwr run`` takes them, without ``out`` and ``resume``.
        attempts: failures in a row, without an accepted update in between, after which to give up.
        wait_seconds: the pause before the second attempt; twice as long each further time.
    """

    app: str
    superlink: str
    out: Path
    run_config: str = ""
    attempts: int = 5
    wait_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.out.is_absolute():
            raise InputError(f"--out {self.out} must be an absolute path: the server may start elsewhere")
        if given := re.search(r"(?:^|\s)(out|resume)\s*=", self.run_config):
            raise InputError(f"--run-config {given[1]}=…: must not be given, it follows from --out")

    def supervise(self, sleep: Callable[[float], None] = time.sleep) -> int:
        """Return 0 when the run has finished, 1 when it was given up."""
        failures = 0
        is_resumed = self.is_stopped  # by `control stop`, before; whoever starts it again wants it to go on
        while is_resumed or not self.is_finished:
            is_resumed = False
            before = self.accepted
            if self.is_locked:  # one that was started before, and that the last command has lost sight of
                say("a server is still at work on this run: waiting for its end")
                while self.is_locked and not self.is_finished:
                    time.sleep(POLL_SECONDS)
                continue
            self._attempt()
            if self.is_finished:
                break
            failures = 1 if self.accepted > before else failures + 1
            say(f"the run has ended after {self.accepted} updates and is not finished, see the log above")
            if failures >= self.attempts:
                say(f"giving up after {failures} attempts without an update; accepted ones are in {self.out}")
                return 1
            seconds = min(LONGEST_WAIT, self.wait_seconds * 2.0 ** (failures - 1))
            say(f"resuming in {seconds:g} s")
            sleep(seconds)
        say(f"finished: {self.accepted} updates, {self.out}")
        return 0

    @property
    def is_finished(self) -> bool:
        """Whether the run has written its summary."""
        return (self.out / "summary.json").exists()

    @property
    def is_stopped(self) -> bool:
        """Whether the run was told to stop, and has."""
        with suppress(OSError, ValueError, AttributeError):
            said = json.loads((self.out / "summary.json").read_text(encoding="utf-8"))
            return bool(said.get("ended") == STOPPED)
        return False

    @property
    def accepted(self) -> int:
        """The number of accepted updates, as the trace tells."""
        with suppress(OSError):
            lines = (self.out / "trace.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
            return sum(line.startswith('{"kind": "update"') for line in lines)
        return 0

    @property
    def is_locked(self) -> bool:
        """Whether a server is alive that writes to the directory."""
        return is_locked(self.out)

    def command(self) -> list[str]:
        """Return the command that starts the run, or resumes it."""
        resume = json.dumps((self.out / "config.toml").exists())
        config = f"{self.run_config} out={json.dumps(str(self.out))} resume={resume}".strip()
        return [find_flwr(), "run", self.app, self.superlink, "--stream", "--run-config", config]

    def _attempt(self) -> None:
        """Start the run and show its log, until Flower says that it ended or its server is gone."""
        command = self.command()
        say(f"{'resuming' if 'resume=true' in command[-1] else 'starting'} the run: {' '.join(command)}")
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        run_ids: list[str] = []
        reader = threading.Thread(target=show, args=(process, run_ids), daemon=True)
        reader.start()
        before = self._written
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                if self._written != before and not self.is_locked and not self.is_finished:
                    say("the server is gone")
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LAST_WORDS_SECONDS)
                    break
        finally:
            if process.poll() is None:
                process.terminate()
                self._stop(run_ids)
            process.wait()
            reader.join()

    @property
    def _written(self) -> int:
        """When the trace was last written to."""
        with suppress(OSError):
            return (self.out / "trace.jsonl").stat().st_mtime_ns
        return 0

    def _stop(self, run_ids: list[str]) -> None:
        """Let Flower end what is left of the run, so that its jobs do not keep nodes busy."""
        for run_id in run_ids:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [find_flwr(), "stop", run_id, self.superlink],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=STOP_SECONDS,
                )


def show(process: subprocess.Popen[str], run_ids: list[str]) -> None:
    """Pass a process's output on, and note the number of the run that it starts."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            print(line, end="", flush=True)
            if started := STARTED.search(line):
                run_ids.append(started[1])


def find_flwr() -> str:
    """Return Flower's command."""
    found = shutil.which("flwr") or shutil.which("flwr", path=str(Path(sys.executable).parent))
    if found is None:
        raise InputError("flwr is not installed: pip install 'asyncmanifold[flower]'")
    return found


def say(line: str) -> None:
    """Print a line of the supervisor's own."""
    print(f"supervise: {line}", file=sys.stderr, flush=True)
