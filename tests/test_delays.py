"""Delay and speed: adaptive steps, rescaled steps, routing, discarding, cancelling, and how much a job is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncmanifold import (
    METHODS,
    ArrivalGroups,
    Averaging,
    DelayAdaptive,
    DelayLimit,
    ExponentialAveraging,
    InputError,
    Method,
    Routed,
    Schedule,
    ServerState,
    Situation,
    TailAveraging,
)
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.flower.codec import array_record
from asyncmanifold.geometry.spaces import Piece, Space
from asyncmanifold.server.protocol import Discarded
from asyncmanifold.server.workloads import FinishedJob
from asyncmanifold.session.trace import read_trace
from grid import LocalGrid, honest
from test_state_of_the_art import SIZE, Server, assert_near, exactly, long_offsets
from tiny import CLOCK, TRAINING, make_run, make_task, of_kind, simulated, trace_of


def later(server, versions):
    """Let the model stand still for some versions."""
    for _ in range(versions):
        server.versions.append(server.state.theta)
    server.state = replace(server.state, version=server.state.version + versions)


# --- delay-adaptive steps -----------------------------------------------------------------------------


def test_delay_adaptive_by_hand():
    """τ_c = 4 clients: factors 1, 1, 4/5, 4/16 of ½ · 8."""
    server = Server(METHODS["delay-adaptive"], 0.0, clients=4)
    later(server, 20)
    places = [server.send(8.0, staleness=staleness) for staleness in (0, 4, 5, 16)]
    assert places == exactly([4.0, 8.0, 11.2, 12.2])


def test_delay_adaptive_is_asyncsgd_for_usual_delays_and_not_later():
    for usual, same in ((6, True), (5, False)):
        adaptive, plain = (
            Server(method, np.zeros(3))
            for method in (Method(staleness=DelayAdaptive(usual)), METHODS["asyncsgd"])
        )
        for server in (adaptive, plain):
            later(server, 9)
            for staleness in (0, 3, 6):
                server.send((1.0, -2.0, 0.3), staleness=staleness)
        assert np.array_equal(adaptive.theta, plain.theta) is same


# --- rescaled steps -----------------------------------------------------------------------------------


def test_rescaled_by_hand():
    """Momentum ½. Client 0 takes 2: T̄ = 2, factor 1. Client 1 takes 6: T̄ = 4, factor 1.5.

    Client 0 takes 4: T = 3, T̄ = 4.5, factor ⅔. Client 1 takes 6 again: T̄ = 4.5, factor 4/3. Steps of ¼ · 12.
    """
    server = Server(METHODS["rescaled"], 0.0, clients=2)
    arrivals = [(0, 2.0), (1, 6.0), (0, 4.0), (1, 6.0)]
    places = [server.send(12.0, client=client, weight=0.25, took=took) for client, took in arrivals]
    assert places == exactly(np.cumsum([3.0, 4.5, 2.0, 4.0]))


def test_rescaled_clients_contribute_alike_however_fast_they_are():
    """Client 0 is five times as fast and sends five times as often: both move the model as far."""
    server = Server(METHODS["rescaled"], np.zeros(2), clients=2)
    for _ in range(100):
        for _ in range(5):
            server.send((0.1, 0.0), client=0, weight=0.1, took=1.0)
        server.send((0.0, 0.1), client=1, weight=0.1, took=5.0)
    assert server.theta[0] == pytest.approx(server.theta[1], rel=0.02)
    plain = Server(METHODS["asyncsgd"], np.zeros(2))
    for offset in ((0.1, 0.0),) * 5 + ((0.0, 0.1),):
        plain.send(offset, weight=0.1)
    assert plain.theta[0] == pytest.approx(5 * plain.theta[1])


def test_with_equal_times_rescaled_is_asyncsgd():
    rescaled, plain = (Server(METHODS[name], np.zeros(SIZE), clients=3) for name in ("rescaled", "asyncsgd"))
    for number, offset in enumerate(long_offsets(5)):
        for server in (rescaled, plain):
            server.send(offset, client=number % 3, took=2.0)
    assert_near(rescaled.theta, plain.theta)


@pytest.mark.parametrize("name", ["delay-adaptive", "rescaled", "generalized-asyncsgd", "ringmaster"])
def test_scaled_steps_agree_with_the_reference_on_long_vectors(name):
    method = replace(METHODS[name], global_lr=0.5)
    if name == "generalized-asyncsgd":
        method = replace(method, selection=Routed((4.0, 2.0, 1.0)))
    server, theta, times = Server(method, np.zeros(SIZE), clients=3), np.zeros(SIZE), {}
    later(server, 12)
    for number, offset in enumerate(long_offsets(9)):
        client, staleness, took = number % 3, number + 2, 1.0 + number % 4
        server.send(offset, client=client, staleness=staleness, took=took, weight=0.4)
        times[client] = took if client not in times else (times[client] + took) / 2
        factor = {
            "delay-adaptive": 3 / staleness if staleness > 3 else 1.0,
            "rescaled": times[client] / np.mean(list(times.values())),
            "generalized-asyncsgd": 1 / (3 * (4 / 7, 2 / 7, 1 / 7)[client]),
            "ringmaster": 1.0,
        }[name]
        theta = theta + 0.5 * 0.4 * factor * offset[0].astype(np.float64)
    assert_near(server.theta, theta)


# --- routing ------------------------------------------------------------------------------------------


def test_routed_steps_by_hand():
    """Routing 3, 1, and 1 for the third client: n p = 9/5, 3/5, 3/5; steps of ½ · 9 are divided by that."""
    server = Server(Method(selection=Routed((3.0, 1.0))), 0.0, clients=3)
    places = [server.send(9.0, client=client) for client in (0, 1, 2)]
    assert places == exactly(np.cumsum([2.5, 7.5, 7.5]))
    assert Server(METHODS["generalized-asyncsgd"], 0.0, clients=3).send(9.0) == exactly(4.5)


def test_clients_are_chosen_as_often_as_routing_says():
    routed, random = Routed((6.0, 3.0, 1.0)), np.random.default_rng(0)
    chosen = [routed.choose([2, 0, 1], random, {})[0] for _ in range(4000)]
    assert [chosen.count(place) / 4000 for place in range(3)] == pytest.approx([0.1, 0.6, 0.3], abs=0.02)


def test_routing_needs_a_limit_of_jobs(tmp_path):
    method = Method(selection=Routed((2.0, 1.0)))
    with pytest.raises(InputError, match=r"Routed\(routing=\(2.0, 1.0\)\) needs a limit of concurrent jobs"):
        simulated(make_task(), method, training=TRAINING, run=make_run(4), schedule=CLOCK)
    server = AsyncServer(make_task().build_model(0), method, training=TRAINING)
    with pytest.raises(InputError, match="needs a limit of concurrent jobs"):
        server.start(LocalGrid({}), array_record(make_task().build_model(0).state_dict()), 4)
    with pytest.raises(InputError, match="must be numbers above 0 and finite"):
        Routed((1.0, 0.0))
    result = simulated(
        make_task(), method, training=TRAINING, run=make_run(12), schedule=replace(CLOCK, concurrency=2)
    )
    assert result.summary["updates"] == 12


# --- Ringmaster: discarding and cancelling ------------------------------------------------------------


def test_ringmaster_by_hand():
    """R = 3: staleness 2 counts, 3 does not, and changes nothing."""
    server = Server(Method(gates=(DelayLimit(3),)), 0.0)
    later(server, 3)
    assert server.send(8.0, staleness=2) == exactly(4.0)
    before = server.state
    with pytest.raises(Discarded, match="staleness 3 has reached the limit 3"):
        server.send(8.0, staleness=3)
    assert server.state is before
    assert server.send(2.0, staleness=1) == exactly(5.0)
    assert server.send(2.0, staleness=0) == exactly(6.0)


SLOW = Schedule("clock", latency=replace(CLOCK.latency, spread=1.5))


def ringmaster(limit, **settings):
    return replace(METHODS["ringmaster"], gates=(DelayLimit(limit, **settings),))


def run(method, updates=40, **options):
    sizes = (10, 14, 18, 22, 26, 30, 34)
    return simulated(
        make_task(sizes), method, training=TRAINING, run=make_run(updates), schedule=SLOW, **options
    )


def test_late_updates_are_discarded_and_that_is_no_failure(monkeypatch):
    monkeypatch.setattr("asyncmanifold.session.session.LEAST_REFUSALS", 1)
    result = run(ringmaster(4, cancels=False))
    discarded = of_kind(result.trace, "discarded")
    assert len(discarded) == result.summary["discarded"] > 3
    assert result.summary["updates"] == 40
    assert result.summary["rejected"] == result.summary["failed"] == result.summary["cancelled"] == 0
    assert max(record["staleness"] for record in of_kind(result.trace, "update")) < 4


def test_a_job_is_stopped_when_its_model_is_too_old_and_starts_again_at_once():
    trace = run(ringmaster(4)).trace
    cancelled = of_kind(trace, "cancelled")
    assert len(cancelled) > 3
    assert not of_kind(trace, "discarded")
    version, moved = 0, 0.0
    for record in trace:
        if record["kind"] == "update":
            version, moved = record["version"], record["time"]
        elif record["kind"] == "cancelled":
            assert version - record["base_version"] == 4  # as soon as the model has moved on that far
            assert record["time"] == moved
    again = [
        record
        for record in of_kind(trace, "update")
        if record["dispatched"] in {r["time"] for r in cancelled}
    ]
    assert again


def test_a_limit_that_is_never_reached_is_asyncsgd():
    assert trace_key(run(ringmaster(1000))) == trace_key(run(METHODS["asyncsgd"]))


def trace_key(result):
    return [(r["client"], r["time"], r["step_norm"]) for r in of_kind(result.trace, "update")]


def test_cancelling_gives_the_same_bits_in_workers_and_after_an_interruption(tmp_path):
    run(ringmaster(4), out=tmp_path / "whole")
    run(ringmaster(4), out=tmp_path / "workers", workers=2)
    for stop in (9, 23):

        def interrupt(record, stop=stop):
            if record.get("update") == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(ringmaster(4), out=tmp_path / "parts", resume=True, observer=interrupt)
    run(ringmaster(4), out=tmp_path / "parts", resume=True)
    for other in ("workers", "parts"):
        assert trace_of(tmp_path / other) == trace_of(tmp_path / "whole")


def test_on_flower_a_discarded_update_is_no_failure_of_its_node(tmp_path):
    """The slow node's updates are always too late; with a patience of 1 a failure would make it rest."""
    task = make_task(sizes=(12, 20, 28))
    grid = LocalGrid({100 + k: honest(task, k) for k in range(3)}, pulls={100: 1, 101: 1, 102: 6})
    policy = Policy(poll_seconds=0.001, meet_seconds=0.001, patience=1)
    model = task.build_model(0)
    method = replace(ringmaster(3), gates=(DelayLimit(3),))
    server = AsyncServer(model, method, training=TRAINING, policy=policy)
    server.start(grid, array_record(model.state_dict()), 24, out=tmp_path / "run")
    trace = list(read_trace(tmp_path / "run" / "trace.jsonl"))
    assert of_kind(trace, "discarded")
    assert not of_kind(trace, "resting")
    assert not of_kind(trace, "rejected")


