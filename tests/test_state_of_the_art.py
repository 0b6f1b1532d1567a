"""The methods since 2021: numbers worked out by hand, obvious references on long vectors, and wrong copies.

A copy of a method that is known to be wrong somewhere is written out here as well, and told apart.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncmanifold import (
    METHODS,
    Buffer,
    InputError,
    LocalTraining,
    Method,
    Run,
    ServerAdam,
    ServerAMSGrad,
    ServerMomentum,
    ServerState,
    ServerYogi,
    Situation,
    Update,
    absorb,
)
from asyncmanifold.geometry.spaces import Space
from asyncmanifold.server.adaptive_optimizers import portable_root
from asyncmanifold.server.moves import TangentMove
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import MemoryTrace
from asyncmanifold.vectors import FlatModel


def exactly(numbers):
    return pytest.approx(numbers, rel=1e-5, abs=1e-7)


class Server:
    """Absorbs offsets, given as plain numbers or arrays, and keeps every version."""

    def __init__(self, method, start, clients=1):
        self.method, self.clients = method, clients
        start = np.atleast_1d(np.asarray(start, dtype=np.float32))
        self.state = ServerState(torch.from_numpy(start.copy()))
        self.versions = [self.state.theta]
        self.time = 0.0

    def send(self, offset, *, client=0, staleness=0, weight=0.5, took=1.0):
        version = self.state.version - staleness
        offsets = torch.from_numpy(np.atleast_2d(np.asarray(offset, dtype=np.float32)))
        self.time += took
        self.state, self.step = absorb(
            self.method,
            self.state,
            Update(client, version, offsets),
            base=self.versions[version],
            weight=weight,
            situation=Situation(clients=self.clients, dispatched=self.time - took, time=self.time),
        )
        if self.state.version == len(self.versions):
            self.versions.append(self.state.theta)
        return self.theta

    @property
    def theta(self):
        numbers = self.state.theta.double().numpy()
        return float(numbers[0]) if len(numbers) == 1 else numbers


SIZE = 100_001
"""More than one block of memory, and not a whole number of them."""


def long_offsets(count, points=1):
    random = np.random.default_rng(5)
    return 0.1 * random.standard_normal((count, points, SIZE)).astype(np.float32)


def assert_near(vector, exact):
    assert np.linalg.norm(vector - exact) < 1e-5 * np.linalg.norm(exact)


# --- momentum, Adam, Yogi -----------------------------------------------------------------------------


def test_momentum_by_hand():
    """Steps ½ · (2, 4, 0): m = 1, then ½ · 1 + 2 = 2.5, then 1.25; Θ = 1, 3.5, 4.75."""
    server = Server(Method(server_optimizer=ServerMomentum(0.5)), 0.0)
    assert [server.send(v) for v in (2.0, 4.0, 0.0)] == exactly([1.0, 3.5, 4.75])


def test_adam_by_hand():
    """β = ½, ¾, ε = 0.1, η_g = 0.2, steps ½ · (2, 4, −2) = (1, 2, −1), u begins at ε² = 0.01.

    m = 0.5, 1.25, 0.125; u = 0.0075 + 0.25 = 0.2575, 0.193125 + 1 = 1.193125, 0.894844 + 0.25 = 1.144844.
    Moves 0.2 · m/(√u + 0.1) = 0.1/(0.507445 + 0.1), 0.25/(1.092303 + 0.1), 0.025/(1.069974 + 0.1).
    """
    server = Server(Method(server_optimizer=ServerAdam(0.5, 0.75, root_floor=0.1), global_lr=0.2), 0.0)
    moves = [0.1 / 0.607445, 0.25 / 1.192303, 0.025 / 1.169974]
    assert [server.send(v) for v in (2.0, 4.0, -2.0)] == exactly(np.cumsum(moves))


def test_yogi_by_hand():
    """As Adam's numbers, with u = 0.01 + ¼ · 1 = 0.26, then 0.26 + ¼ · 4 = 1.26, then 1.26 − ¼ · 1 = 1.01."""
    server = Server(Method(server_optimizer=ServerYogi(0.5, 0.75, root_floor=0.1), global_lr=0.2), 0.0)
    moves = 0.2 * np.array([0.5, 1.25, 0.125]) / (np.sqrt([0.26, 1.26, 1.01]) + 0.1)
    assert [server.send(v) for v in (2.0, 4.0, -2.0)] == exactly(np.cumsum(moves))


def test_the_rate_of_an_adaptive_optimizer_is_a_factor_of_its_steps():
    """A step ten times as long is the same step; twice the rate is twice the step."""

    def moved(offset, global_lr):
        method = Method(server_optimizer=ServerAdam(root_floor=1e-8), global_lr=global_lr, weighting="none")
        server = Server(method, 0.0)
        return [server.send(offset * factor) for factor in (1.0, -0.5, 2.0)]

    assert moved(10.0, 0.1) == exactly(moved(1.0, 0.1))
    assert moved(1.0, 0.2) == exactly([2.0 * place for place in moved(1.0, 0.1)])


# --- FADAS --------------------------------------------------------------------------------------------


