"""Every method gives the bits of version 0.1.0, wherever it is trained and when it is replayed."""

import json
from dataclasses import replace
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


def run_case(name, **options):
    method, training = cases()[name]
    settings = {
        "training": replace(training, point_epochs=1, curve_epochs=1),
        "schedule": Schedule(concurrency=6),
        "run": Run(updates=12, evaluate_every=6),
    }
    return simulate(Digits(clients=8).build(0), method, **settings, **options)


def assert_same(one, other):
    assert record_digests(one.trace) == record_digests(other.trace)
    assert model_digest(one.model) == model_digest(other.model)


def cases_that_train_differently():
    """One case for each kind of job: a worker learns nothing of a method but these parts."""
    kinds = {}
    for name, (method, training) in cases().items():
        kinds.setdefault((method.embedding, method.outgoing, method.adaptive_epochs, training), name)
    return set(kinds.values())


@pytest.mark.parametrize("name", cases())
def test_replays_and_workers_give_the_same_bits(name):
    """On this processor as it is."""
    made = run_case(name)
    assert_same(run_case(name, replay=made.trace), made)
    if name in cases_that_train_differently():
        assert_same(run_case(name, placement=Placement(workers=2)), made)