# --- FedCompass: how much a job is --------------------------------------------------------------------


def test_fedcompass_by_hand():
    """Q between 1 and 4, λ = 1, momentum ½.

    Client 0 needs 1 per epoch and begins a group at time 2: 4 epochs, until 6. Client 1 needs 2 and arrives
    at 3: one epoch fits until 6. Client 2 needs 4 and arrives at 4: none fits; the group's fastest client is
    back at 6 + 4 = 10: ⌊(10 − 4)/4⌋ = 1 epoch, until 8. Client 0 is back at 6, with a pace of 1: 2 epochs.
    """
    groups, memory = ArrivalGroups(1, 4, pace_momentum=0.5, lateness=1.0), {}

    def plan(client, epochs, sent, time):
        nonlocal memory
        situation = Situation(3, dispatched=sent, time=time)
        planned, memory = groups.plan(FinishedJob(client, epochs, situation=situation), memory)
        return planned

    assert plan(0, 2, 0.0, 2.0) == 4
    assert plan(1, 1, 1.0, 3.0) == 1
    assert plan(2, 1, 0.0, 4.0) == 1
    assert plan(0, 4, 2.0, 6.0) == 2
    # Client 1 took 3 instead of 2: its pace is 2.5, and nothing fits until 8 but nothing is begun either:
    # of the group's, the fastest is client 0, back at 8 + 4 = 12: ⌊(12 − 6)/2.5⌋ = 2.
    assert plan(1, 1, 3.0, 6.0) == 2
    assert memory["paces"] == {0: 1.0, 1: 2.5, 2: 4.0}


