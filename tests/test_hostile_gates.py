"""Gates with trusted data, centred clipping, the throttle: by hand, against slow references, in runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from asyncmanifold import (
    METHODS,
    Admission,
    AflGuard,
    Bezier,
    CentredClipping,
    FloodingThrottle,
    Gate,
    InputError,
    Method,
    NormBound,
    Position,
    Rejected,
    RunError,
    ServerState,
    Task,
    Update,
    ZenoPlusPlus,
    absorb,
    simulate,
)
from asyncmanifold.client.trusted_training import TrustedTrainer
from asyncmanifold.files import load_tree, save_tree
from asyncmanifold.flower import AsyncServer, Policy, TrustedExamples
from asyncmanifold.flower.arrays import array_record
from asyncmanifold.geometry.spaces import Piece, Space
from asyncmanifold.session.packing import rebuild
from asyncmanifold.session.trace import read_trace
from asyncmanifold.tasks.digits import Digits
from asyncmanifold.vectors import Statistics
from grid import LocalGrid, honest
from test_flower import Killed
from tiny import EVENTFUL, TRAINING, make_run, make_task, simulated, trace_of

PLAIN = Method(weighting="none")


def guarded(*gates, **parts):
    return replace(PLAIN, gates=gates, **parts)


def send(method, state, offsets, client=0, own=None, base=None, **options):
    """Absorb one update; ``own`` is the server's update, and ``base`` what the client started from."""
    rows = torch.tensor(offsets, dtype=torch.float32).reshape(-1, state.theta.numel())
    update = Update(client, state.version, rows, options.pop("statistics", state.statistics))
    if base is not None:
        update, base = replace(update, version=state.version - 1), torch.tensor(base)
    trusted = None if own is None else lambda: torch.tensor(own)
    base = state.theta if base is None else base
    return absorb(method, state, update, base=base, weight=1.0, trusted=trusted, **options)


# --- by hand ------------------------------------------------------------------------------------------


def test_aflguard_by_hand():
    """λ = 1 and v_s = (2, 0): the distance must be at most 2."""
    method, state = guarded(AflGuard(1.0)), ServerState(torch.zeros(2))
    state, _ = send(method, state, [2.0, 2.0], own=[2.0, 0.0])  # 2 away: on the limit
    with pytest.raises(Rejected, match=r"2\.24 away from the server's own update, more than 1 times"):
        send(method, state, [1.0, 2.0], own=[2.0, 0.0])  # √5 away
    with pytest.raises(Rejected, match="6 away"):
        send(method, state, [-4.0, 0.0], own=[2.0, 0.0])
    state, _ = send(method, state, [1.0, -1.5], own=[2.0, 0.0])  # √3.25
    state, _ = send(method, state, [4.0, 0.0], own=[2.0, 0.0])
    assert state.theta.tolist() == [7.0, 0.5]


def test_zeno_by_hand():
    """γ = 0.1, ρ = 0.02 and ε = 0: the cosine must be at least 0.2; ε = 1 and ‖v_s‖² = 4 allow 0.25 less."""
    method, state = guarded(ZenoPlusPlus(0.1, zeno_penalty=0.02)), ServerState(torch.zeros(2))
    state, _ = send(method, state, [30.0, 40.0], own=[2.0, 0.0])  # scaled to (1.2, 1.6)
    state, _ = send(method, state, [0.0006, -0.0008], own=[2.0, 0.0])  # a short one too: (1.2, −1.6)
    with pytest.raises(Rejected, match=r"cosine 0\.10 to the server's own update: score -0\.04"):
        send(method, state, [0.1, 0.99**0.5], own=[2.0, 0.0])
    torch.testing.assert_close(state.theta, torch.tensor([2.4, 0.0]))
    patient = guarded(ZenoPlusPlus(0.1, zeno_penalty=0.02, zeno_slack=1.0))
    state, step = send(patient, state, [0.0, 5.0], own=[2.0, 0.0])  # cosine 0 ≥ 0.2 − 0.25
    assert step.step_norm == pytest.approx(2.0)
    with pytest.raises(Rejected, match=r"cosine -0\.60"):
        send(patient, state, [-3.0, 4.0], own=[2.0, 0.0])
    assert send(patient, state, [0.0, 0.0], own=[2.0, 0.0])[1].step_norm == 0.0


