"""Buffers with a memory of clients or of the last steps: CA²FL, ACE, ACED, FedFa and Port.

By hand, against obvious references on long vectors, at limits where methods coincide, and against copies that
are known to be wrong.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncmanifold import (
    METHODS,
    Bezier,
    Buffer,
    CalibratedBuffer,
    EveryClient,
    Method,
    OrthoDC,
    PortBuffer,
    RecentClients,
    RoundTable,
    RunError,
    SlidingWindow,
)
from asyncmanifold.files import load_tree, save_tree
from asyncmanifold.server.step import flush
from test_state_of_the_art import SIZE, Server, assert_near, exactly, long_offsets


def plain(buffer, **changes):
    return Method(buffer=buffer, weighting="none", **changes)


# --- CA²FL --------------------------------------------------------------------------------------------


def test_ca2fl_by_hand():
    """K = 2, n = 4. First move: h̄ = 0, δ = 4 + 8 = 12: 0 + 12/2 = 6. Then h̄ = (4 + 8)/4 = 3.

    Client 0 sends 6 and client 2 sends 2: δ = (6 − 4) + 2 = 4: 3 + 4/2 = 5. Then h̄ = (6 + 8 + 2)/4 = 4.
    Client 0 sends 7 and then 5: δ = (7 − 6) + (5 − 7) = −1: 4 − ½ = 3.5. Then h̄ = (5 + 8 + 2)/4.
    """
    server = Server(plain(CalibratedBuffer(calibrated_size=2)), 0.0, clients=4)
    arrivals = [(0, 4.0), (1, 8.0), (0, 6.0), (2, 2.0), (0, 7.0), (0, 5.0), (3, 1.0), (3, 1.0)]
    places = [server.send(offset, client=client) for client, offset in arrivals]
    assert places == exactly([0.0, 6.0, 6.0, 11.0, 11.0, 14.5, 14.5, 14.5 + 15 / 4 + 0.5])


def test_ca2fl_is_not_one_of_its_wrong_copies():
    """The same arrivals. A cache that is never filled leaves FedBuff: 6, then (6 + 2)/2 = 4, not 5.

    A mean over the clients seen so far instead of all four: h̄ = (4 + 8)/2 = 6, so 6 + 2 = 8, not 5.
    """
    server = Server(plain(CalibratedBuffer(calibrated_size=2)), 0.0, clients=4)
    for client, offset in [(0, 4.0), (1, 8.0), (0, 6.0), (2, 2.0)]:
        server.send(offset, client=client)
    moved = server.theta - 6.0
    assert moved == exactly(5.0)
    assert moved != exactly((6.0 + 2.0) / 2)
    assert moved != exactly((4.0 + 8.0) / 2 + (6.0 - 4.0 + 2.0) / 2)


def test_ca2fl_agrees_with_the_reference_on_long_vectors():
    random, offsets = np.random.default_rng(1), long_offsets(24)
    server = Server(plain(CalibratedBuffer(calibrated_size=4), global_lr=0.5), np.zeros(SIZE), clients=6)
    theta, cache, mean, buffer = np.zeros(SIZE), np.zeros((6, SIZE)), np.zeros(SIZE), []
    for offset in offsets:
        client = int(random.integers(6))
        server.send(offset, client=client, staleness=int(random.integers(0, server.state.version + 1)))
        buffer.append(offset[0] - cache[client])
        cache[client] = offset[0]
        if len(buffer) == 4:
            theta = theta + 0.5 * (mean + sum(buffer) / 4)
            mean, buffer = cache.mean(0), []
    assert_near(server.theta, theta)


def test_a_flush_of_ca2fl_uses_what_is_there_and_keeps_the_cache():
    server = Server(plain(CalibratedBuffer(calibrated_size=5)), 0.0, clients=2)
    for client, offset in [(0, 4.0), (1, 8.0)]:
        server.send(offset, client=client)
    state = flush(server.method, server.state)
    assert state.theta.item() == exactly(6.0)
    assert state.version == 1
    assert flush(server.method, state) is state
    server.state, server.versions = state, [*server.versions, state.theta]
    for _ in range(5):
        server.send(4.0, client=0)
    assert server.theta == exactly(6.0 + (4.0 + 8.0) / 2)  # h̄ alone: nothing has changed


# --- ACE and ACED -------------------------------------------------------------------------------------


def test_ace_by_hand():
    """n = 4. u = 4/4 = 1, then (4 + 8)/4 = 3, then (6 + 8)/4 = 3.5, then (6 + 8 − 2)/4 = 3."""
    server = Server(plain(EveryClient()), 0.0, clients=4)
    arrivals = [(0, 4.0), (1, 8.0), (0, 6.0), (3, -2.0)]
    assert [server.send(v, client=c) for c, v in arrivals] == exactly([1.0, 4.0, 7.5, 10.5])


def test_aced_by_hand():
    """Steps older than 1 version do not count, and the mean is over those that do.

    Version 0: client 0 sends 4: 4. Version 1: client 1, from version 1, sends 8: (4 + 8)/2 = 6.
    Version 2: client 2, from version 1, sends 2: client 0's is two versions old: (8 + 2)/2 = 5.
    Version 3: client 3, from version 1, sends 9, which is too old, and so are all others: nothing moves.
    Then client 0, from version 3, sends 1: 1.
    """
    server = Server(plain(RecentClients(oldest_step=1)), 0.0, clients=4)
    places = [
        server.send(4.0, client=0),
        server.send(8.0, client=1),
        server.send(2.0, client=2, staleness=1),
        server.send(9.0, client=3, staleness=2),
        server.send(1.0, client=0),
    ]
    assert places == exactly([4.0, 10.0, 15.0, 15.0, 16.0])
    assert server.state.version == 4
    assert set(server.state.memory["buffer"]["last"]) == {0}


@pytest.mark.parametrize("oldest", [None, 3])
def test_ace_and_aced_agree_with_the_reference_on_long_vectors(oldest):
    random, offsets = np.random.default_rng(2), long_offsets(20)
    buffer = EveryClient() if oldest is None else RecentClients(oldest_step=oldest)
    server = Server(plain(buffer, global_lr=0.3), np.zeros(SIZE), clients=5)
    theta, cache, made_from = np.zeros(SIZE), {}, {}
    for version, offset in enumerate(offsets):
        client, staleness = int(random.integers(5)), int(random.integers(0, min(version, 3) + 1))
        server.send(offset, client=client, staleness=staleness)
        cache[client], made_from[client] = offset[0].astype(np.float64), version - staleness
        fresh = [c for c in cache if oldest is None or version - made_from[c] <= oldest]
        theta = theta + 0.3 * sum(cache[c] for c in fresh) / (5 if oldest is None else len(fresh))
    assert_near(server.theta, theta)


@pytest.mark.parametrize("buffer", [EveryClient(), RecentClients(), SlidingWindow(1)], ids=str)
@pytest.mark.parametrize("weighting", ["none", "examples"])
def test_with_one_client_or_a_window_of_one_it_is_asyncsgd(buffer, weighting):
    cached = Server(Method(buffer=buffer, weighting=weighting, global_lr=0.4), np.zeros(5))
    free = Server(replace(METHODS["asyncsgd"], weighting=weighting, global_lr=0.4), np.zeros(5))
    for offset in long_offsets(6)[:, :, :5]:
        for server in (cached, free):
            server.send(offset, weight=1.0, staleness=min(1, server.state.version))
        np.testing.assert_allclose(cached.theta, free.theta, rtol=1e-5, atol=1e-7)


def test_ca2fl_of_clients_that_never_repeat_is_fedbuff_and_the_mean_of_all_before():
    """With h_i = 0 for every arrival δ is the sum; with so many clients that h̄ is nothing, it is FedBuff."""
    calibrated = Server(plain(CalibratedBuffer(calibrated_size=3)), 0.0, clients=10**9)
    buffered = Server(plain(Buffer(3)), 0.0)
    for client, offset in enumerate((1.0, 5.0, 3.0, -2.0, 4.0, 1.0)):
        assert calibrated.send(offset, client=client) == exactly(buffered.send(offset))


def test_weighted_by_examples_a_cache_is_a_mean_with_the_clients_shares():
    """Shares ¼ and ¾ of two clients: ¼ · 4 = 1, then ¼ · 4 + ¾ · 8 = 7; η_g above 1 is not cut."""
    server = Server(Method(buffer=EveryClient(), global_lr=2.0), 0.0, clients=2)
    assert server.send(4.0, client=0, weight=0.25) == exactly(2.0)
    assert server.send(8.0, client=1, weight=0.75) == exactly(2.0 + 14.0)
    assert server.step.fraction == exactly(3.0)  # 2 · ¾ · 2 clients


# --- FedFa --------------------------------------------------------------------------------------------


def test_fedfa_by_hand():
    """K = 2: means 4, (4 + 8)/2 = 6, (8 + 0)/2 = 4, (0 − 2)/2 = −1. FedBuff would move at every second."""
    server = Server(plain(SlidingWindow(2)), 0.0)
    assert [server.send(v) for v in (4.0, 8.0, 0.0, -2.0)] == exactly([4.0, 10.0, 14.0, 13.0])


def test_fedfa_agrees_with_the_reference_on_long_vectors():
    offsets = long_offsets(12)
    server = Server(plain(SlidingWindow(5), global_lr=0.7), np.zeros(SIZE))
    theta = np.zeros(SIZE)
    for number, offset in enumerate(offsets):
        server.send(offset, staleness=min(2, number))
        theta = theta + 0.7 * offsets[max(0, number - 4) : number + 1, 0].astype(np.float64).mean(0)
    assert_near(server.theta, theta)


# --- Port ---------------------------------------------------------------------------------------------


def test_port_by_hand():
    """K = 2, S = 2, a = b = 1, shares ¼ and ¾.

    Without drift both count 1 + 1: Θ = ¼ · (4, 0) + ¾ · (0, 8) = (1, 6). Then d = (1, 6), ‖d‖² = 37:
    (6, −1) is across: ½ + 2/(2 + 1) = 7/6; (1, 6) is along, fresh: no drift, 1 + 1 = 2.
    p = ¼ · 7/6, ¾ · 2: Θ = (1, 6) + (7 (6, −1) + 36 (1, 6))/43.
    """
    server = Server(Method(buffer=PortBuffer(2, freshness_scale=2)), np.zeros(2))
    server.send((4.0, 0.0), weight=0.25)
    assert server.send((0.0, 8.0), weight=0.75).tolist() == exactly([1.0, 6.0])
    server.send((6.0, -1.0), weight=0.25, staleness=1)
    expected = np.array([1.0, 6.0]) + (7 * np.array([6.0, -1.0]) + 36 * np.array([1.0, 6.0])) / 43
    assert server.send((1.0, 6.0), weight=0.75).tolist() == exactly(expected.tolist())
    # A third move, all of staleness 0, is the plain weighted mean again.
    server.send((1.0, 1.0), weight=0.5)
    assert server.send((3.0, 1.0), weight=0.5).tolist() == exactly((expected + np.array([2.0, 1.0])).tolist())


def test_port_agrees_with_the_reference_on_long_vectors():
    random, offsets = np.random.default_rng(3), long_offsets(12)
    server = Server(Method(buffer=PortBuffer(3, freshness_scale=4), global_lr=0.8), np.zeros(SIZE))
    models, held = [np.zeros(SIZE)], []
    for number, offset in enumerate(offsets):
        staleness, weight = min(number % 3, len(models) - 1), float(random.uniform(0.1, 0.5))
        vector, drift = offset[0].astype(np.float64), models[-1] - models[-1 - staleness]
        server.send(offset, staleness=staleness, weight=weight)
        lengths = np.linalg.norm(vector) * np.linalg.norm(drift)
        cosine = vector @ drift / lengths if lengths else 1.0
        held.append((weight * ((1.0 + cosine) / 2.0 + 4.0 / (4.0 + staleness)), vector))
        if len(held) == 3:
            total = sum(weight for weight, _ in held)
            models.append(models[-1] + 0.8 * sum(weight * v for weight, v in held) / total)
            held = []
    assert_near(server.theta, models[-1])


# --- the sum over clients -----------------------------------------------------------------------------


def distance_from_exact_sum(server, rows="last"):
    memory = server.state.memory["buffer"]
    exact = sum(vector.double() for vector in memory[rows].values())
    return float((memory["total"].double() - exact).abs().max())


@pytest.mark.parametrize("renews", [True, False])
def test_the_sum_over_clients_does_not_drift_in_10000_updates(renews, monkeypatch):
    """Exchanged one by one for ever, a sum of 20 numbers up to 1 is off by 3e-5; formed anew, by 1e-5."""
    if not renews:
        monkeypatch.setattr("asyncmanifold.server.caches.EXCHANGES", 10**9)
    random, buffer, worst = np.random.default_rng(6), EveryClient(), 0.0
    server = Server(plain(buffer), np.zeros(64), clients=20)
    offsets, clients = random.uniform(-1.0, 1.0, (10_000, 64)), random.integers(20, size=10_000)
    for number, (offset, client) in enumerate(zip(offsets, clients, strict=True)):
        server.send(offset, client=int(client))
        if number % 100 == 99:
            worst = max(worst, distance_from_exact_sum(server))
    assert worst < 1.5e-5 if renews else worst > 2e-5


@pytest.mark.parametrize(
    "buffer", [EveryClient(), RecentClients(oldest_step=10**6), CalibratedBuffer(calibrated_size=1)], ids=str
)
def test_what_a_very_long_step_leaves_in_the_sum_goes_again(buffer, monkeypatch):
    """In float32, 1e9 + 1 + 2 − 1e9 is 0, and the sum without the long step would lack 3 for ever."""
    monkeypatch.setattr("asyncmanifold.server.caches.EXCHANGES", 8)
    server = Server(plain(buffer), 0.0, clients=3)
    for client, offset in [(0, 1e9), (1, 1.0), (2, 2.0), (0, 4.0)]:
        server.send(offset, client=client)
    assert distance_from_exact_sum(server) >= 3.0
    for _ in range(30):
        server.send(4.0, client=0)
    assert distance_from_exact_sum(server) == 0.0


def test_a_window_forgets_what_a_very_long_step_left(monkeypatch):
    monkeypatch.setattr("asyncmanifold.server.step_windows.EXCHANGES", 8)
    server = Server(plain(SlidingWindow(3)), 0.0)
    for offset in (1e9, 1.0, 2.0, 4.0):
        server.send(offset)
    assert distance_from_exact_sum(server, "steps") >= 3.0
    for _ in range(4):
        server.send(4.0)
    assert distance_from_exact_sum(server, "steps") == 0.0


@pytest.mark.parametrize("buffer", [EveryClient(), CalibratedBuffer(calibrated_size=1)], ids=str)
def test_a_client_that_has_left_still_counts_as_one(buffer):
    """Four clients sent 4; then two are left. The mean stays 4: it is not 16/2."""
    server = Server(plain(buffer), 0.0, clients=4)
    for client in range(4):
        server.send(4.0, client=client)
    server.clients, before = 2, server.theta
    assert server.send(4.0, client=0) - before == exactly(4.0)


# --- memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EveryClient, RecentClients, CalibratedBuffer])
def test_a_cache_in_bfloat16_takes_half_the_memory_and_goes_to_a_file_and_back(kind, tmp_path):
    exact, rounded = (
        Server(plain(kind(cache_precision=precision), global_lr=0.1), np.zeros(SIZE), clients=3)
        for precision in ("float32", "bfloat16")
    )
    for number, offset in enumerate(long_offsets(20)):
        for server in (exact, rounded):
            server.send(offset, client=number % 3)
    last = rounded.state.memory["buffer"]["last"]
    assert {vector.dtype for vector in last.values()} == {torch.bfloat16}
    assert 0.0 < np.linalg.norm(rounded.theta - exact.theta) < 0.01 * np.linalg.norm(exact.theta)
    save_tree(tmp_path / "memory.safetensors", rounded.state.memory)
    again = load_tree(tmp_path / "memory.safetensors")["buffer"]["last"]
    assert all(torch.equal(again[client], last[client]) for client in last)
    assert kind(cache_precision="bfloat16").memory_size == "n × P in bfloat16"


CACHES = [EveryClient, RecentClients, CalibratedBuffer, RoundTable]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_on_disk_gives_the_same_bits_and_leaves_no_file(kind, precision, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_memory, on_disk = (
        Server(plain(kind(cache_precision=precision, cache_place=place), global_lr=0.1), np.zeros(SIZE), 3)
        for place in ("memory", "disk")
    )
    for number, offset in enumerate(long_offsets(20)):
        for server in (in_memory, on_disk):
            server.send(offset, client=number % 3)
        if number == 10:  # what a checkpoint holds goes on like what it was written from
            save_tree(tmp_path / "memory.safetensors", on_disk.state.memory)
            on_disk.state = replace(on_disk.state, memory=load_tree(tmp_path / "memory.safetensors"))
            (tmp_path / "memory.safetensors").unlink()
    np.testing.assert_array_equal(on_disk.theta, in_memory.theta)
    assert list(tmp_path.iterdir()) == []
    assert kind(cache_place="disk").memory_size.endswith("n × P on disk")


def test_a_cache_on_disk_takes_no_memory_of_the_process():
    """Its pages belong to a file, which the system may drop at any time: they are no anonymous memory."""
    server = Server(plain(EveryClient(cache_place="disk")), np.zeros(SIZE), clients=3)
    for number, offset in enumerate(long_offsets(6)):
        server.send(offset, client=number % 3)
    rows = server.state.memory["buffer"]["last"].values()
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    files = [(*(int(end, 16) for end in words[0].split("-")), " ".join(words[5:])) for words in maps]
    for row in rows:
        held = [name for start, end, name in files if start <= row.data_ptr() < end]
        assert len(held) == 1
        assert "asyncmanifold-" in held[0]


def test_a_disk_that_is_full_is_said_in_one_line_and_changes_nothing(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    server = Server(plain(EveryClient(cache_place="disk")), np.zeros(4), clients=2)
    server.send(np.ones(4), client=0)
    before = server.state
    monkeypatch.setattr("asyncmanifold.server.disk_vectors.NamedTemporaryFile", full)
    with pytest.raises(RunError, match=r"a cache on disk \(TMPDIR\): No space left on device"):
        server.send(np.ones(4), client=1)
    assert server.state is before


@pytest.mark.parametrize("name", ["ca2fl", "ace", "aced", "ringleader", "fedfa", "port", "fadas"])
def test_caches_take_the_steps_of_curves_and_corrections(name):
    """The step that is remembered is the one that the curve and the correction make."""
    method = replace(METHODS[name], embedding=Bezier(2), correction=OrthoDC(0.0), global_lr=0.5)
    server = Server(method, np.zeros(40), clients=3)
    for number, offsets in enumerate(long_offsets(24, points=2)[:, :, :40]):
        server.send(offsets, client=number % 3, staleness=min(number % 2, server.state.version))
    assert server.state.version >= 2
    assert np.isfinite(server.theta).all()
