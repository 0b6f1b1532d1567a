"""Bounds on what one client can do: by hand, against slow references, and with a client that sends the
reverse."""

from dataclasses import replace
from statistics import mean, median_low

import numpy as np
import pytest
import torch
from torch import nn

from asyncmanifold import (
    METHODS,
    Method,
    NormBound,
    Parcel,
    PeerBound,
    PeerDirection,
    Rejected,
    Run,
    ServerState,
    Update,
    absorb,
    simulate,
)
from asyncmanifold.configuration.config import load_config
from asyncmanifold.experiments.many_runs import run_config
from asyncmanifold.server.peers import PEER_GATES
from asyncmanifold.session.journal import Records
from asyncmanifold.session.session import Session
from asyncmanifold.vectors import FlatModel, Statistics
from tiny import make_model

PLAIN = Method(weighting="none")


def send(method, state, client, offset, statistics=None, weight=1.0, variances=None):
    """Absorb one update of a client that has the current model."""
    update = Update(client, state.version, torch.tensor([offset]), statistics or state.statistics)
    return absorb(method, state, update, base=state.theta, weight=weight, variances=variances)


def test_lengths_are_those_of_a_plain_median():
    """Random clients against counting anew: one vote each, the latest, of the last five that were heard."""
    method, state = replace(PLAIN, gates=(PeerBound(1.5, peer_votes=5),)), ServerState(torch.ones(1))
    random, latest = np.random.default_rng(4), {}
    for number in range(60):
        client, length = int(random.integers(8)), float(np.float32(random.lognormal()))
        latest.pop(client, None)
        latest[client] = length
        latest = dict(list(latest.items())[-5:])
        usual = median_low(latest.values()) if number else min(length, 1.0)
        state, step = send(method, state, client, [length])
        assert step.step_norm == pytest.approx(min(length, 1.5 * usual), rel=1e-5), number
    assert state.memory["gates.PeerBound"]["lengths"].keys() == latest.keys()


def test_the_first_update_is_compared_with_the_model():
    method = replace(PLAIN, gates=(PeerBound(2.0),))
    _, step = send(method, ServerState(torch.tensor([3.0, 4.0])), 0, [1e18, 0.0])
    assert step.step_norm == pytest.approx(10.0)
    _, step = send(method, ServerState(torch.zeros(2)), 0, [7.0, 0.0])  # a model of zeros says nothing
    assert step.step_norm == pytest.approx(7.0)


def test_a_client_that_sends_often_has_one_vote():
    method, state = replace(PLAIN, gates=(PeerBound(1.0),)), ServerState(torch.ones(1))
    for client in (0, 1, 2):
        state, _ = send(method, state, client, [1.0])
    for _ in range(20):
        state, step = send(method, state, 3, [1e6])
        assert step.step_norm == pytest.approx(1.0)
    assert send(method, state, 0, [1.0])[1].step_norm == pytest.approx(1.0)


def test_directions_are_those_of_a_plain_sum():
    """Every client's latest direction, admitted or not, without the sender's own."""
    gate = PeerDirection(0.2, direction_peers=2)
    method, state = replace(PLAIN, gates=(gate,)), ServerState(torch.zeros(400))
    random, latest, rejected = np.random.default_rng(8), {}, 0
    for _ in range(60):
        client = int(random.integers(5))
        offset = random.standard_normal(400) + random.choice([0.6, -0.6], p=[0.8, 0.2])
        unit = offset / np.linalg.norm(offset)
        others = [vector for voter, vector in latest.items() if voter != client]
        least = 0.2 - 2.0 / 20.0
        agreed = len(others) < 2 or unit @ sum(others) / np.linalg.norm(sum(others)) >= least
        latest[client] = unit
        if agreed:
            state, _ = send(method, state, client, offset.astype(np.float32).tolist())
        else:
            rejected += 1
            with pytest.raises(Rejected, match="points away from the updates of") as problem:
                send(method, state, client, offset.astype(np.float32).tolist())
            state = remember(state, problem.value)
    assert 5 < rejected < 40


def remember(state, problem):
    """Keep the memory of the gate that rejected, as a session does."""
    return replace(state, memory={**state.memory, problem.stage: problem.memory})


def test_hostile_clients_that_come_first_do_not_decide_for_good():
    """Three of ten send −1 before anybody else; the others are outvoted at first, and then prevail."""
    method, state = replace(PLAIN, gates=(PeerDirection(),), global_lr=0.01), ServerState(torch.zeros(400))
    admitted = []
    for client in [0, 1, 2, *range(3, 10), *range(10)]:
        try:
            state, _ = send(method, state, client, [-1.0 if client < 3 else 1.0] * 400)
            admitted.append(client)
        except Rejected as problem:
            state = remember(state, problem)
    assert admitted == [0, 1, 2, 7, 8, 9, *range(3, 10)]


