"""Hostile clients: each attack by hand, in runs against a slow twin, and to the same bits everywhere."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from asyncmanifold import (
    METHODS,
    ALittleIsEnough,
    Attack,
    Bezier,
    CentredClipping,
    FalseExamples,
    Flooding,
    GaussianNoise,
    InnerProduct,
    InputError,
    Job,
    LabelFlip,
    NormBound,
    NotANumber,
    Parcel,
    Scaling,
    Schedule,
    ServerState,
    SignFlip,
    Task,
    absorb,
    simulate,
)
from asyncmanifold.client.training import Trainer
from asyncmanifold.configuration.config import load_config
from asyncmanifold.configuration.tables import to_tree
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.peers import PEER_GATES
from asyncmanifold.session.summary import summarise
from asyncmanifold.simulation import attacker as attacker_module
from asyncmanifold.simulation.attacker import FlippedLabels, poisoned
from asyncmanifold.simulation.attacks import ATTACKS
from asyncmanifold.tasks.data import TensorData
from asyncmanifold.vectors import FlatModel
from tiny import EVENTFUL, TRAINING, make_model, make_run, make_task, of_kind, simulated, trace_of

SIZES = (10, 14, 18, 22, 26, 30, 34)
every_attack = pytest.mark.parametrize("name", ATTACKS)


def run(attack, method="asyncbezier", out=None, updates=20, schedule=EVENTFUL, **options):
    settings = {"training": TRAINING, "schedule": replace(schedule, attack=attack), "run": make_run(updates)}
    return simulated(make_task(SIZES), method, out=out, **settings, **options)


# --- by hand ------------------------------------------------------------------------------------------

THREE = torch.tensor([[1.0, -2.0], [3.0, 4.0], [0.0, 0.5]])
"""Three updates of two entries."""


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (SignFlip(hostile_strength=2.0), [[-2.0, 4.0], [-6.0, -8.0], [0.0, -1.0]]),
        (Scaling(hostile_strength=3.0), [[3.0, -6.0], [9.0, 12.0], [0.0, 1.5]]),
        (LabelFlip(hostile_strength=2.0), [[2.0, -4.0], [6.0, 8.0], [0.0, 1.0]]),
        (Flooding(), [[-1.0, 2.0], [-3.0, -4.0], [0.0, -0.5]]),
        (FalseExamples(), [[-1.0, 2.0], [-3.0, -4.0], [0.0, -0.5]]),
        (Attack(), THREE.tolist()),
    ],
    ids=str,
)
def test_what_is_sent_instead_of_three_updates(attack, expected):
    before = THREE.clone()
    assert [attack.change(row[None], None, None)[0].tolist() for row in THREE] == expected
    assert torch.equal(THREE, before)


def test_attacks_with_honest_updates_by_hand():
    """Of 1, then 1 and 3, then 1, 3 and 8: means 1, 2, 4 and deviations –, 1, √(26/3)."""
    little, inner, own = ALittleIsEnough(hostile_strength=2.0), InnerProduct(hostile_strength=0.5), THREE[:1]
    known = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]], [[8.0, 0.0]]])
    assert little.change(own, None, None).tolist() == own.tolist()
    assert little.change(own, known[:1], None).tolist() == own.tolist()
    assert little.change(own, known[:2], None).tolist() == [[0.0, 0.0]]
    assert little.change(own, known, None)[0].tolist() == pytest.approx([4.0 - 2.0 * (26 / 3) ** 0.5, 0.0])
    assert inner.change(own, None, None).tolist() == own.tolist()
    assert [inner.change(own, known[:k], None)[0, 0].item() for k in (1, 2, 3)] == [-0.5, -1.0, -2.0]


def test_noise_and_nan_by_hand():
    noise, offsets = GaussianNoise(hostile_strength=3.0), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    drawn = np.random.default_rng(6).standard_normal((2, 2), dtype=np.float32)
    sent = noise.change(offsets, None, np.random.default_rng(6))
    np.testing.assert_allclose(sent.numpy(), drawn * [[3.0 * 5.0 / 2**0.5], [0.0]], rtol=1e-6)
    poison = NotANumber().change(offsets, None, None)
    assert poison.isnan().tolist() == [[False, False], [True, False]]


def test_the_hostile_are_a_share_of_all_by_seed():
    found = [SignFlip(0.2).hostile_clients(15, seed) for seed in range(20)]
    assert {len(clients) for clients in found} == {3}
    assert len(set(found)) > 10
    assert set().union(*found) == set(range(15))
    assert found[0] == Flooding(0.2).hostile_clients(15, 0)  # the same ones, whatever they do
    assert len(SignFlip(0.01).hostile_clients(15, 0)) == 1
    assert not SignFlip(0.0).hostile_clients(15, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignFlip(1.5), r"SignFlip\(hostile_fraction=1.5\) must be between 0 and 1"),
        (lambda: Scaling(hostile_strength=0.0), r"hostile_strength=0.0\) must be above 0"),
        (lambda: Schedule(claim_limit=0.5), r"Schedule\(claim_limit=0.5\) must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


# --- in runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack", [SignFlip(0.3), GaussianNoise(0.3), ALittleIsEnough(0.3), InnerProduct(0.3), LabelFlip(0.3)]
)
def test_a_slow_twin_of_the_run_gives_the_same_model(attack, monkeypatch):
    """Train each recorded job anew, attack by plain formulas over all that was accepted, and absorb it."""
    monkeypatch.setattr(attacker_module, "KNOWN", 3)
    method, task = METHODS["asyncbezier"], make_task(SIZES)
    result = run(attack, updates=25)
    model = FlatModel(task.build_model(0))
    state = ServerState(model.vector.clone(), model.read_statistics())
    versions, accepted = {0: (state.theta.clone(), state.statistics)}, []
    trainer = Trainer(make_model(), task.loss, Bezier(2), TRAINING, seed=0)
    hostile = attack.hostile_clients(len(SIZES), 0)
    for record in of_kind(result.trace, "update"):
        theta, statistics = versions[record["base_version"]]
        client = record["client"]
        job = Job(record["job"], client, record["base_version"], theta, statistics, 1, 1)
        data = task.clients[client]
        if client in hostile and isinstance(attack, LabelFlip):
            data = TensorData(data.inputs, 2 - data.targets, data.indices)
        update = trainer.train(job, data)
        if client in hostile:
            latest = {}
            for who, offsets in accepted:
                latest.pop(who, None)
                latest[who] = offsets
            seen = torch.from_numpy(np.array(list(latest.values())[-3:])) if latest else None
            random = derive(0, Purpose.ATTACK, client, job.number)
            sent = attack.change(update.offsets, seen, random)
            torch.testing.assert_close(sent, plainly(attack, job, update.offsets, list(latest.values())[-3:]))
            update = replace(update, offsets=sent)
        else:
            accepted.append((client, update.offsets.numpy().copy()))
        assert record.get("hostile", False) == (client in hostile)
        state, _ = absorb(method, state, update, base=theta, weight=SIZES[client] / sum(SIZES))
        versions[state.version] = (state.theta.clone(), state.statistics)
    assert {record["client"] for record in of_kind(result.trace, "update")} & hostile
    assert torch.equal(FlatModel(result.model).vector, state.theta)


def plainly(attack, job, offsets, seen):
    if isinstance(attack, SignFlip):
        return -4.0 * offsets
    if isinstance(attack, GaussianNoise):
        noise = derive(0, Purpose.ATTACK, job.client, job.number).standard_normal(
            tuple(offsets.shape), dtype=np.float32
        )
        lengths = np.linalg.norm(offsets.numpy(), axis=1, keepdims=True)
        return torch.from_numpy(4.0 * noise * lengths / offsets.shape[1] ** 0.5).float()
    if isinstance(attack, ALittleIsEnough) and len(seen) > 1:
        return torch.from_numpy(np.mean(seen, 0) - np.float32(1.5) * np.std(seen, 0))
    if isinstance(attack, InnerProduct) and len(seen):
        return torch.from_numpy(np.float32(-4.0) * np.mean(seen, 0))
    return offsets


@pytest.mark.parametrize("name", ["a-little-is-enough", "gaussian-noise", "label-flip", "flooding"])
def test_workers_interruptions_and_replays_give_the_same_bits(name, tmp_path):
    attack = ATTACKS[name](0.3)
    method = replace(METHODS["asyncbezier"], gates=(CentredClipping(),))
    whole = run(attack, method, tmp_path / "whole")
    expected = trace_of(tmp_path / "whole")
    if name in ("a-little-is-enough", "label-flip"):
        run(attack, method, tmp_path / "workers", workers=2)
        assert trace_of(tmp_path / "workers") == expected
    for stop in (6, 14):

        def interrupt(record, stop=stop):
            if record.get("update") == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(attack, method, tmp_path / "parts", resume=True, observer=interrupt)
    run(attack, method, tmp_path / "parts", resume=True)
    assert trace_of(tmp_path / "parts") == expected
    schedule = Schedule(attack=attack)
    again = simulate(make_task(SIZES), method, training=TRAINING, schedule=schedule, replay=expected)
    assert [r["step_norm"] for r in of_kind(again.trace, "update")] == [
        r["step_norm"] for r in of_kind(expected, "update")
    ]
    assert torch.equal(FlatModel(again.model).vector, FlatModel(whole.model).vector)


def test_clients_without_an_update_do_not_change_who_is_hostile_in_a_replay():
    attack = LabelFlip(0.4)
    whole = run(attack, updates=4)
    updates = of_kind(whole.trace, "update")
    assert max(record["client"] for record in updates) < len(SIZES) - 1
    assert any(record.get("hostile") for record in updates)
    again = simulate(
        make_task(SIZES),
        METHODS["asyncbezier"],
        training=TRAINING,
        schedule=Schedule(attack=attack),
        replay=whole.trace,
    )
    assert torch.equal(FlatModel(again.model).vector, FlatModel(whole.model).vector)


@every_attack
@pytest.mark.parametrize("gates", [(), PEER_GATES, (NormBound(0.5, clips=True), CentredClipping())], ids=len)
def test_no_attack_makes_the_model_not_finite(name, gates):
    """What overflows is refused, and what is merely long moves the model to finite places."""
    attack = ATTACKS[name](0.4, 50.0)
    result = run(attack, replace(METHODS["fedasync"], gates=gates), updates=12)
    assert torch.isfinite(FlatModel(result.model).vector).all()
    assert result.summary["updates"] == 12
    if name == "not-a-number":
        assert result.summary["hostile_admitted"] == 0.0
        assert result.summary["honest_admitted"] == 1.0


def test_the_summary_has_the_shares_that_were_let_in():
    result = run(NotANumber(0.3), updates=20)
    arrived = [r for r in result.trace if r["kind"] in ("update", "rejected")]
    hostile = [r for r in arrived if r.get("hostile")]
    assert len(hostile) == len(of_kind(arrived, "rejected")) > 0
    assert {r["client"] for r in hostile} <= NotANumber(0.3).hostile_clients(len(SIZES), 0)
    plain = run(None, updates=5)
    assert (plain.summary["hostile_admitted"], plain.summary["honest_admitted"]) == (None, None)
    assert all("hostile" not in record for record in plain.trace)
    counted = [{"kind": kind, "hostile": hostile, "staleness": 0, "fraction": 1.0, "train_seconds": 0.0}
               for kind, hostile, count in (("update", True, 1), ("rejected", True, 3), ("update", False, 4),
                                            ("rejected", False, 1)) for _ in range(count)]  # fmt: skip
    summary = summarise(
        counted, metrics=[], target=None, final_evaluations=1, per_client=None, validation=None
    )
    assert (summary["hostile_admitted"], summary["honest_admitted"]) == (0.25, 0.8)


def test_flooding_clients_arrive_more_often():
    attack, schedule = Flooding(0.3, 8.0), Schedule("clock")
    hostile = attack.hostile_clients(len(SIZES), 0)
    durations = {}
    for kind in (attack, None):
        for record in of_kind(run(kind, "fedasync", schedule=schedule, updates=40).trace, "update"):
            took = record["time"] - record["dispatched"]
            durations.setdefault((kind is None, record["client"]), took)
    for client in hostile:
        assert durations[False, client] == pytest.approx(durations[True, client] / 8.0)
    assert all(
        durations[False, c] == pytest.approx(durations[True, c])
        for c in range(len(SIZES))
        if c not in hostile and (False, c) in durations
    )


def test_false_claims_are_capped_at_a_multiple_of_the_median():
    """Sizes 10 … 34; two clients claim 100 times theirs, which counts as 2 × 22, the median claim."""
    attack = FalseExamples(0.3, 100.0)
    hostile = attack.hostile_clients(len(SIZES), 0)
    claims = [100 * size if client in hostile else size for client, size in enumerate(SIZES)]
    median = sorted(claims)[3]
    for limit in (None, 2.0):
        counted = [claim if limit is None else min(claim, 2.0 * median) for claim in claims]
        shares = [Fraction(count) / Fraction(sum(counted)) for count in counted]
        result = run(attack, "fedasync", schedule=Schedule("clock", claim_limit=limit), updates=20)
        seen = {record["client"]: record["weight"] for record in of_kind(result.trace, "update")}
        assert seen == pytest.approx({client: float(shares[client]) for client in seen}, rel=1e-12)
        assert hostile & seen.keys()
    honest = run(None, "fedasync", schedule=Schedule("clock", claim_limit=100.0), updates=10)
    for record in of_kind(honest.trace, "update"):
        assert record["weight"] == pytest.approx(SIZES[record["client"]] / sum(SIZES), rel=1e-12)


def test_a_hostile_client_sends_through_the_outgoing_parts():
    """Half precision for everybody: the hostile update was attacked before it was rounded."""
    from asyncmanifold import Outgoing

    class Half(Outgoing):
        def send(self, parcel, random):
            return Parcel({**parcel.tensors, "offsets": parcel.tensors["offsets"].half()}, parcel.loss)

        def receive(self, parcel):
            return Parcel({**parcel.tensors, "offsets": parcel.tensors["offsets"].float()}, parcel.loss)

    lengths = {}
    for attack in (Scaling(0.3, 8.0), None):
        method = replace(METHODS["asyncsgd"], outgoing=(Half(),))
        trace = run(attack, method, schedule=Schedule("clock"), updates=7).trace
        for record in of_kind(trace, "update"):
            if record["base_version"] == 0:
                lengths.setdefault((attack is None, record["client"]), record["update_norm"])
    for client in Scaling(0.3).hostile_clients(len(SIZES), 0):
        if (True, client) in lengths:
            assert lengths[False, client] == pytest.approx(8.0 * lengths[True, client], rel=1e-3)


# --- wrong labels -------------------------------------------------------------------------------------


def test_labels_are_flipped_for_the_hostile_alone():
    task, attack = make_task(SIZES), LabelFlip(0.3)
    hostile, wrong = attack.hostile_clients(len(SIZES), 5), poisoned(task, attack, 5)
    for client, (before, after) in enumerate(zip(task.clients, wrong.clients, strict=True)):
        rows = torch.arange(len(before))
        (inputs, targets), (same, flipped) = before.batch(rows), after.batch(rows)
        assert torch.equal(inputs, same)
        assert torch.equal(flipped, 2 - targets if client in hostile else targets)
    assert wrong.test is task.test
    assert wrong.validation == task.validation
    assert poisoned(task, SignFlip(), 5) is task


def test_labels_of_any_data_are_flipped_or_refused():
    class Own:
        def __len__(self):
            return 3

        def batch(self, indices):
            return torch.zeros(len(indices), 2), torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])[indices]

    task = Task(nn.Linear(2, 2), nn.functional.binary_cross_entropy_with_logits, [Own()], test=Own())
    (flipped,) = poisoned(task, LabelFlip(1.0), 0).clients
    assert isinstance(flipped, FlippedLabels)
    assert len(flipped) == 3
    assert flipped.batch(torch.tensor([0, 1]))[1].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    numbers = (torch.zeros(3, 2), torch.tensor([[0.1], [0.2], [3.0]]))
    regression = Task(nn.Linear(2, 1), nn.functional.mse_loss, [numbers], test=numbers)
    with pytest.raises(InputError, match="'label-flip' needs targets that are classes"):
        simulate(regression, schedule=Schedule(attack=LabelFlip()))


# --- configuration ------------------------------------------------------------------------------------


def test_attacks_are_named_in_configurations():
    config = load_config("digits", "fedasync", settings={"attack": "flooding", "claim_limit": "5"})
    assert config.schedule.attack == Flooding()
    assert config.schedule.claim_limit == 5.0
    for name, attack in ATTACKS.items():  # each can be set, and is written as it was
        config = load_config("digits", settings={"attack": name})
        assert config.schedule.attack == attack()
        assert to_tree(config.schedule)["attack"]["name"] == name
    strong = {"attack": "{name = 'sign-flip', hostile_fraction = 0.1}", "hostile_strength": "7"}
    assert load_config("digits", settings=strong).schedule.attack == SignFlip(0.1, 7.0)


def test_the_attacked_scenario_has_a_fifth_of_hostile_clients_and_trusted_data():
    config = load_config("digits-attacked", "asyncbezier")
    task = config.build_task()
    assert len(config.schedule.attack.hostile_clients(len(task.clients), 0)) == len(task.clients) / 5
    assert len(task.trusted) > 0
    assert load_config("digits-attacked", settings={"attack": "none"}).schedule.attack is None
