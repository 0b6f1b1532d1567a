"""What runs on digits came to in version 0.1.0, bit for bit: digests of every record and of the final model.

Run as a program it prints the digests of this version as JSON, in arithmetic that is the same on every x86-64
processor with AVX2. ``golden.json`` was printed by version 0.1.0.
"""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncmanifold.arithmetic import PORTABLE

UPDATES = 24
KEYS = {
    "update": (
        *("update", "time", "client", "job", "dispatched", "version", "base_version", "staleness", "weight"),
        *("drift_norm", "update_norm", "end_norm", "cosines", "projected", "penalty", "fraction", "t"),
        *("step_norm", "epochs", "loss"),
    ),
    "evaluation": ("update", "version", "time", "accuracy", "loss"),
    "rejected": ("time", "client", "job", "dispatched", "base_version", "reason"),
}


def cases() -> dict[str, tuple[Any, Any]]:
    """Return (method, training) by name: the paper's methods, some since, and parts that none of them has."""
    from asyncmanifold import (
        METHODS,
        Averaging,
        Bezier,
        Buffer,
        DelayCompensation,
        Hinge,
        LocalTraining,
        OrthoDC,
        Patch,
        Polynomial,
        Tunnel,
    )
    from asyncmanifold.server.methods import COMPARED

    adam = LocalTraining(point_epochs=2, curve_epochs=2, batch_size=16, local_lr=0.003)
    curve = METHODS["asyncbezier"]
    return {
        **{name: (METHODS[name], adam) for name in (*COMPARED, "fadas", "ca2fl", "fedcompass")},
        "cubic-chord": (replace(curve, embedding=Bezier(3, interior_start="chord")), adam),
        "frozen-end": (replace(curve, embedding=Bezier(2, freeze_end=True, step="parameter")), adam),
        "tunnel": (replace(curve, embedding=Tunnel(2, radius=0.05)), adam),
        "sharpness-aware": (replace(curve, embedding=Tunnel(2, radius=0.05, sharpness_aware=True)), adam),
        "jointly": (replace(curve, correction=OrthoDC(0.5, jointly=True)), adam),
        "averaged": (replace(curve, buffer=Buffer(3), averaging=Averaging(4, 2)), adam),
        "compensated": (replace(curve, correction=DelayCompensation(0.5, adaptive=False)), adam),
        "hinge": (replace(METHODS["fedasync"], staleness=Hinge(), weighting="none", global_lr=0.5), adam),
        "polynomial": (replace(METHODS["fedbuff"], staleness=Polynomial(), weighting="none"), adam),
        "sgd": (METHODS["asyncsgd"], replace(adam, optimizer="sgd", local_lr=0.05)),
        "curve-sgd": (curve, replace(adam, optimizer="sgd", local_lr=0.05)),
        "patch": (replace(curve, embedding=Patch(1, radius=0.05)), adam),
        "by-length": (replace(curve, embedding=Bezier(3, measure="length")), adam),
        "curve-momentum": (curve, replace(adam, optimizer="sgd", local_lr=0.02, momentum=0.9)),
    }


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:10]


def record_digests(trace: list[dict[str, Any]]) -> list[str]:
    """Return a digest for each record: of its kind and what version 0.1.0 said of it."""
    found = []
    for record in trace:
        known = [record["kind"], *(record[key] for key in KEYS[record["kind"]])]
        found.append(digest(json.dumps(known).encode()))
    return found


def model_digest(model: Any) -> str:
    tensors = model.state_dict()
    return digest(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors)))


def result_digests(result: Any) -> dict[str, Any]:
    return {"model": model_digest(result.model), "records": record_digests(result.trace)}


def make_digests() -> dict[str, Any]:
    from asyncmanifold import Run, Schedule, simulate
    from asyncmanifold.tasks.digits import Digits

    task, run = Digits(clients=8).build(0), Run(updates=UPDATES, evaluate_every=12)
    schedule = Schedule(concurrency=6)
    golden = json.loads((Path(__file__).parent / "golden.json").read_text())
    return {
        name: result_digests(simulate(task, method, training=training, schedule=schedule, run=run))
        for name, (method, training) in cases().items()
        if name in golden  # what version 0.1.0 did not have has no digests
    }


def digests_of_this_version() -> dict[str, Any]:
    """Return what this version's runs come to, made in a process with portable arithmetic."""
    command = [sys.executable, str(Path(__file__).resolve())]
    made = subprocess.run(command, env={**os.environ, **PORTABLE}, capture_output=True, text=True, check=True)
    digests: dict[str, Any] = json.loads(made.stdout)
    return digests


if __name__ == "__main__":
    print(json.dumps(make_digests(), indent=1))
