"""Every method gives the bits of version 0.1.0, wherever it is trained and when it is replayed."""

import json
from pathlib import Path

import pytest

from asyncmanifold import Placement, Run, Schedule, simulate
from asyncmanifold.tasks.digits import Digits
from golden import cases, digests_of_this_version, model_digest, record_digests

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def test_every_method_gives_the_bits_of_version_0_1_0():
    """In portable arithmetic, so that it holds on processors of either maker."""
    made = digests_of_this_version()
    assert set(made) == set(GOLDEN)
    for name, digests in GOLDEN.items():
        assert made[name]["records"] == digests["records"], name
        assert made[name]["model"] == digests["model"], name


@pytest.mark.parametrize("name", cases())
def test_workers_and_a_replay_give_the_same_bits(name):
    """On this processor as it is."""
    method, training = cases()[name]
    settings = {
        "training": training,
        "schedule": Schedule(concurrency=6),
        "run": Run(updates=12, evaluate_every=6),
    }
    task = Digits(clients=8).build(0)
    inline = simulate(task, method, **settings)
    workers = simulate(task, method, **settings, placement=Placement(workers=2))
    assert record_digests(workers.trace) == record_digests(inline.trace)
    assert model_digest(workers.model) == model_digest(inline.model)
    replayed = simulate(task, method, **settings, replay=inline.trace)
    assert record_digests(replayed.trace) == record_digests(inline.trace)
    assert model_digest(replayed.model) == model_digest(inline.model)