def test_a_replay_leaves_out_gates_that_learn_from_what_they_reject():
    settings = {"attack": "sign-flip", "updates": "40", "evaluate_every": "40"}
    config = load_config("digits-attacked", method="asyncsgd", settings=settings)
    config = replace(config, method=replace(config.method, gates=PEER_GATES))
    made = run_config(config, Records())
    assert any(record["kind"] == "rejected" for record in made.trace)
    again = run_config(config, Records(), replay=made.trace)
    for one, other in zip(made.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_large_model_is_compared_in_some_entries():
    gate = PeerDirection(direction_entries=16, direction_peers=1)
    method, state = replace(PLAIN, gates=(gate,)), ServerState(torch.zeros(50))
    state, _ = send(method, state, 0, [1.0] * 50)
    assert state.memory["gates.PeerDirection"]["sum"].shape == (16,)
    with pytest.raises(Rejected, match=r"cosine -1\.00"):
        send(method, state, 1, [-1.0] * 50)
    state, _ = send(method, state, 1, [0.0] * 50)  # no direction, no opinion
    assert list(state.memory["gates.PeerDirection"]["votes"]) == [0]


def test_norm_bound_clips_or_rejects_as_told():
    state = ServerState(torch.zeros(2))
    with pytest.raises(Rejected, match="norm 5 is above the bound 2"):
        send(replace(PLAIN, norm_bound=2.0), state, 0, [3.0, 4.0])
    _, step = send(replace(PLAIN, norm_bound=2.0, norm_clips=True), state, 0, [3.0, 4.0])
    assert step.step_norm == pytest.approx(2.0)


def statistics(floats, counter):
    return Statistics(torch.tensor(floats), torch.tensor([counter]))


VARIANCES = torch.tensor([False, True])


def test_statistics_move_under_the_factor_of_the_update():
    """Shortened to a half, and half of the step: a variance of 5 against 1 becomes 1 + 4/4."""
    method = replace(PLAIN, gates=(NormBound(1.0, clips=True),), global_lr=0.5)
    state = ServerState(torch.zeros(1), statistics([0.0, 1.0], 10))
    moved, _ = send(method, state, 0, [2.0], statistics([-8.0, 5.0], 13), variances=VARIANCES)
    assert moved.statistics.floats.tolist() == [-2.0, 2.0]
    assert moved.statistics.integers.tolist() == [13]


def test_implausible_statistics_are_cut_or_rejected():
    state = ServerState(torch.zeros(1), statistics([0.0, 1.0], 10))
    with pytest.raises(Rejected, match="negative variances"):
        send(PLAIN, state, 0, [1.0], statistics([0.0, -0.1], 11), variances=VARIANCES)
    with pytest.raises(Rejected, match="non-finite"):
        send(PLAIN, state, 0, [1.0], statistics([0.0, float("nan")], 11))
    moved, _ = send(PLAIN, state, 0, [1.0], statistics([-1e38, 1e38], 11), variances=VARIANCES)
    assert moved.statistics.floats.tolist() == [-1000.0, 2001.0]
    for counter in (9, -5, 10 + 2**21):
        moved, _ = send(PLAIN, state, 0, [1.0], statistics([0.0, 1.0], counter))
        assert moved.statistics.integers.tolist() == [10]


def test_a_model_knows_which_of_its_statistics_are_variances():
    model = FlatModel(make_model())
    assert model.variances.tolist() == [False] * 8 + [True] * 8


def test_wild_statistics_shorten_the_whole_update():
    method = replace(PLAIN, gates=(PeerBound(1.0),))
    state = ServerState(torch.ones(1), statistics([0.0, 1.0], 0))
    for client in range(3):
        state, _ = send(method, state, client, [0.5], statistics([0.0, 2.0], 1), weight=0.1)
    floats = (state.statistics.floats + 100.0).tolist()
    _, step = send(method, state, 3, [0.5], statistics(floats, 1))
    assert step.step_norm < 0.05


def small_network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


@pytest.mark.parametrize("method", ["fedasync", "asyncbezier"])
def test_one_of_eight_clients_that_sends_the_reverse_does_little_harm(method, monkeypatch):
    """−10 × its update: with the bounds that are on by default on Flower, the score stays within 5 points."""
    accept = Session.accept

    def reverse(self, job, parcel, weight, **arrival):
        if job.client == 7:
            parcel = Parcel({**parcel.tensors, "offsets": -10.0 * parcel.tensors["offsets"]}, parcel.loss)
        return accept(self, job, parcel, weight, **arrival)

    def score(gates=PEER_GATES):
        """Return the mean over three seeds: single runs of this length differ by more than the attack."""
        scores = []
        for seed in range(3):
            config = load_config("digits", method, seed=seed, settings={"clients": "8"})
            task = replace(config.build_task(), model=small_network)
            bounded = replace(config.method, gates=gates)
            settings = {"training": config.training, "schedule": config.schedule}
            run = Run(updates=80, evaluate_every=20, final_evaluations=2, seed=seed)
            scores.append(simulate(task, bounded, **settings, run=run).summary["final"])
        return mean(scores)

    honest = score()
    monkeypatch.setattr(Session, "accept", reverse)
    assert score() >= honest - 0.05
    if method == "fedasync":
        assert score(()) < honest - 0.2


def test_the_published_methods_have_no_gates_but_their_own():
    assert {name for name, method in METHODS.items() if method.gates} == {"ringmaster"}