def test_fedcompass_lets_slow_and_fast_clients_arrive_together():
    """Every client gets epochs within the bounds, faster ones more, and the paces are what was measured."""
    result = run(replace(METHODS["fedcompass"], adaptive_epochs=ArrivalGroups(1, 6)), updates=80)
    updates = of_kind(result.trace, "update")[20:]
    assert {record["epochs"] for record in updates} <= set(range(1, 7))
    fast, slow = (
        np.mean([r["epochs"] for r in updates if r["client"] == client]) for client in by_speed(updates)
    )
    assert fast > slow


def by_speed(updates):
    paces = {r["client"]: (r["time"] - r["dispatched"]) / r["epochs"] for r in updates}
    return min(paces, key=paces.get), max(paces, key=paces.get)


# --- averaged models ----------------------------------------------------------------------------------


def averaged(averaging, places, space=None):
    state = ServerState(torch.tensor(places[0]))
    memory = {}
    for version, place in enumerate(places, start=1):
        state = ServerState(torch.tensor(place), version=version)
        memory = averaging.include(memory, state, *([] if space is None else [space]))
    return memory["theta"]


@pytest.mark.parametrize(
    ("averaging", "expected"),
    [
        # Weights ½, ½ · ½, … normalised: (1 · 8 + ½ · 2 + ¼ · 4)/(7/4) = 40/7
        (ExponentialAveraging(1.0), 40 / 7),
        # q = 1/√2: (8 + 2/√2 + 4/2)/(1 + 1/√2 + ½)
        (ExponentialAveraging(2.0), (10.0 + 2.0 / np.sqrt(2)) / (1.5 + 1 / np.sqrt(2))),
        # Shares 1, 2/3, 2/4 for k = 1: 4 → 8/3 → 16/3
        (TailAveraging(0.5), 16 / 3),
        (TailAveraging(1.0), 14 / 3),
        (Averaging(1), 14 / 3),
    ],
    ids=str,
)
def test_averages_of_4_2_8_by_hand(averaging, expected):
    assert averaged(averaging, [[4.0], [2.0], [8.0]]).item() == exactly(expected)


