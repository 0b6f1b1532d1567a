"""Ringleader: rounds of two phases, by hand, against an obvious reference and against wrong copies."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

from asyncmanifold import METHODS, Method, RoundTable
from test_state_of_the_art import SIZE, Server, assert_near, exactly, long_offsets


def ringleader(**changes):
    return Method(buffer=RoundTable(), weighting="none", **changes)


FIRST_PHASE = [(0, 3.0), (0, 9.0), (1, 6.0), (2, 12.0)]


def test_two_rounds_by_hand():
    """n = 3. Client 0 sends 3 and 9, client 1 sends 6; client 2's 12 fills the table: (6 + 6 + 12)/3 = 8.

    Client 2's 30 is for the next round, since it has had its turn. Client 0 sends 0: its mean is 4, and the
    model moves by (4 + 6 + 12)/3 = 22/3. Client 0's 5 is for the next round. Client 1 sends 12: its mean is
    9, (4 + 9 + 12)/3 = 25/3, and the round is over. The next begins with 30 and 5: client 2's 10 makes a mean
    of 20, client 1's 2 fills the table: (5 + 2 + 20)/3 = 9. Then client 2 sends 2: (5 + 2 + 14)/3 = 7.
    """
    server = Server(ringleader(), 0.0, clients=3)
    later = [(2, 30.0), (0, 0.0), (0, 5.0), (1, 12.0), (2, 10.0), (1, 2.0), (2, 2.0)]
    places = [server.send(offset, client=client) for client, offset in (*FIRST_PHASE, *later)]
    moved = np.cumsum([0, 0, 0, 8, 0, 22 / 3, 0, 25 / 3, 0, 9, 7])
    assert places == exactly(moved.tolist())
    assert server.state.version == 5  # an update makes at most one version, a round exactly n


def test_it_is_not_one_of_its_wrong_copies():
    """A mean of all four offsets is 7.5; the last of each client 9; a step per arrival has moved already."""
    server = Server(ringleader(), 0.0, clients=3)
    places = [server.send(offset, client=client) for client, offset in FIRST_PHASE]
    ace = Server(replace(METHODS["ace"], global_lr=1.0), 0.0, clients=3)
    at_once = [ace.send(offset, client=client) for client, offset in FIRST_PHASE]
    assert places == exactly([0.0, 0.0, 0.0, 8.0])
    assert places[-1] not in (exactly(np.mean([3.0, 9.0, 6.0, 12.0])), exactly(np.mean([9.0, 6.0, 12.0])))
    assert places[-1] != exactly(3 * 8.0)  # all n steps as soon as the table is full
    assert at_once[:2] == exactly([1.0, 4.0])


class Reference:
    """The same rule with lists of everything that clients sent."""

    def __init__(self, clients, rate):
        self.clients, self.rate, self.theta = clients, rate, np.zeros(SIZE)
        self.table, self.next = {}, {}
        self.turns = None  # clients that still move the model in this round

    def send(self, client, offset):
        if self.turns is None:
            self.table.setdefault(client, []).append(offset)
            if len(self.table) == self.clients:
                self.turns = set(range(self.clients))
                self.move(client)
        elif client in self.turns:
            self.table[client].append(offset)
            self.move(client)
        else:
            self.next.setdefault(client, []).append(offset)

    def move(self, client):
        self.theta = self.theta + self.rate * np.mean([np.mean(row, 0) for row in self.table.values()], 0)
        self.turns.remove(client)
        if not self.turns:
            self.table, self.next, self.turns = self.next, {}, None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_agrees_with_the_reference_on_long_vectors(precision):
    random, offsets = np.random.default_rng(4), long_offsets(50)
    method = replace(ringleader(global_lr=0.3), buffer=RoundTable(cache_precision=precision))
    server, reference = Server(method, np.zeros(SIZE), clients=4), Reference(4, 0.3)
    for offset in offsets:
        client = int(random.choice(4, p=[0.5, 0.2, 0.2, 0.1]))
        server.send(offset, client=client, staleness=min(server.state.version, int(random.integers(3))))
        reference.send(client, offset[0].astype(np.float64))
    assert server.state.version >= 8
    if precision == "float32":
        assert_near(server.theta, reference.theta)
    else:
        wrong = np.linalg.norm(server.theta - reference.theta) / np.linalg.norm(reference.theta)
        assert 1e-5 < wrong < 1e-2


@pytest.mark.parametrize("seed", range(4))
def test_no_offset_is_older_than_2n_minus_2_versions_when_it_counts(seed):
    """Clients of any speed, each always at work: whatever is in the table has a recent base model."""
    random, clients = np.random.default_rng(seed), 5
    server = Server(ringleader(), 0.0, clients=clients)
    paces = random.lognormal(0.0, 1.0, clients)
    work = [(random.exponential(paces[client]), client, 0) for client in range(clients)]
    heapq.heapify(work)
    bases, following, oldest = {}, {}, []
    for _ in range(3000):
        time, client, base = heapq.heappop(work)
        version = server.state.version
        server.send(0.0, client=client, staleness=version - base)
        memory = server.state.memory["buffer"]
        if client in memory["next_rows"]:
            following.setdefault(client, base)
        else:
            bases.setdefault(client, base)
        if server.state.version > version:
            oldest.append(version - min(bases.values()))
            if not memory["moved"]:
                bases, following = following, {}
        heapq.heappush(work, (time + random.exponential(paces[client]), client, server.state.version))
    assert len(oldest) > 50
    assert clients <= max(oldest) <= 2 * clients - 2


def test_a_round_does_not_wait_for_ever_for_a_client_that_has_left():
    """Client 2 fills the table of three: 8. Client 1 leaves before its turn, client 0 has its own.

    Clients 0 and 2 send 5 and 7, which are for the next round; two clients are all there are, so that round
    begins with the mean 6, and client 0's next offset 1 moves the model by ((5 + 1)/2 + 7)/2 = 5.
    """
    server = Server(ringleader(), 0.0, clients=3)
    for client, offset in FIRST_PHASE:
        server.send(offset, client=client)
    server.clients = 2
    places = [
        server.send(offset, client=client) for client, offset in [(0, 0.0), (0, 5.0), (2, 7.0), (0, 1.0)]
    ]
    assert places == exactly(np.cumsum([8 + 22 / 3, 0, 6, 5]).tolist())


def test_a_client_that_joins_in_the_second_phase_waits_for_the_next_round():
    server = Server(ringleader(), 0.0, clients=2)
    for client, offset in [(0, 2.0), (1, 4.0)]:
        server.send(offset, client=client)
    server.clients = 3
    assert server.send(9.0, client=2) == exactly(3.0)
    assert server.send(2.0, client=0) == exactly(6.0)
    assert set(server.state.memory["buffer"]["rows"]) == {2}


def test_with_one_client_it_is_asyncsgd():
    leader, free = Server(ringleader(global_lr=0.4), np.zeros(5)), Server(Method(global_lr=0.4), np.zeros(5))
    for offset in long_offsets(6)[:, :, :5]:
        for server in (leader, free):
            server.send(offset, weight=1.0, staleness=min(1, server.state.version))
    np.testing.assert_allclose(leader.theta, free.theta, rtol=1e-5, atol=1e-7)


def test_weighted_by_examples_rows_count_with_the_clients_shares():
    """Shares ¼ and ¾ of two clients: ¼ · 4 + ¾ · 8 = 7."""
    server = Server(Method(buffer=RoundTable()), 0.0, clients=2)
    server.send(4.0, client=0, weight=0.25)
    assert server.send(8.0, client=1, weight=0.75) == exactly(7.0)
