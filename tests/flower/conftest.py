"""Real Flower processes on loopback; whatever a test starts is gone when its module ends."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asyncmanifold.commands.cli import main
from tiny import of_kind

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from flower_demo import APP, Federation  # noqa: E402

RUN_SECONDS = 900.0
"""The longest that a run may take on a busy machine; alone on two cores it is a tenth."""
QUICK = {"num_updates": 8, "evaluate_every": 4, "evaluate_clients": False}
METHODS = {"fedasync": "", "fedbuff": "buffer_size=3", "asyncbezier": "global_lr=0.5"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory, request):
    """A SuperLink; ``SUPERLINK`` of the test module holds its further options."""
    options = getattr(request.module, "SUPERLINK", ())
    with pytest.MonkeyPatch.context() as patch:
        # For apps that wrap the example's, and for parts from outside the package.
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT / "src", APP, ROOT / "examples"))))
        folder = tmp_path_factory.mktemp("flower")
        # For sinks: nothing leaves this machine.
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_DIR", str(folder))
        started = Federation(folder / "federation", *options)
    with started:
        yield started
    assert started.offspring() == []


def until(condition: Callable[[], Any], seconds: float = RUN_SECONDS) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds:g} s"
        time.sleep(0.2)
    return found


def trace(out: Path, kind: str) -> list[dict[str, Any]]:
    """Return a run's records of one kind so far."""
    path = out / "trace.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return of_kind([json.loads(line) for line in lines if line.endswith("\n")], kind)


def finish(federation: Federation, run: subprocess.Popen[bytes], out: Path) -> dict[str, Any]:
    """Wait for a run's end and return its summary."""
    run.wait(RUN_SECONDS)
    log = federation.folder / f"{federation.processes.index(run)}-flwr.log"
    assert (out / "summary.json").exists(), log.read_text()[-5000:]
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def assert_replayed(out: Path) -> None:
    """The recorded arrivals, made again by the simulator, give the same model, number by number."""
    again = out.with_name(out.name + "-replayed")
    command = ["run", str(out / "config.toml"), "--replay", str(out / "trace.jsonl"), "--out", str(again)]
    assert main([*command, "--quiet"]) == 0
    made, expected = (load_file(folder / "model.safetensors") for folder in (again, out))
    assert made.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(made[name], tensor, rtol=1e-6, atol=1e-7)