def test_centred_clipping_by_hand():
    """r = 1, m = ½: a is (0, 0), then (0.3, 0.4), then (0.3, 0.9), then (0, 0.9)."""
    method = guarded(CentredClipping(1.0, centre_momentum=0.5))
    state, seen = ServerState(torch.zeros(2)), []
    for offset in ([3.0, 4.0], [0.3, 5.4], [-0.3, 0.9]):  # 5, 5 and 0.6 away
        state, _ = send(method, state, offset)
        seen.append((state.theta.tolist(), state.memory["gates.CentredClipping"]["centres"][0].tolist()))
    assert seen[0] == (pytest.approx([0.6, 0.8]), pytest.approx([0.3, 0.4]))
    assert seen[1] == (pytest.approx([0.9, 2.2]), pytest.approx([0.3, 0.9]))
    assert seen[2] == (pytest.approx([0.6, 3.1]), pytest.approx([0.0, 0.9]))


def test_the_throttle_by_hand():
    """q = 3, all others: client 7 is heard again in full after both others were."""
    method, state = guarded(FloodingThrottle(3.0, throttle_others=1.0)), ServerState(torch.zeros(1))
    counted = []
    for client in (7, 7, 3, 7, 5, 7, 7, 3):
        state, step = send(method, state, [1.0], client)
        counted.append(step.fraction)
    # 7: first; alone; only client 3 is known, and it was heard: in full; of 3 and 5 only 5 since; again
    assert counted == pytest.approx([1.0, 1 / 3, 1.0, 1.0, 1.0, 1 / 3, 1 / 9, 1.0])
    assert state.theta.item() == pytest.approx(sum(counted))


def test_a_throttled_position_does_not_pull_the_model_back():
    """FedAsync's step is v − d: a count of ½ halves it, where half of the offset would leave −d."""
    method = guarded(FloodingThrottle(2.0), correction=Position())
    state, _ = send(method, ServerState(torch.zeros(1)), [1.0])
    state, step = send(method, state, [5.0], base=[-1.0])  # d = 2, v − d = 3
    assert (step.fraction, state.theta.item()) == (0.5, pytest.approx(1.0 + 0.5 * 3.0))


# --- against slow references --------------------------------------------------------------------------


