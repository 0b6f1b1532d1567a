"""Parts from outside the package: kept, saved, resumed, in workers and on Flower, with the same bits."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from asyncmanifold import (
    METHODS,
    PARTS,
    Bezier,
    InputError,
    Int8,
    LocalTraining,
    Method,
    NormBound,
    Outgoing,
    Rejected,
    ServerState,
    Update,
    absorb,
    simulate,
)
from asyncmanifold.configuration.config import load_config
from asyncmanifold.files import load_tree
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.flower.codec import array_record
from asyncmanifold.geometry.spaces import Piece, Space
from asyncmanifold.server.outgoing import Parcel, pack_update, unpack_update
from asyncmanifold.server.protocol import Job
from asyncmanifold.session.trace import read_trace
from asyncmanifold.vectors import FlatModel
from grid import LocalGrid, honest
from own_parts import Bytes, Fading, Growing, Noise, Quota, RoundRobin, Timed
from tiny import EVENTFUL, TRAINING, make_run, make_task, of_kind, simulated, trace_of

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from own_cache import CachedMean
from own_clip import Clip
from own_curve import Polyline
from own_momentum import Momentum

SGD, CURVE = METHODS["asyncsgd"], METHODS["asyncbezier"]
OWN = {
    "momentum": replace(CURVE, server_optimizer=Momentum(0.7)),
    "momentum after a buffer": replace(METHODS["fedbuff"], server_optimizer=Momentum(0.3)),
    "momentum in rounds": replace(METHODS["fedavg"], server_optimizer=Momentum(0.3)),
    "cache": replace(SGD, buffer=CachedMean(7), weighting="none", global_lr=0.3),
    "clip": replace(CURVE, outgoing=(Clip(0.4),)),
    "noise, then clip": replace(SGD, outgoing=(Noise(), Clip(0.4))),
    "bytes": replace(CURVE, outgoing=(Noise(0.001), Bytes())),
    "int8": replace(CURVE, outgoing=(Clip(0.4), Int8(16))),
    "curve": replace(METHODS["asyncdisc"], outgoing="curve"),
    "gate": replace(SGD, gates=(NormBound(0.3, clips=True), Quota(20))),
    "staleness": replace(SGD, staleness=Fading()),
    "penalty": replace(SGD, penalty=Growing()),
    "timed": replace(SGD, staleness=Timed()),
    "selection": replace(SGD, selection=RoundRobin()),
    "polyline": replace(CURVE, embedding=Polyline()),
}
AT_THE_CLIENT = [*(name for name, method in OWN.items() if method.outgoing), "polyline"]
"""What workers do themselves; all other parts act at the server."""
every_own = pytest.mark.parametrize("name", OWN)


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    for key, name, part in (
        ("outgoing", "clip", Clip),  # whose file other tests may have run anew
        ("outgoing", "noise", Noise),
        ("outgoing", "bytes", Bytes),
        ("embedding", "polyline", Polyline),
    ):
        monkeypatch.setitem(PARTS[key], name, part)


def run(out, method, updates=30, **options):
    return simulated(
        make_task(sizes=(10, 14, 18, 22, 26, 30, 34)),
        method,
        training=TRAINING,
        schedule=EVENTFUL if not method.synchronous else replace(EVENTFUL, drop_probability=0.2),
        run=make_run(updates),
        out=out,
        **options,
    )


def assert_same(one, other):
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert trace_of(one) == trace_of(other)


@pytest.mark.parametrize("name", [*AT_THE_CLIENT, "cache"])
def test_own_parts_run_in_workers_to_the_same_bits(name, tmp_path):
    run(tmp_path / "whole", OWN[name])
    run(tmp_path / "workers", OWN[name], workers=2)
    assert_same(tmp_path / "whole", tmp_path / "workers")


@every_own
def test_own_parts_resume_to_the_same_bits(name, tmp_path):
    method = OWN[name]
    run(tmp_path / "whole", method)
    for stop in (7, 8, 19):

        def interrupt(record, stop=stop):
            if record.get("update") == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", method, resume=True, observer=interrupt)
    run(tmp_path / "parts", method, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("name", [name for name in OWN if name not in (*AT_THE_CLIENT, "timed")])
def test_a_checkpoint_holds_the_memory(name, tmp_path):
    method = OWN[name]
    run(tmp_path / "run", method, updates=12)
    memory = load_tree(tmp_path / "run" / "checkpoint.safetensors")["state"]["memory"]
    stages = {"momentum": "server_optimizer", "cache": "buffer", "gate": "gates.Quota"}
    assert memory[stages.get(name.split()[0], name)]


@every_own
def test_own_parts_run_on_flower_and_a_replay_gives_the_same_model(name, tmp_path):
    method, task = OWN[name], make_task(sizes=(12, 20, 28))
    model = task.build_model(0)
    grid = LocalGrid({100 + k: honest(task, k) for k in range(3)}, pulls={100: 1, 101: 2, 102: 4})
    policy = Policy(poll_seconds=0.001, meet_seconds=0.001)
    server = AsyncServer(model, method, training=TRAINING, policy=policy)
    result = server.start(grid, array_record(model.state_dict()), 16, out=tmp_path / "run")
    trace = list(read_trace(tmp_path / "run" / "trace.jsonl"))
    again = simulate(task, method, training=TRAINING, replay=trace)
    for key, tensor in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(tensor, again.model.state_dict()[key], rtol=1e-6, atol=1e-7)


def test_what_is_sent_to_the_server_is_smaller(tmp_path):
    """On Flower's wire and in a worker's reply: the arrays themselves."""
    task, sizes = make_task(sizes=(12, 20)), []

    def weighed(partition):
        handle = honest(task, partition)

        def answer(message: Message) -> Message:
            reply = handle(message)
            if message.metadata.message_type == "train":
                arrays = reply.content.array_records["asyncmanifold"]
                sizes.append(sum(array.numpy().nbytes for array in arrays.values()))
            return reply

        return answer

    model = task.build_model(0)
    for outgoing in ((), (Clip(),), (Bytes(),)):
        server = AsyncServer(
            model, replace(CURVE, outgoing=outgoing), training=TRAINING, policy=Policy(poll_seconds=0.001)
        )
        server.start(LocalGrid({1: weighed(0), 2: weighed(1)}), array_record(model.state_dict()), 2)
    dense, clip, int8 = sizes[0], sizes[2], sizes[-1]
    size = FlatModel(task.build_model(0)).size
    assert dense - clip == 2 * size * 2
    assert dense - int8 == 2 * size * 3 - 4


def test_nodes_cannot_be_told_of_a_part_without_a_name():
    @dataclass(frozen=True)
    class Nameless(Outgoing):
        pass

    with pytest.raises(InputError, match="Nameless has no name that a message could carry"):
        AsyncServer(make_task().build_model(0), replace(SGD, outgoing=(Nameless(),)))


def test_a_part_with_a_name_is_known_to_configurations():
    config = load_config("digits", "asyncsgd", settings={"outgoing": '[{name = "clip", clip_norm = 0.3}]'})
    assert config.method.outgoing == (Clip(0.3),)
    with pytest.raises(InputError, match=r"outgoing\[0\] has no part 'nothing': allowed are .*clip"):
        load_config("digits", "asyncsgd", settings={"outgoing": "nothing"})


# --- each stage by hand -------------------------------------------------------------------------------


def steps_of(method, offsets, clients=None, space=None):
    """Return the model after each of several fresh one-number updates."""
    state, found = ServerState(torch.zeros(1)), []
    for place, offset in enumerate(offsets):
        client = 0 if clients is None else clients[place]
        update = Update(client, state.version, torch.tensor([[offset]]))
        state, _ = absorb(method, state, update, base=state.theta, weight=1.0)
        found.append(pytest.approx(state.theta.item()))
    return found


def test_momentum_by_hand():
    """Steps 1, 1, −2 with decay ½: velocities 1, 1.5, −1.25."""
    assert steps_of(replace(SGD, server_optimizer=Momentum(0.5)), [1.0, 1.0, -2.0]) == [1.0, 2.5, 1.25]


def test_momentum_0_is_no_optimiser():
    offsets = [1.0, -0.5, 0.25, 3.0]
    assert steps_of(replace(SGD, server_optimizer=Momentum(0.0)), offsets) == steps_of(SGD, offsets)


def test_momentum_acts_on_what_a_buffer_gathered():
    """A buffer of two: sums 3 and 1, velocities 3 and 2.5."""
    method = replace(METHODS["fedbuff"], buffer=replace(METHODS["fedbuff"].buffer, buffer_size=2))
    method = replace(method, server_optimizer=Momentum(0.5))
    assert steps_of(method, [1.0, 2.0, -1.0, 2.0]) == [0.0, 3.0, 3.0, 5.5]


def test_a_cache_by_hand():
    """Two clients: u = 1/2, then + 4/2, then + (3 − 1)/2."""
    method = replace(SGD, buffer=CachedMean(2))
    assert steps_of(method, [1.0, 4.0, 3.0], clients=[0, 1, 0]) == [0.5, 3.0, 6.5]


def test_a_quota_by_client():
    method = replace(SGD, gates=(Quota(1),))
    state, _ = absorb(
        method, ServerState(torch.zeros(1)), Update(3, 0, torch.ones(1, 1)), base=torch.zeros(1), weight=1.0
    )
    with pytest.raises(Rejected, match="client 3 has had its 1"):
        absorb(method, state, Update(3, 1, torch.ones(1, 1)), base=state.theta, weight=1.0)
    after, _ = absorb(method, state, Update(4, 1, torch.ones(1, 1)), base=state.theta, weight=1.0)
    assert after.memory["gates.Quota"] == {"taken": {3: 1, 4: 1}}
    assert state.memory["gates.Quota"] == {"taken": {3: 1}}


@pytest.mark.parametrize("name", ["asyncsgd", "fedasync", "fedgs", "dcasgd", "asyncbezier", "asyncbezier-ed"])
def test_a_clipped_update_is_a_shorter_update(name):
    """Clipping at the gate does what sending offsets of that length does."""
    random = torch.Generator().manual_seed(2)
    plain = replace(METHODS[name], global_lr=0.3)
    offsets = torch.randn(plain.embedding.points, 50, generator=random)
    theta, base = torch.randn(50, generator=random), torch.randn(50, generator=random)
    state = ServerState(theta, version=7, updates=20)
    factor = 2.0 / offsets.norm(dim=1).max().item()
    clipped, step = absorb(
        replace(plain, gates=(NormBound(2.0, clips=True),)),
        state,
        Update(0, 5, offsets),
        base=base,
        weight=0.4,
    )
    short, other = absorb(plain, state, Update(0, 5, offsets * factor), base=base, weight=0.4)
    torch.testing.assert_close(clipped.theta, short.theta)
    assert step.end_norm == pytest.approx(other.end_norm, rel=1e-5)
    assert step.update_norm == pytest.approx(offsets[-1].norm().item(), rel=1e-5)  # as received


def test_on_a_curved_space_memories_are_carried_along():
    """A velocity stays a tangent vector of the model that it belongs to, and keeps its length."""
    geoopt = pytest.importorskip("geoopt")
    from asyncmanifold.geometry.maps import maps_of

    space = Space([Piece(0, 3, (3,), maps_of(geoopt.Sphere(), torch.tensor([1.0, 0.0, 0.0])))])
    for method in (
        replace(SGD, server_optimizer=Momentum(0.5)),
        replace(SGD, buffer=CachedMean(2), server_optimizer=Momentum(0.5)),
    ):
        state, made = ServerState(torch.tensor([1.0, 0.0, 0.0])), []
        for client in (0, 1, 0, 1):
            offset = space.project(state.theta, torch.tensor([0.1, 0.2, 0.3]))
            before = state
            state, _ = absorb(
                method,
                state,
                Update(client, state.version, offset[None]),
                base=state.theta,
                weight=1.0,
                space=space,
            )
            velocity = state.memory["server_optimizer"]["velocity"]
            assert abs(float(velocity @ state.theta)) < 1e-6
            way = space.log(before.theta, state.theta)  # the velocity before it was carried along
            assert velocity.norm().item() == pytest.approx(way.norm().item(), rel=1e-4)
            made.append(state.theta)
            for entry in state.memory.get("buffer", {}).get("last", {}).values():
                assert abs(float(entry @ state.theta)) < 1e-6


# --- what leaves a client -----------------------------------------------------------------------------


def make_job(client=0, number=0):
    return Job(number, client, 0, torch.zeros(4))


def test_outgoing_parts_have_random_numbers_of_their_own():
    def sent(parts, client=0, number=0, seed=1):
        update = Update(client, 0, torch.zeros(1, 4))
        return pack_update(update, make_job(client, number), parts, seed).tensors["offsets"]

    first = sent((Noise(1.0),))
    assert torch.equal(first, sent((Noise(1.0),)))
    for other in (sent((Noise(1.0),), client=1), sent((Noise(1.0),), number=1), sent((Noise(1.0),), seed=2)):
        assert not torch.equal(first, other)
    twice = sent((Noise(1.0), Noise(1.0)))
    assert not torch.allclose(twice, 2.0 * first)  # the second draws other numbers


def test_parts_are_undone_in_the_reverse_order():
    update = Update(0, 0, torch.tensor([[0.5, -1.0, 0.25, 0.0]]), loss=0.3, seconds=0.1)
    parts = (Clip(10.0), Bytes())
    parcel = pack_update(update, make_job(), parts, seed=0)
    assert set(parcel.tensors) == {"bytes", "scale", "statistics.floats", "statistics.integers"}
    assert parcel.size == 4 + 2
    received = unpack_update(parcel, make_job(client=5), parts)
    assert torch.allclose(received.offsets, update.offsets, atol=0.01)
    assert (received.client, received.loss, received.seconds) == (5, 0.3, 0.1)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"bytes": torch.zeros(1, 4).char()},
        {"bytes": torch.zeros(1), "scale": torch.zeros(2, 9)},
        {"offsets": torch.zeros(1, 4)},
    ],
)
def test_a_parcel_that_cannot_be_undone_is_rejected(tensors: Any):
    with pytest.raises(Rejected, match="malformed reply"):
        unpack_update(Parcel(tensors), make_job(), (Bytes(),))


# --- who is sent the next job -------------------------------------------------------------------------


def test_a_selection_is_kept_in_the_simulator_and_on_flower(tmp_path):
    task = make_task(sizes=(20,) * 6)
    method = replace(SGD, selection=RoundRobin())
    schedule = replace(EVENTFUL, concurrency=1, drop_probability=0.0, late_fraction=0.0, leave_fraction=0.0)
    result = simulate(task, method, training=TRAINING, schedule=schedule, run=make_run(14))
    assert [record["client"] for record in of_kind(result.trace, "update")] == [k % 6 for k in range(14)]
    grid = LocalGrid({100 + k: honest(task, k) for k in range(6)})
    model = task.build_model(0)
    policy = Policy(poll_seconds=0.001, concurrency=1)
    server = AsyncServer(model, method, training=TRAINING, policy=policy)
    server.start(grid, array_record(model.state_dict()), 14, out=tmp_path / "run")
    assert [record["client"] for record in of_kind(trace_of(tmp_path / "run"), "update")] == [
        k % 6 for k in range(14)
    ]


# --- an embedding that is no Bézier curve -------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.37, 0.8, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_along_a_polyline_has_the_chord_that_is_asked_for(fraction, seed):
    offsets = np.random.default_rng(seed).standard_normal((2, 6))
    t = Polyline().parameter(offsets @ offsets.T, fraction)
    whole = np.linalg.norm(offsets[-1])
    assert np.linalg.norm(np.array(Polyline().weights(t)) @ offsets) == pytest.approx(
        fraction * whole, rel=1e-5
    )
    earlier = [
        np.linalg.norm(np.array(Polyline().weights(s)) @ offsets) for s in np.linspace(0.0, t, 200)[:-1]
    ]
    assert all(length <= fraction * whole * (1.0 + 1e-4) for length in earlier)


def test_a_polyline_whose_knot_is_on_the_chord_is_a_straight_line():
    """OrthoDC projects both control points alike, so the curve stays straight at the server too."""
    random = torch.Generator().manual_seed(4)
    theta, base, end = (torch.randn(9, generator=random) for _ in range(3))
    state = ServerState(theta, version=3)
    method = replace(METHODS["fedortho"], global_lr=0.4)
    straight, _ = absorb(method, state, Update(0, 1, end[None]), base=base, weight=0.5)
    bent = replace(method, embedding=Polyline())
    along, _ = absorb(bent, state, Update(0, 1, torch.stack([0.5 * end, end])), base=base, weight=0.5)
    torch.testing.assert_close(along.theta, straight.theta, rtol=1e-5, atol=1e-6)


def test_slopes_of_any_embedding_are_those_of_its_weights():
    class Numerical(Bezier):
        slopes = Polyline.__mro__[1].slopes  # the general way, by differences

    for t in (0.0, 0.3, 0.9, 1.0):
        assert Numerical(3).slopes(t) == pytest.approx(Bezier(3).slopes(t), abs=1e-5)
    assert Polyline().slopes(0.2) == pytest.approx([2.0, 0.0])
    assert Polyline().slopes(0.7) == pytest.approx([-2.0, 2.0])


def test_a_polyline_is_learned_on_a_manifold():
    geoopt = pytest.importorskip("geoopt")
    assert geoopt
    config = load_config("sphere", "asyncbezier", settings={"updates": "12", "clients": "5"})
    method = replace(config.method, embedding=Polyline())
    result = simulate(
        config.build_task(), method, training=config.training, schedule=config.schedule, run=config.run
    )
    scores = [record["accuracy"] for record in of_kind(result.trace, "evaluation")]
    assert scores[-1] > scores[0] + 0.1


def test_an_embedding_must_say_what_it_is():
    from asyncmanifold import Embedding

    for ask in (lambda e: e.points, lambda e: e.weights(0.5), lambda e: e.at([], 0.5, None)):
        with pytest.raises(TypeError, match="Embedding"):
            ask(Embedding())
    assert LocalTraining().curve_epochs == 2
    assert Method(embedding=Polyline()).embedding.is_curve
