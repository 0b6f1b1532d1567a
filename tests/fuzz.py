"""Throw mutated replies at the server: nothing may crash it, or be absorbed although it is malformed.

``python tests/fuzz.py --replies 10000`` (``make fuzz``) runs every target in ``TARGETS`` and replies in their
wire form, and ``make test`` a few hundred of each. A target takes a number of replies and a seed, and returns
what became of them; it raises if anything is absorbed that should not be, or if the state is not finite
afterwards.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncmanifold import (
    METHODS,
    Averaging,
    CurveCodec,
    Float16,
    Int8,
    LocalTraining,
    Method,
    NormBound,
    Parcel,
    Run,
)
from asyncmanifold.server.buffer import Buffer
from asyncmanifold.server.peers import PEER_GATES
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import MemoryTrace
from asyncmanifold.vectors import FlatModel
from tiny import make_model

Random = np.random.Generator
Mutator = Callable[[Parcel, Random], Parcel]
TARGETS: dict[str, Callable[[int, int], Counter[str]]] = {}
"""What replies are thrown at, by name."""
MUTATORS: list[Mutator] = []
"""What may happen to a parcel."""
VALUES = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e18, -1e18, 1e30, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan)
TYPES = (torch.float64, torch.float16, torch.int64, torch.int8, torch.bool, torch.complex64)
METHODS_TRIED = {
    **METHODS,
    "bounded": replace(METHODS["asyncbezier"], gates=PEER_GATES),
    "clipped": replace(METHODS["fedasync"], gates=(NormBound(1.0, clips=True),)),
    **{codec: replace(METHODS["asyncbezier"], outgoing=codec) for codec in ("fp16", "int8", "curve")},
    "averaged": Method(averaging=Averaging(2), buffer=Buffer(3)),
}


SENT: dict[Any, Callable[[int, int, int], dict[str, Any]]] = {
    (): lambda n, p, _: {"offsets": ((n, p), torch.float32)},
    (Float16(),): lambda n, p, _: {
        "offsets": ((n, p), torch.float16),
        "offsets.scales": ((n,), torch.float32),
    },
    (Int8(),): lambda n, p, blocks: {
        "offsets": ((n, p), torch.int8),
        "offsets.scales": ((n, blocks), torch.float32),
    },
    (CurveCodec(),): lambda n, p, blocks: {
        "offsets.end": ((1, p), torch.float16),
        "offsets.end_scale": ((1,), torch.float32),
        "offsets.places": ((n - 1,), torch.float32),
        "offsets.deviations": ((n - 1, p), torch.int8),
        "offsets.scales": ((n - 1, blocks), torch.float32),
    },
}
"""The tensors that stand for n control points of p numbers in some blocks, by the outgoing parts."""


LONGEST_SECONDS = 60.0
"""What takes longer than this for one reply hangs, on any machine."""


@contextmanager
def time_limit(seconds: float = LONGEST_SECONDS) -> Iterator[None]:
    """Raise if the block hangs."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"a reply took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def mutator(function: Mutator) -> Mutator:
    """Enter a mutator."""
    MUTATORS.append(function)
    return function


def _pick(parcel: Parcel, random: Random) -> str:
    return str(random.choice(sorted(parcel.tensors)))


def _with(parcel: Parcel, name: str, tensor: Tensor) -> Parcel:
    return replace(parcel, tensors={**parcel.tensors, name: tensor})


@mutator
def set_value(parcel: Parcel, random: Random) -> Parcel:
    """One number, or all, of one tensor becomes an extreme one."""
    name = _pick(parcel, random)
    tensor, value = parcel.tensors[name].clone(), float(random.choice(VALUES))
    if not tensor.numel() or tensor.is_complex():
        return parcel
    if not tensor.is_floating_point():
        value = float(np.clip(np.nan_to_num(value), -(2**62), 2**62))
        tensor = tensor.to(torch.int64)
    place = slice(None) if random.random() < 0.3 else int(random.integers(tensor.numel()))
    tensor.reshape(-1)[place] = value if tensor.is_floating_point() else int(value)
    return _with(parcel, name, tensor)


@mutator
def scale(parcel: Parcel, random: Random) -> Parcel:
    """One tensor is multiplied by a power of ten of either sign."""
    name = _pick(parcel, random)
    factor = float(random.choice([-1.0, 1.0])) * 10.0 ** float(random.integers(-40, 40))
    tensor = parcel.tensors[name]
    return _with(parcel, name, tensor * factor if tensor.is_floating_point() else -tensor.to(torch.int64))


@mutator
def change_type(parcel: Parcel, random: Random) -> Parcel:
    """One tensor is of another type."""
    name = _pick(parcel, random)
    kind = TYPES[int(random.integers(len(TYPES)))]
    tensor = parcel.tensors[name]
    plain = tensor.real if tensor.is_complex() else tensor
    return _with(parcel, name, torch.nan_to_num(plain.to(torch.float32)).to(kind))


