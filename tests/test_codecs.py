"""Codecs: what they lose, by hand and against slow references; their sizes to the byte; and hostile bytes."""

from dataclasses import dataclass, replace
from math import floor

import numpy as np
import pytest
import torch
from torch import nn

from asyncmanifold import (
    METHODS,
    CurveCodec,
    Disc,
    Float16,
    Float32,
    Gate,
    InputError,
    Int8,
    Job,
    Method,
    Outgoing,
    Parcel,
    Rejected,
    Schedule,
    Task,
    Update,
    absorb,
)
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.flower.arrays import array_record
from asyncmanifold.flower.sizes import SLACK, expected_form, most_reply_bytes
from asyncmanifold.geometry.spaces import space_of
from asyncmanifold.server.outgoing import outline_update, pack_update, unpack_update
from asyncmanifold.server.protocol import ServerState
from asyncmanifold.tasks.prototypes import Prototypes
from asyncmanifold.vectors import FlatModel, Statistics
from grid import LocalGrid, honest
from tiny import CLOCK, TRAINING, make_run, make_task, of_kind, simulated

CODECS = {"float32": Float32(), "fp16": Float16(), "int8": Int8(32), "curve": CurveCodec(32)}
every_codec = pytest.mark.parametrize("name", CODECS)


class Drawn:
    """Random numbers that are known beforehand."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def random(self, shape, dtype):
        return np.resize(np.array(self.numbers, dtype), shape)


def parcel_of(*rows):
    return Parcel({"offsets": torch.tensor(rows, dtype=torch.float32)})


def round_trip(codec, parcel, random=None):
    sent = codec.send(replace(parcel, tensors=dict(parcel.tensors)), random or np.random.default_rng(0))
    return sent, codec.receive(sent).tensors["offsets"]


def test_half_precision_by_hand():
    """The largest is 3 = 0.75 · 2², so the scale is 2²⁻¹⁵; half numbers near 8192 are 8 apart."""
    sent, received = round_trip(Float16(), parcel_of([3.0, 1.0 + 2**-11, 1.0 + 3 * 2**-11, -(2.0**-20)]))
    assert sent.tensors["offsets.scales"].tolist() == [2.0**-13]
    assert sent.tensors["offsets"].tolist() == [[24576.0, 8192.0, 8208.0, -(2.0**-7)]]
    assert received.tolist() == [[3.0, 1.0, 1.0 + 2**-9, -(2.0**-20)]]


def test_each_control_point_has_its_own_scale():
    sent, received = round_trip(Float16(), parcel_of([1e-6, 2e-6], [5e8, -7e4], [0.0, 0.0]))
    assert sent.tensors["offsets.scales"].tolist() == [2.0 ** (-18 - 15), 2.0 ** (29 - 15), 2.0**-15]
    expected = torch.tensor([[1e-6, 2e-6], [5e8, -7e4], [0.0, 0.0]])
    assert ((received - expected).abs() <= expected.abs() * 2**-11).all()


@pytest.mark.parametrize("size", [3e38, 7e4, 1e-37, 1e-44])
def test_half_precision_neither_overflows_nor_vanishes(size):
    _, received = round_trip(Float16(), parcel_of([size, -size / 3]))
    assert torch.isfinite(received).all()
    assert received[0, 0].item() == pytest.approx(size, rel=2**-11)


def test_eight_bits_by_hand():
    """c = 2.54 / 127 = 0.02, and 0.05 is 2.5 steps: 3 if the number drawn is below a half, else 2."""
    parcel = parcel_of([2.54, 0.05, -0.05, 0.06])
    sent, received = round_trip(Int8(4), parcel, Drawn(0.49))
    assert sent.tensors["offsets"].tolist() == [[127, 3, -2, 3]]
    assert sent.tensors["offsets.scales"][0].tolist() == pytest.approx([0.02])
    assert received[0].tolist() == pytest.approx([2.54, 0.06, -0.04, 0.06])
    sent, received = round_trip(Int8(4), parcel, Drawn(0.51))
    assert sent.tensors["offsets"].tolist()[0][:3] == [127, 2, -3]


def slow_steps(row, block, drawn):
    """Return the steps and scales, one number after the other."""
    steps, scales = [], []
    for start in range(0, len(row), block):
        part = [np.float32(value) for value in row[start : start + block]]
        scale = np.float32(max(abs(value) for value in part) / np.float32(127))
        scales.append(scale)
        for place, value in enumerate(part):
            share = np.float32(value / (scale or np.float32(1)))
            below = floor(share)
            up = drawn[start + place] < np.float32(share - np.float32(below))
            steps.append(min(127, max(-127, below + int(up))))
    return steps, scales


@pytest.mark.parametrize(("size", "block"), [(1, 1), (96, 32), (100, 32), (31, 32), (33, 32)])
def test_eight_bits_against_a_slow_reference(size, block):
    random = np.random.default_rng(size)
    rows = random.standard_normal((2, size)).astype(np.float32) * np.float32(0.01)
    rows[0, : size // 3] = 0.0
    padded = -(-size // block) * block
    drawn = random.random((2, padded), dtype=np.float32)
    sent, _ = round_trip(Int8(block), parcel_of(*rows.tolist()), Drawn(*drawn.ravel()))
    for place in range(2):
        steps, scales = slow_steps(rows[place], block, drawn[place])
        assert sent.tensors["offsets"][place].tolist() == steps
        assert sent.tensors["offsets.scales"][place].tolist() == scales


def test_rounding_at_random_has_no_direction():
    """Every number 4,000 times: errors in units of their own standard deviation are standard normal."""
    random = np.random.default_rng(1)
    row = random.standard_normal(256).astype(np.float32)
    repeats = 4000
    offsets = torch.from_numpy(row).repeat(repeats, 1)
    sent, received = round_trip(Int8(256), Parcel({"offsets": offsets}), random)
    scale = sent.tensors["offsets.scales"][0].item()
    share = row.astype(np.float64) / scale % 1.0
    known = np.sqrt(share * (1.0 - share)) > 0.05  # the largest number itself is never rounded
    errors = (received.double().mean(dim=0).numpy() - row)[known]
    units = errors / (scale * np.sqrt(share * (1.0 - share))[known] / np.sqrt(repeats))
    assert known.sum() > 240
    assert np.abs(units).max() < 4.5
    assert abs(units.mean()) < 4 / np.sqrt(len(units))
    assert np.mean(units**2) == pytest.approx(1.0, abs=4 * np.sqrt(2 / len(units)))
    assert (received - offsets).abs().max() < scale * (1 + 1e-5)


def test_a_curve_by_hand():
    """(1, 2.5) is nearest to the chord to (2, 4) at a = 12/20, and deviates from it by (−0.2, 0.1)."""
    sent, received = round_trip(CurveCodec(2), parcel_of([1.0, 2.5], [2.0, 4.0]), Drawn(0.4))
    assert sent.tensors["offsets.places"].tolist() == pytest.approx([0.6])
    assert sent.tensors["offsets.end"].tolist() == [[2.0**13, 2.0**14]]
    assert sent.tensors["offsets.end_scale"].tolist() == [2.0**-12]
    assert sent.tensors["offsets.scales"].tolist()[0] == pytest.approx([0.2 / 127])
    assert sent.tensors["offsets.deviations"].tolist() == [[-127, 64]]  # 63.5 steps, and 0.4 < 0.5
    assert received[1].tolist() == [2.0, 4.0]
    assert received[0].tolist() == pytest.approx([1.0, 2.4 + 64 * 0.2 / 127])


def test_a_curve_near_its_chord_loses_less_than_in_eight_bits():
    random = torch.Generator().manual_seed(0)
    end = torch.randn(1000, generator=random)
    offsets = torch.stack([0.5 * end + 0.05 * torch.randn(1000, generator=random), end])
    _, received = round_trip(CurveCodec(), Parcel({"offsets": offsets}))
    _, coarse = round_trip(Int8(), Parcel({"offsets": offsets}))
    assert ((received[1] - end).abs() <= 2**-11 * end.abs()).all()
    assert (received[0] - offsets[0]).norm() < 0.25 * (coarse[0] - offsets[0]).norm()


def test_a_point_is_sent_as_in_half_precision_and_a_surface_by_its_end():
    parcel = Parcel({"offsets": torch.randn(1, 50)})
    assert torch.equal(round_trip(CurveCodec(), parcel)[1], round_trip(Float16(), parcel)[1])
    many = Parcel({"offsets": torch.randn(Disc(2).points, 50)})
    sent, received = round_trip(CurveCodec(), many)
    assert (received - many.tensors["offsets"]).abs().max() < 2 * sent.tensors["offsets.scales"].max()


def test_a_curve_whose_end_did_not_move():
    _, received = round_trip(CurveCodec(), parcel_of([0.5, -0.25], [0.0, 0.0]), Drawn(0.5))
    assert received.tolist() == [[0.5, pytest.approx(-0.25, abs=0.005)], [0.0, 0.0]]


@pytest.mark.parametrize("points", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 31, 32, 33])
def test_sizes_to_the_byte(points, size):
    statistics = Statistics(torch.zeros(6), torch.zeros(2, dtype=torch.int64))
    rest, scales = 6 * 4 + 2 * 8, 4 * -(-size // 32)
    expected = {
        "float32": 4 * points * size,
        "fp16": 2 * points * size + 4 * points,
        "int8": points * size + points * scales,
        "curve": 2 * size + 4 + (points - 1) * (size + scales + 4),
    }
    update = Update(0, 0, torch.randn(points, size), statistics)
    for name, codec in CODECS.items():
        job = Job(0, 0, 0, torch.zeros(size))
        sent = pack_update(replace(update, offsets=update.offsets.clone()), job, (codec,), 0)
        stated = outline_update(points, job.theta, statistics, (codec,))
        assert sent.size == stated.size == expected[name] + rest
        forms = [{key: (t.shape, t.dtype) for key, t in p.tensors.items()} for p in (sent, stated)]
        assert forms[0] == forms[1]
        assert torch.equal(unpack_update(sent, job, (codec,)).statistics.floats, statistics.floats)


def test_the_size_of_a_part_that_does_not_say_is_unknown():
    class Silent(Outgoing):
        pass

    assert outline_update(1, torch.zeros(3), Statistics.none(), (Silent(),)) is None
    assert outline_update(1, torch.zeros(3), Statistics.none(), (Silent(), Int8())) is None


HOSTILE = {
    "another type": lambda t: t.double() if t.is_floating_point() else t.int(),
    "another shape": lambda t: torch.cat([t, t]),
    "one less": lambda t: t[..., :-1],
    "a number": lambda t: t.reshape(-1)[0],
}


@every_codec
@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_tensors_are_refused_in_one_line(name, attack):
    method = Method(embedding=METHODS["asyncbezier"].embedding, outgoing=(CODECS[name],))
    sent = CODECS[name].send(Parcel({"offsets": torch.randn(2, 70)}), np.random.default_rng(0))
    state = ServerState(torch.zeros(70))
    for key in sent.tensors:
        bad = {**sent.tensors, key: HOSTILE[attack](sent.tensors[key])}
        with pytest.raises(Rejected) as refused:
            absorbed(method, state, bad)
        assert "\n" not in str(refused.value)
        with pytest.raises(Rejected, match="malformed reply"):
            absorbed(method, state, {k: v for k, v in sent.tensors.items() if k != key})


def absorbed(method, state, tensors):
    job = Job(0, 0, 0, state.theta)
    parcel = Parcel({**tensors, **Statistics.none().named("statistics")})
    update = unpack_update(parcel, job, method.outgoing)
    return absorb(method, state, update, base=state.theta, weight=1.0)


@every_codec
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_numbers_that_are_not_finite_are_refused(name, value):
    """As scales that a client forged, and as offsets of a client whose training failed."""
    method = Method(embedding=METHODS["asyncbezier"].embedding, outgoing=(CODECS[name],))
    state = ServerState(torch.zeros(70))
    offsets = torch.randn(2, 70)
    sent = CODECS[name].send(Parcel({"offsets": offsets.clone()}), np.random.default_rng(0))
    for key, tensor in sent.tensors.items():
        if tensor.dtype == torch.float32:
            with pytest.raises(Rejected, match=r"not all finite|non-finite"):
                absorbed(method, state, {**sent.tensors, key: torch.full_like(tensor, value)})
    offsets[1, 3] = value
    sent = CODECS[name].send(Parcel({"offsets": offsets}), np.random.default_rng(0))
    with pytest.raises(Rejected, match=r"not all finite|non-finite"):
        absorbed(method, state, sent.tensors)


def test_impossible_settings_are_refused():
    with pytest.raises(InputError, match=r"several codecs \(Float16, Int8\), must have one"):
        Method(outgoing=("fp16", "int8"))
    for codec in (Int8, CurveCodec):
        with pytest.raises(InputError, match=r"block_size=0\) must be at least 1"):
            codec(block_size=0)


# --- the same everywhere --------------------------------------------------------------------------------


@every_codec
def test_batched_jobs_are_sent_like_others(name):
    method = replace(METHODS["asyncbezier"], outgoing=(CODECS[name],))
    made, settings = make_task(), {"training": TRAINING, "schedule": CLOCK, "run": make_run(12)}
    task = Task(nn.Linear(6, 3), made.loss, made.clients, made.test)  # BatchNorm cannot be batched
    alone = simulated(task, method, **settings)
    batched = simulated(task, method, executor="batched", workers=4, **settings)
    losses = [[r["loss"] for r in of_kind(result.trace, "update")] for result in (alone, batched)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


@every_codec
def test_a_flower_server_expects_what_its_codec_sends(name):
    """Its limit is what an update takes and some slack; an array of another name is refused."""
    method = replace(METHODS["asyncbezier"], outgoing=(CODECS[name],))
    task = make_task(sizes=(12, 20))
    model = task.build_model(0)
    flat = FlatModel(task.build_model(0))
    state = ServerState(flat.vector, flat.read_statistics())
    expected = expected_form(method, state)
    assert most_reply_bytes(method, state) == expected.size + SLACK
    replies = []

    def overheard(partition, tamper):
        handle = honest(task, partition)

        def answer(message):
            reply = handle(message)
            if message.metadata.message_type == "train":
                arrays = reply.content.array_records["asyncmanifold"]
                replies.append({key: array.numpy() for key, array in arrays.items()})
                if tamper:
                    arrays["more"] = next(iter(arrays.values()))
            return reply

        return answer

    policy = Policy(poll_seconds=0.001, meet_seconds=0.001)
    server = AsyncServer(model, method, training=TRAINING, policy=policy, bounds=())
    grid = LocalGrid({1: overheard(0, tamper=False), 2: overheard(1, tamper=True)})
    result = server.start(grid, array_record(model.state_dict()), 4)
    assert len(result.train_metrics_clientapp) == 4
    for arrays in replies:
        assert {key: array.shape for key, array in arrays.items()} == {
            key: tuple(tensor.shape) for key, tensor in expected.tensors.items()
        }
        assert sum(array.nbytes for array in arrays.values()) == expected.size


@dataclass(frozen=True)
class Tangential(Gate):
    """Rejects offsets on spheres that are not tangent at the current model, which is their base."""

    def admit(self, arrival, memory):
        space = space_of(Prototypes(clients=3).build(0).build_model(0).parameters())
        for offset in arrival.update.offsets:
            across = offset - space.project(arrival.theta, offset)
            if across.norm() > 1e-5 * offset.norm():
                raise Rejected(f"{across.norm()} across the space, of {offset.norm()}")
        return 1.0, memory


@pytest.mark.parametrize("name", ["fp16", "int8", "curve"])
def test_rounding_does_not_leave_a_curved_space(name):
    """On the sphere, offsets are tangent at the base model again once they are received."""
    pytest.importorskip("geoopt")
    method = replace(METHODS["asyncbezier"], outgoing=(CODECS[name],), gates=(Tangential(),))
    task, one_by_one = Prototypes(clients=3).build(0), Schedule("clock", concurrency=1)
    run = make_run(4, evaluate_every=4)
    result = simulated(task, method, training=TRAINING, schedule=one_by_one, run=run)
    assert not of_kind(result.trace, "rejected")