@pytest.mark.parametrize("points", [1, 3])
@pytest.mark.parametrize("radius", [None, 4.0])
def test_centred_clipping_is_the_slow_rule(points, radius):
    """Long random vectors, in double precision, with the median counted anew."""
    gate = CentredClipping(radius, centre_momentum=0.8, clip_votes=4)
    method = guarded(gate, embedding=Bezier(points, step="parameter"))
    random, state = np.random.default_rng(points), ServerState(torch.ones(300))
    centre, theta, latest = np.zeros((points, 300)), np.ones(300), {}
    for number in range(40):
        client = int(random.integers(6))
        offsets = random.standard_normal((points, 300)) * random.lognormal(0.0, 1.0) * 0.3
        offsets = offsets.astype(np.float32).astype(np.float64)
        distance = max(np.linalg.norm(row) for row in offsets - centre)
        latest.pop(client, None)
        latest[client] = distance
        latest = dict(list(latest.items())[-4:])
        usual = sorted(latest.values())[(len(latest) - 1) // 2]
        most = radius or (usual if number else min(distance, np.linalg.norm(theta)))
        clipped = centre + min(1.0, most / distance) * (offsets - centre)
        centre = 0.8 * centre + 0.2 * clipped
        theta = theta + clipped[-1]
        state, _ = send(method, state, offsets, client)
        np.testing.assert_allclose(state.theta.numpy(), theta, rtol=1e-4, atol=1e-4)


def test_the_throttle_is_the_slow_rule():
    method, state = guarded(FloodingThrottle(2.0)), ServerState(torch.zeros(1))
    random, since, repeats, known = np.random.default_rng(3), {}, {}, set()
    for _ in range(200):
        client = 0 if random.random() < 0.5 else int(random.integers(1, 7))  # client 0 floods
        others = known - {client}
        is_full = client not in since or len(since[client]) >= max(1, (len(others) + 1) // 2)
        repeats[client] = 0 if is_full else repeats[client] + 1
        if is_full:
            since[client] = set()
        for other in since:
            if other != client:
                since[other].add(client)
        known.add(client)
        state, step = send(method, state, [1.0], client)
        assert step.fraction == 0.5 ** repeats[client]


def test_gates_with_trusted_data_are_the_slow_rules():
    random = np.random.default_rng(5)
    admitted = 0
    for _ in range(60):
        own, offset = random.standard_normal((2, 500)).astype(np.float32)
        offset = (0.5 * offset + random.uniform(-1.0, 1.5) * own).astype(np.float32)
        wide = own.astype(np.float64), offset.astype(np.float64)
        for gate in (AflGuard(0.9), ZenoPlusPlus(0.5, zeno_penalty=0.1)):
            if isinstance(gate, AflGuard):
                expected, scale = np.linalg.norm(wide[1] - wide[0]) <= 0.9 * np.linalg.norm(wide[0]), 1.0
            else:
                scale = np.linalg.norm(wide[0]) / np.linalg.norm(wide[1])
                score = 0.5 * wide[0] @ wide[1] * scale - 0.1 * scale**2 * wide[1] @ wide[1]
                expected = score >= 0.0
            state = ServerState(torch.zeros(500))
            if expected:
                state, _ = send(guarded(gate), state, offset, own=own.tolist())
                np.testing.assert_allclose(state.theta.numpy(), scale * wide[1], rtol=1e-4, atol=1e-5)
                admitted += 1
            else:
                with pytest.raises(Rejected):
                    send(guarded(gate), state, offset, own=own.tolist())
    assert 30 < admitted < 90


# --- what gates have in common ------------------------------------------------------------------------


def test_factors_and_centres_are_applied_in_the_order_of_the_gates():
    """Half, then half the way to (8, 0), then half again; statistics move by the product, an eighth."""

    class Half(Gate):
        def admit(self, arrival, memory):
            return 0.5, memory

    class Drawn(Gate):
        def admit(self, arrival, memory):
            return Admission(0.5, torch.tensor([[8.0, 0.0]])), memory

    method = guarded(Half(), Drawn(), Half())
    state = ServerState(torch.zeros(2), Statistics(torch.zeros(1), torch.zeros(0, dtype=torch.int64)))
    received = Statistics(torch.tensor([8.0]), state.statistics.integers)
    state, step = send(method, state, [4.0, 4.0], statistics=received)
    assert state.theta.tolist() == [2.5, 0.5]  # ½ · (8 + ½ · (½ · 4 − 8)), ½ · ½ · ½ · 4
    assert state.statistics.floats.tolist() == [1.0]
    assert step.update_norm == pytest.approx(32**0.5)


TRUSTED = (AflGuard(2.0), ZenoPlusPlus())
ALL = (*TRUSTED, CentredClipping(), CentredClipping(1.0), FloodingThrottle())


@pytest.mark.parametrize("gate", ALL, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_what_is_not_finite_is_rejected_and_changes_nothing(gate, value):
    method, state = guarded(gate), ServerState(torch.zeros(3))
    state, _ = send(method, state, [1.0, 0.0, 0.0], own=[1.0, 0.0, 0.0])
    with pytest.raises(Rejected, match=r"non-finite|overflow"):
        send(method, state, [1.0, value, 0.0], own=[1.0, 0.0, 0.0])


@pytest.mark.parametrize("own", [[0.0, 0.0], [torch.nan, 1.0], [torch.inf, 1.0]])
@pytest.mark.parametrize("gate", TRUSTED, ids=str)
def test_without_a_direction_of_its_own_the_server_admits_nothing(gate, own):
    with pytest.raises(Rejected, match="there is nothing to compare with"):
        send(guarded(gate), ServerState(torch.zeros(2)), [1.0, 0.0], own=own)


@pytest.mark.parametrize("gate", ALL, ids=str)
def test_numbers_of_clients_and_places_of_entries_do_not_matter(gate):
    """Other numbers for the clients give the same models, and permuted entries permuted models."""
    random = np.random.default_rng(9)
    order = torch.from_numpy(random.permutation(40))
    states = [ServerState(torch.ones(40)) for _ in range(3)]
    own = torch.ones(40)
    for _ in range(12):
        client = int(random.integers(4))
        offset = torch.from_numpy(random.standard_normal(40)).float() + 1.5
        for number, (name, place) in enumerate([(client, None), (40 - 7 * client, None), (client, order)]):
            row = offset if place is None else offset[place]
            update = Update(name, states[number].version, row[None])
            states[number], _ = absorb(
                guarded(gate),
                states[number],
                update,
                base=states[number].theta,
                weight=1.0,
                trusted=lambda: own,
            )
    assert torch.equal(states[0].theta, states[1].theta)
    torch.testing.assert_close(states[0].theta[order], states[2].theta)


def test_memories_go_to_a_file_and_back(tmp_path):
    method, state = guarded(CentredClipping(), FloodingThrottle()), ServerState(torch.ones(4))
    for client in (0, 1, 0):
        state, _ = send(method, state, [1.0, 2.0, -1.0, client], client)
    save_tree(tmp_path / "state", vars(state))
    again = rebuild(ServerState, load_tree(tmp_path / "state"))
    one, other = (send(method, s, [0.0, 9.0, 0.0, 1.0], 1)[0].theta for s in (state, again))
    assert torch.equal(one, other)


def test_on_a_sphere_everything_happens_at_the_current_model():
    """The centre stays tangent, and an update from an old model is compared where the model is now."""
    geoopt = pytest.importorskip("geoopt")
    from asyncmanifold.geometry.maps import maps_of

    space = Space([Piece(0, 3, (3,), maps_of(geoopt.Sphere(), torch.tensor([1.0, 0.0, 0.0])))])
    method = guarded(AflGuard(0.1), ZenoPlusPlus(), CentredClipping(0.5))
    state = ServerState(torch.tensor([1.0, 0.0, 0.0]))
    for _ in range(4):
        own = space.project(state.theta, torch.tensor([0.1, 0.2, 0.3]))
        state, _ = send(method, state, own.tolist(), own=own.tolist(), space=space)
        (centre,) = state.memory["gates.CentredClipping"]["centres"].values()
        assert abs(float(centre @ state.theta)) < 1e-6
    old, before = torch.tensor([0.0, 1.0, 0.0]), state
    offset = space.project(old, torch.tensor([0.3, 0.0, 0.2]))
    carried = space.transport(old, state.theta, offset)
    state, _ = send(method, before, offset.tolist(), own=carried.tolist(), base=old.tolist(), space=space)
    assert state.version == before.version + 1
    with pytest.raises(Rejected, match="away from the server's own"):
        send(method, before, offset.tolist(), own=offset.tolist(), base=old.tolist(), space=space)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AflGuard(0.0), r"AflGuard\(trusted_distance=0.0\) must be above 0"),
        (lambda: ZenoPlusPlus(zeno_slack=-1.0), r"ZenoPlusPlus\(zeno_slack=-1.0\) must be at least 0"),
        (lambda: CentredClipping(-1.0), r"CentredClipping\(clip_radius=-1.0\) must be above 0"),
        (lambda: CentredClipping(centre_momentum=1.0), r"centre_momentum=1.0\) must be in \[0, 1\)"),
        (lambda: FloodingThrottle(1.0), r"FloodingThrottle\(throttle_base=1.0\) must be above 1"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


# --- trusted data -------------------------------------------------------------------------------------


def trusted_task(sizes=(10, 14, 18, 22, 26, 30, 34)):
    whole = make_task(sizes=(*sizes, 40))
    return replace(
        whole, clients=whole.clients[:-1], validation=whole.validation[:-1], trusted=whole.clients[-1]
    )


def run(out, method, updates=20, **options):
    schedule = options.pop("schedule", EVENTFUL)
    settings = {"training": TRAINING, "schedule": schedule, "run": make_run(updates)}
    return simulated(trusted_task(), method, out=out, **settings, **options)


GUARDED = {
    "all": replace(
        METHODS["asyncbezier"], gates=(AflGuard(1.2), ZenoPlusPlus(), CentredClipping(), FloodingThrottle())
    ),
    "zeno++": replace(METHODS["fedbuff"], gates=(ZenoPlusPlus(), NormBound(1.0, clips=True))),
}


@pytest.mark.parametrize("name", GUARDED)
def test_workers_interruptions_and_replays_give_the_same_bits(name, tmp_path):
    method = GUARDED[name]
    run(tmp_path / "whole", method)
    whole = trace_of(tmp_path / "whole")
    if name == "all":
        assert {record["kind"] for record in whole} >= {"update", "rejected"}
        run(tmp_path / "workers", method, workers=2)
        assert trace_of(tmp_path / "workers") == whole
    for stop in (7, 13):

        def interrupt(record, stop=stop):
            if record.get("update") == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", method, resume=True, observer=interrupt)
    run(tmp_path / "parts", method, resume=True)
    assert trace_of(tmp_path / "parts") == whole
    again = simulate(trusted_task(), method, training=TRAINING, replay=whole)
    for key, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, load_model_tensors(tmp_path / "whole")[key])


def load_model_tensors(directory):
    from asyncmanifold.files import load_tensors

    return load_tensors(directory / "model.safetensors")[0]


def test_the_servers_own_update_is_trained_once_per_version(monkeypatch):
    made, train = [], TrustedTrainer.update

    def counting(self, state):
        before = self._made
        found = train(self, state)
        made.append((state.version, self._made is not before))
        return found

    monkeypatch.setattr(TrustedTrainer, "update", counting)
    run(None, replace(METHODS["fedbuff"], gates=TRUSTED), updates=20)
    trained = [version for version, is_new in made if is_new]
    assert trained == sorted(set(trained)) == [0, 1]  # 20 updates in buffers of 10, and each trained once
    assert len(made) >= 20


def test_the_servers_own_update_is_what_a_client_with_its_data_would_send():
    """On the seed and version alone, whatever was trained before; and of a curve the end point."""
    task = trusted_task()

    def trainer():
        return TrustedTrainer(task.build_model(0), task.loss, task.trusted, Bezier(2), TRAINING, seed=4)

    from asyncmanifold.vectors import FlatModel

    model = FlatModel(task.build_model(0))
    states = [ServerState(model.vector + k, model.read_statistics(), version=k) for k in range(3)]
    one = trainer()
    updates = [one.update(state).clone() for state in states]
    assert torch.equal(trainer().update(states[2]), updates[2])
    assert torch.equal(one.update(states[0]), updates[0])
    assert len({float(update.norm()) for update in updates}) == 3
    loss = nn.functional.cross_entropy
    inputs, targets = task.trusted.batch(torch.arange(40))
    model.module.eval()
    before = loss(model.module(inputs), targets).item()
    model.load(states[0].theta + updates[0], states[0].statistics)
    assert loss(model.module.eval()(inputs), targets).item() < before


def test_a_method_that_needs_trusted_data_is_refused_without_them(tmp_path):
    method = replace(METHODS["fedasync"], gates=TRUSTED)
    with pytest.raises(InputError, match="AflGuard and ZenoPlusPlus needs data that the server trusts"):
        simulate(make_task(), method, records=None)
    with pytest.raises(InputError, match="needs data that the server trusts"):
        AsyncServer(make_task().build_model(0), method)
    with pytest.raises(InputError, match=r"absorb\(trusted=…\)"):
        send(method, ServerState(torch.zeros(2)), [1.0, 1.0])
    with pytest.raises(InputError, match=r"Task\(trusted=…\) has no examples"):
        Task(
            nn.Linear(6, 3),
            nn.functional.cross_entropy,
            [(torch.zeros(2, 6), torch.zeros(2).long())],
            test=(torch.zeros(2, 6), torch.zeros(2).long()),
            trusted=(torch.zeros(0, 6), torch.zeros(0).long()),
        )


def test_a_model_that_cannot_be_trained_admits_nothing():
    task = trusted_task()
    broken = (torch.full((8, 6), torch.nan), torch.zeros(8, dtype=torch.int64))
    with pytest.raises(RunError, match="the server's own update could not be trained: loss became nan"):
        simulate(
            replace(task, trusted=broken), replace(METHODS["fedasync"], gates=TRUSTED), training=TRAINING
        )


def test_trusted_digits_are_nobodys():
    task, plain = Digits(trusted_examples=90).build(3), Digits().build(3)
    assert plain.trusted is None
    rows = [set(task.trusted.indices.tolist()), set(task.test.indices.tolist())]
    rows += [set(data.indices.tolist()) for data in (*task.clients, *task.validation)]
    assert len(rows[0]) == 90
    assert sum(map(len, rows)) == len(set().union(*rows)) == 1797
    assert set(task.test.indices.tolist()) == set(plain.test.indices.tolist())
    with pytest.raises(InputError, match="must need at most 73 examples: half of the 147"):
        Digits(trusted_examples=1200)


def test_on_flower_the_log_and_a_replay_give_the_same_bits(tmp_path):
    """A process that ends in the middle trains the server's own updates again, from its log."""
    method, task = replace(METHODS["asyncbezier"], gates=(AflGuard(1.2),)), trusted_task((12, 20, 28))
    model = task.build_model(0)

    def start(stop=None, **options):
        grid = LocalGrid({100 + k: honest(task, k) for k in range(3)}, pulls={100: 1, 101: 2, 102: 4})

        def kill(pull):
            if pull == stop:
                raise Killed

        grid.on_pull = kill
        server = AsyncServer(
            model,
            method,
            training=TRAINING,
            policy=Policy(poll_seconds=0.001, meet_seconds=0.001, evaluate_clients=False),
            trusted=TrustedExamples(task.loss, task.trusted),
        )
        return server.start(grid, array_record(model.state_dict()), 16, out=tmp_path / "run", **options)

    with pytest.raises(Killed):
        start(stop=9)
    result = start(resume=True)
    trace = list(read_trace(tmp_path / "run" / "trace.jsonl"))
    again = simulate(task, start_method(method), training=TRAINING, replay=trace)
    for key, tensor in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(tensor, again.model.state_dict()[key], rtol=1e-6, atol=1e-7)


def start_method(method):
    """The method as a server on Flower has it, with its bounds."""
    return AsyncServer(
        make_task().build_model(0), method, trusted=TrustedExamples(None, make_task().test)
    ).method