@mutator
def change_shape(parcel: Parcel, random: Random) -> Parcel:
    """One tensor has another shape."""
    name = _pick(parcel, random)
    tensor = parcel.tensors[name]
    flat = tensor.reshape(-1)
    shapes = [
        flat,
        flat[:-1],
        flat[:0],
        flat.repeat(2),
        tensor[None],
        tensor.t() if tensor.dim() == 2 else flat,
    ]
    return _with(parcel, name, shapes[int(random.integers(len(shapes)))])


@mutator
def drop_tensor(parcel: Parcel, random: Random) -> Parcel:
    """One tensor is missing."""
    name = _pick(parcel, random)
    return replace(parcel, tensors={n: t for n, t in parcel.tensors.items() if n != name})


@mutator
def swap_tensors(parcel: Parcel, random: Random) -> Parcel:
    """Two tensors have each other's names."""
    one, other = _pick(parcel, random), _pick(parcel, random)
    return _with(_with(parcel, one, parcel.tensors[other]), other, parcel.tensors[one])


@mutator
def change_report(parcel: Parcel, random: Random) -> Parcel:
    """Loss or seconds are no numbers that training can have."""
    value: Any = random.choice(np.array([*VALUES, None, "x", True, [1.0]], dtype=object))
    return replace(parcel, **{str(random.choice(["loss", "seconds"])): value})


def honest_parcel(session: Session, random: Random) -> Parcel:
    """What a client might send: small offsets, statistics near the model's."""
    generator = torch.Generator().manual_seed(int(random.integers(2**31)))
    points, size = session.method.embedding.points, session.model.size
    floats, integers = session.state.statistics
    noise = 0.05 * torch.rand(floats.shape, generator=generator)
    parcel = Parcel(
        {
            "offsets": 0.01 * (1.0 + torch.randn(points, size, generator=generator)),
            "statistics.floats": floats + noise,
            "statistics.integers": integers + 3,
        },
        loss=1.0,
        seconds=0.1,
    )
    for part in session.method.outgoing:
        parcel = part.send(parcel, random)
    return parcel


def is_plausible(session: Session, parcel: Parcel) -> bool:
    """An independent opinion on what may be absorbed."""
    floats, integers = session.state.statistics
    points, size = session.method.embedding.points, session.model.size
    wanted = {
        **SENT.get(session.method.outgoing, SENT[()])(points, size, -(-size // 256)),
        "statistics.floats": (tuple(floats.shape), torch.float32),
        "statistics.integers": (tuple(integers.shape), torch.int64),
    }
    for name, (shape, kind) in wanted.items():
        tensor = parcel.tensors.get(name)
        if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != kind:
            return False
        if not bool(torch.isfinite(tensor).all()):
            return False
    if bool((parcel.tensors["statistics.floats"][session.model.variances] < 0).any()):
        return False
    reports = (parcel.loss, parcel.seconds)
    return all(isinstance(r, float) and abs(r) < 1e30 for r in reports) and parcel.seconds >= 0


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """Yield every tensor, and every number as one, in nested dictionaries and lists."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, float):
        yield torch.tensor(tree)
    elif isinstance(tree, Mapping):
        for entry in tree.values():
            yield from tensors_of(entry)
    elif isinstance(tree, list | tuple):
        for entry in tree:
            yield from tensors_of(entry)


def open_session(method: Method) -> Session:
    torch.manual_seed(0)
    training, run = LocalTraining(), Run(updates=10**9)
    return Session(method, training, run, FlatModel(make_model()), MemoryTrace(), lambda updates, model: {})


def throw_at_session(replies: int, seed: int) -> Counter[str]:
    """Mutated parcels, beside honest ones, through ``Session.accept``, with every method."""
    random = np.random.default_rng(seed)
    sessions = {name: open_session(method) for name, method in METHODS_TRIED.items()}
    outcomes: Counter[str] = Counter()
    for number in range(replies):
        name = list(sessions)[number % len(sessions)]
        session = sessions[name]
        honest = session.job(client=int(random.integers(5)))
        hostile = session.job(client=5)
        assert session.accept(honest, honest_parcel(session, random), 0.2)["kind"] == "update"
        parcel = honest_parcel(session, random)
        for _ in range(int(random.integers(1, 4))):
            if parcel.tensors:
                parcel = MUTATORS[int(random.integers(len(MUTATORS)))](parcel, random)
        plausible = is_plausible(session, parcel)
        with time_limit():
            record = session.accept(hostile, parcel, float(random.random()))
        json.dumps(record, allow_nan=False)
        outcomes[record["kind"]] += 1
        assert plausible or record["kind"] == "rejected", (name, record)
        for tensor in tensors_of(vars(session.state)):
            assert bool(torch.isfinite(tensor).all()), (name, record)
    return outcomes


TARGETS["session"] = throw_at_session


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replies", type=int, default=10_000, help="for each target (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations (default: 0)")
    options = parser.parse_args()
    from wire import throw  # replies as bytes, which tests/test_wire.py tries a few of

    for name, target in {**TARGETS, "wire": throw}.items():
        outcomes = target(options.replies, options.seed)
        print(f"{name}: {options.replies} replies, {dict(outcomes)}, no crash, nothing malformed absorbed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
