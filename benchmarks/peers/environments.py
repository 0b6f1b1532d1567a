"""An environment for each peer: a venv with the peer as released and the project's version of torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


@dataclass(frozen=True)
class Environment:
    """What is installed. A peer whose own requirements bring in what is not needed comes without them."""

    name: str
    peer: str
    packages: str
    with_requirements: bool = False


PEERS = (
    Environment(
        "flgo",
        "flgo==0.4.4",  # requires torchvision, which only some of its benchmarks import
        "torch numpy tqdm scipy matplotlib prettytable ujson pyyaml networkx requests toolz",
    ),
    Environment(
        "appfl",
        "appfl==1.12.0",  # requires clients of clouds and clusters, and torchvision by way of piq
        "torch numpy omegaconf colorama wandb opacus blosc zstd lz4 matplotlib seaborn scikit-learn pandas "
        "networkx pyyaml requests tqdm",
    ),
    Environment(
        "flower",
        "flwr[simulation]==1.41.0",
        "torch numpy",
        with_requirements=True,
    ),
)


class NotInstalled(Exception):  # noqa: N818 - an outcome, not an error
    """A peer that pip could not install, with the last line of what it said."""


def prepare(environment: Environment, folder: Path) -> Path:
    """Return the environment's Python; create the environment unless it is there as described."""
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == repr(environment):
        return python
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    install = (str(python), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS))
    _run(*install, *environment.packages.split())
    _run(*install, *(() if environment.with_requirements else ("--no-deps",)), environment.peer)
    stamp.write_text(repr(environment))
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise NotInstalled(last_line(done.stdout) or f"{command[0]} ended with {done.returncode}")


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