def fadas(**changes):
    optimizer = ServerAMSGrad(0.5, 0.75, root_floor=1e-8, **changes)
    return Method(buffer=Buffer(2), server_optimizer=optimizer, weighting="none", global_lr=0.1)


def test_fadas_by_hand():
    """Means of two: 2, 0, −1. m = 1, 0.5, −0.25; u = 1, 0.75, 0.8125; û = 1, 1, 1.

    Moves 0.1 · (1, 0.5, −0.25). Dividing by √u would give 0.1, 0.057735, −0.027735.
    """
    server = Server(fadas(), 0.0)
    places = []
    for pair in ((1.0, 3.0), (-1.0, 1.0), (0.0, -2.0)):
        held = server.send(pair[0])
        assert held == (places[-1] if places else 0.0)
        places.append(server.send(pair[1]))
    assert places == exactly([0.1, 0.15, 0.125])


def test_fadas_divides_by_the_highest_square_and_not_by_the_last():
    """The wrong copy, û ← u, is plain Adam without bias corrections: it moves farther after a large step."""
    right, wrong = Server(fadas(), 0.0), 0.0
    mean = square = 0.0
    for step in (2.0, 0.0, -1.0):
        for _ in range(2):
            right.send(step)
        mean, square = 0.5 * mean + 0.5 * step, 0.75 * square + 0.25 * step**2
        wrong += 0.1 * mean / (np.sqrt(square) + 1e-8)
    assert right.theta == exactly(0.125)
    assert wrong == exactly(0.1 + 0.0577350 - 0.0277350)


def test_the_rate_of_fadas_falls_with_the_greatest_staleness_in_the_buffer():
    """Every mean is 1: m = ½, ¾, ⅞, u = û = ¼, 7/16, 37/64; staleness 0, then (0, 2), then (1, 0)."""
    moves = [0.5 / 0.5, 0.75 / np.sqrt(7 / 16), 0.875 / np.sqrt(37 / 64)]
    server = Server(fadas(), 0.0)
    places = [server.send(1.0) for _ in range(2)]
    server.versions += [server.state.theta] * 2
    server.state = replace(server.state, version=3)
    for staleness in (0, 2, 1, 0):
        places.append(server.send(1.0, staleness=staleness))
    assert places[1::2] == exactly(np.cumsum(0.1 * np.array(moves) * [1.0, 0.5, 1.0]))
    assert ServerAMSGrad(full_rate_delay=None).factor(late_move(9)) == 1.0
    assert ServerAMSGrad(full_rate_delay=4).factor(late_move(4)) == 1.0


def late_move(staleness):
    return TangentMove(Space(), torch.zeros(1), torch.zeros(1), staleness=staleness)


def test_fadas_agrees_with_the_reference_on_long_vectors():
    offsets = long_offsets(15)
    server = Server(replace(METHODS["fadas"], global_lr=0.02), np.zeros(SIZE))
    theta, mean, square, highest = np.zeros((4, SIZE))
    for flush in range(3):
        group = offsets[5 * flush : 5 * flush + 5]
        for number, offset in enumerate(group):
            staleness = min(number, flush)
            server.send(offset, staleness=staleness)
        step = group.astype(np.float64).mean(0)[0]
        mean, square = 0.9 * mean + 0.1 * step, 0.99 * square + 0.01 * step**2
        highest = np.maximum(highest, square)
        rate = 0.02 if flush <= 1 else 0.02 / flush
        theta = theta + rate * mean / (np.sqrt(highest) + 1e-8)
    assert_near(server.theta, theta)


def test_fadas_without_memory_takes_steps_of_one_length():
    """β₁ = β₂ = 0 and one update per step: Θ moves by η_g times the sign, wherever |v| is the highest yet."""
    optimizer = ServerAMSGrad(0.0, 0.0)
    server = Server(Method(server_optimizer=optimizer, weighting="none", global_lr=0.1), 0.0)
    assert [server.send(v) for v in (1.0, -2.0, 5.0, -2.5)] == exactly([0.1, 0.0, 0.1, 0.05])


# --- where they run -----------------------------------------------------------------------------------


def test_roots_are_exact_to_the_last_bits():
    squares = torch.cat([torch.logspace(-37, 37, 1001), torch.tensor([0.0, 1.0, 4.0])])
    roots, exact = portable_root(squares).double(), squares.double().sqrt()
    assert torch.all((roots - exact).abs() <= 2.0**-22 * exact)
    assert roots[-3:].tolist() == [0.0, 1.0, 2.0]


def open_session(method, model):
    return Session(method, LocalTraining(), Run(), model, MemoryTrace(), lambda updates, model: {})


@pytest.mark.parametrize("optimizer", [ServerAdam(), ServerYogi(), ServerAMSGrad()], ids=str)
def test_adaptive_optimizers_are_refused_on_manifolds(optimizer):
    geoopt = pytest.importorskip("geoopt")
    weight = geoopt.ManifoldParameter(torch.tensor([[1.0, 0.0]]), manifold=geoopt.Sphere())
    model = FlatModel(torch.nn.ParameterList([weight]))
    said = "squares entry by entry have no meaning on a manifold, and the model has parameters on manifolds"
    with pytest.raises(InputError, match=said):
        open_session(Method(server_optimizer=optimizer), model)
