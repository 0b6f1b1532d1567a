"""Parts in any combination: refused in one line, or the same bits after an interruption and in a replay."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncmanifold import InputError, Method, RunError
from asyncmanifold.server.named_parts import KINDS, SEVERAL
from asyncmanifold.simulation.attacks import ATTACKS
from asyncmanifold.vectors import FlatModel
from tiny import EVENTFUL, TRAINING, make_run, make_task, of_kind, simulated, trace_of, without_wall_times

UPDATES = 16
SIZES = (10, 14, 18, 22, 26, 30, 34)
SMALL = {
    "average_from": 3,
    "max_staleness": 4,
    "norm_bound": 2.0,
    "buffer_size": 3,
    "calibrated_size": 3,
    "port_size": 3,
    "window": 3,
    "adapt_after": 2,
    "clip_votes": 4,
    "peer_votes": 4,
}
"""Settings that are required, or whose defaults do nothing in so short a run."""
UNREPEATABLE = ("local-privacy", "private-buffer")


def chosen(names: dict[str, Any], random: np.random.Generator) -> Any:
    """A part of a random class."""
    cls = random.choice([cls for name, cls in names.items() if name not in UNREPEATABLE])
    return cls(**{field.name: SMALL[field.name] for field in fields(cls) if field.name in SMALL})


def compose(random: np.random.Generator) -> Method:
    """A method in which every second stage is a random part."""
    parts: dict[str, Any] = {}
    for stage, (_, names) in KINDS.items():
        if random.random() < 0.5:
            parts[stage] = (chosen(names, random),) if stage in SEVERAL else chosen(names, random)
    return Method(**parts, global_lr=random.choice([0.1, 0.5]).item())


def run_accepted(random: np.random.Generator, out: Path) -> tuple[dict[str, Any], Any]:
    """Compose methods until one is not refused, and run it; refusals are one line each."""
    refusals: list[str] = []
    while len(refusals) < 30:
        attack = chosen(ATTACKS, random) if random.random() < 0.3 else None
        schedule = replace(EVENTFUL, attack=attack)
        settings: dict[str, Any] = {"schedule": schedule, "training": TRAINING, "run": make_run(UPDATES)}
        try:
            settings["method"] = compose(random)
            whole = simulated(make_task(SIZES), out=out / f"whole-{len(refusals)}", **settings)
        except (InputError, RunError) as refusal:
            refusals.append(str(refusal))
        else:
            assert all(len(refusal.splitlines()) == 1 for refusal in refusals)
            return settings, whole
    raise AssertionError(f"no composition was accepted: {refusals}")


@pytest.mark.parametrize("seed", range(24))
def test_any_composition_resumes_and_replays_to_the_same_bits(seed, tmp_path):
    random = np.random.default_rng(seed)
    settings, whole = run_accepted(random, tmp_path)
    stop = random.integers(1, len(of_kind(whole.trace, "update")) + 1)

    def interrupt(record):
        if record.get("update") == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulated(make_task(SIZES), out=tmp_path / "parts", observer=interrupt, **settings)
    parts = simulated(make_task(SIZES), out=tmp_path / "parts", resume=True, **settings)
    replayed = simulated(make_task(SIZES), replay=whole.trace, **settings)
    assert trace_of(tmp_path / "parts") == without_wall_times(whole.trace)
    for other in (parts, replayed):
        assert torch.equal(FlatModel(other.model).vector, FlatModel(whole.model).vector)