def test_averages_agree_with_weighted_means_of_long_vectors():
    models = long_offsets(30)[:, 0]
    weights = 0.5 ** (np.arange(29, -1, -1) / 7.0)
    exact = (weights[:, None] * models.astype(np.float64)).sum(0) / weights.sum()
    assert_near(averaged(ExponentialAveraging(7.0), models.tolist()).double().numpy(), exact)


def test_a_tail_average_is_about_the_mean_of_the_tail():
    """Of places 1 … 400, the mean of the last quarter is 350.5; the average lags as far behind its end."""
    places = [[float(place)] for place in range(1, 401)]
    assert averaged(TailAveraging(0.25), places).item() == pytest.approx(400 * 4 / 5, rel=0.01)


@pytest.mark.parametrize("averaging", [ExponentialAveraging(4.0), TailAveraging(0.5)], ids=str)
def test_averages_stay_on_manifolds(averaging):
    geoopt = pytest.importorskip("geoopt")
    from asyncmanifold.geometry.maps import maps_of

    sphere = Space([Piece(0, 3, (3,), maps_of(geoopt.Sphere(), torch.tensor([1.0, 0.0, 0.0])))])
    angles = [0.1, 0.5, 0.9, 0.4]
    mean = averaged(averaging, [[float(np.cos(a)), float(np.sin(a)), 0.0] for a in angles], sphere)
    assert torch.linalg.vector_norm(mean).item() == exactly(1.0)
    flat = averaged(averaging, [[angle] for angle in angles])  # on a great circle, angles are averaged
    assert torch.atan2(mean[1], mean[0]).item() == pytest.approx(flat.item(), abs=1e-5)


@pytest.mark.parametrize("name", ["asyncbezier", "ace", "fadas"])
def test_an_averaged_model_is_what_is_evaluated(name):
    """With a half-life of a hundredth of a version, the average is the last model."""
    last = run(METHODS[name], updates=20)
    averages = {
        half_life: run(replace(METHODS[name], averaging=ExponentialAveraging(half_life)), updates=20)
        for half_life in (0.01, 20.0)
    }
    assert scores(averages[0.01]) == pytest.approx(scores(last))
    assert scores(averages[20.0]) != pytest.approx(scores(last))


def scores(result):
    return [record["loss"] for record in of_kind(result.trace, "evaluation")]
