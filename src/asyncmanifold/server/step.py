"""One server update, stage by stage: gates, correction, penalty, buffer, server optimizer, averaging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.errors import InputError
from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.spaces import FLAT, Space
from asyncmanifold.server.corrections import cosines
from asyncmanifold.server.gates import Admission
from asyncmanifold.server.memories import Memories
from asyncmanifold.server.methods import Method
from asyncmanifold.server.moves import Move, TangentMove
from asyncmanifold.server.protocol import UNKNOWN, Rejected, ServerState, Situation, Update
from asyncmanifold.server.stages import Arrival, Memory
from asyncmanifold.server.statistics import (
    gather_statistics,
    mix_statistics,
    plausible_statistics,
    shortened,
)
from asyncmanifold.server.tangents import Tangents, tangents_at
from asyncmanifold.vectors import Statistics

CANCELLED = 1e-4
"""If a correction leaves less than this of an offset's squared length, the inner products have lost most of
their digits, and what is left is computed itself."""


@dataclass(frozen=True)
class Step:
    """The effect of one accepted update: the numbers of its trace record."""

    version: int
    """The version after the update."""
    base_version: int
    staleness: int
    weight: float
    drift_norm: float
    """‖d‖."""
    update_norm: float
    """‖v_n‖ as received."""
    end_norm: float
    """‖v'_n‖ after correction."""
    cosines: list[float]
    """cos(v_k, d) as received."""
    projected: list[bool]
    penalty: float
    """S."""
    fraction: float
    """s = min(1, S · w · η_g · staleness factor), without η_g if the server optimizer applies it."""
    t: float
    """The smallest t* with ‖γ(t*) − Θ‖ = s ‖v'_n‖."""
    step_norm: float
    """The length of this update's own step, which a buffer may apply later."""


def absorb(
    method: Method,
    state: ServerState,
    update: Update,
    *,
    base: Tensor | None,
    weight: float,
    situation: Situation = UNKNOWN,
    out: Tensor | None = None,
    space: Space = FLAT,
    variances: Tensor | None = None,
    trusted: Callable[[], Tensor] | None = None,
) -> tuple[ServerState, Step]:
    """Return the state after ``update`` and the step that was made, or raise ``Rejected``; modify no input.

    Arguments:
        method: the method, whose parts every update goes through.
        state: the server's state before the update.
        update: what a client sent.
        base: the model of the version that the client started from; None if the server does not have it.
        weight: the client's share of all examples.
        situation: the number of clients, and when the job was sent and came back; some parts use them.
        out: an unused vector of the model's size, which the new model may be written to: touching fresh
            memory pages costs as much as the arithmetic of an update.
        space: where the model lives; flat unless it has parameters on manifolds.
        variances: which of the floating-point statistics are variances, which cannot be negative.
        trusted: returns the server's own update on trusted data; called if a gate asks for it.

    >>> import torch
    >>> from asyncmanifold import METHODS, ServerState, Update, absorb
    >>> state = ServerState(torch.zeros(2))
    >>> update = Update(client=0, version=0, offsets=torch.tensor([[1.0, 2.0]]))
    >>> state, step = absorb(METHODS["asyncsgd"], state, update, base=state.theta, weight=0.5)
    >>> state.theta, step.fraction
    (tensor([0.5000, 1.0000]), 0.5)
    """
    if not 0.0 <= weight < inf:
        raise InputError(f"absorb(weight={weight}) must be at least 0 and finite")
    base = _check_update(method, state, update, base)
    update = replace(update, statistics=plausible_statistics(update.statistics, state.statistics, variances))
    memories = Memories(method, state)
    arrival, admission, offsets, mixing, curve = _admit_and_correct(
        method, state, update, base, weight, space, memories, situation, trusted
    )
    received = arrival.gram
    end_norm, drift_norm = _length(curve, -1), _length(received, -1)
    penalty = memories.call("penalty", method.penalty.weigh, end_norm, drift_norm, arrival)
    slowing = memories.call("staleness", method.staleness.weigh, arrival)
    rate = 1.0 if method.optimizer_takes_rate else method.rate(state.version)
    fraction = penalty * arrival.weight * rate * slowing * admission.count * method.selection.factor(arrival)
    if method.buffer is None or not method.buffer.is_mean:
        fraction = min(1.0, fraction)
    elif method.buffer.counts_relatively and method.weighting == "examples":
        fraction *= arrival.clients
    t, move, length = offsets.step(method.embedding, mixing, curve, fraction, arrival.staleness)

    statistics = shortened(update.statistics, state.statistics, admission.factor)
    gathered = gather_statistics(state.memory.get("statistics"), statistics, fraction)
    released: Move | None = move
    if method.buffer is not None:
        released = memories.call("buffer", method.buffer.gather, move, arrival)
    if released is None:
        memories.keep("statistics", gathered)
        moved = replace(state, updates=state.updates + 1, memory=memories.kept)
    else:
        moved = _move_model(method, state, memories, released, gathered, space, out, updates=1)
    return moved, Step(
        version=moved.version,
        base_version=update.version,
        staleness=arrival.staleness,
        weight=arrival.weight,
        drift_norm=drift_norm,
        update_norm=_length(received, -2) if space.is_flat else space.norm(base, update.offsets[-1]),
        end_norm=end_norm,
        cosines=cosines(received),
        projected=method.correction.projected(received),
        penalty=penalty,
        fraction=fraction,
        t=t,
        step_norm=length,
    )


def flush(method: Method, state: ServerState, space: Space = FLAT) -> ServerState:
    """Return the state after the steps that a buffer holds; a barrier's steps become their weighted mean."""
    memories = Memories(method, state)
    if method.buffer is None or (held := method.buffer.release(memories.recall("buffer"))) is None:
        return state
    step, scale = held
    memories.keep("buffer", method.buffer.emptied(memories.recall("buffer")))
    move = TangentMove(space, state.theta, step, scale=scale)
    return _move_model(method, state, memories, move, state.memory["statistics"], space)


def corrected_offsets(
    method: Method,
    state: ServerState,
    update: Update,
    base: Tensor,
    trusted: Callable[[], Tensor] | None = None,
) -> Tensor:
    """Return v'_1 … v'_n in flat space: an update's offsets after gates and correction."""
    base = _check_update(method, state, update, base)
    memories = Memories(method, state)
    _, _, offsets, mixing, _ = _admit_and_correct(
        method, state, update, base, 1.0, FLAT, memories, trusted=trusted
    )
    return torch.stack(offsets.combined(mixing))


def _admit_and_correct(
    method: Method,
    state: ServerState,
    update: Update,
    base: Tensor,
    weight: float,
    space: Space,
    memories: Memories,
    situation: Situation = UNKNOWN,
    trusted: Callable[[], Tensor] | None = None,
) -> tuple[Arrival, Admission, Tangents, Floats, Floats]:
    """Pass an update through the gates and correct it.

    Return the arrival, what all gates together admit, the offsets, the corrected ones as combinations of
    (v_1 … v_n, d), and their inner products.
    """
    offsets = tangents_at(space, state.theta, base, update.offsets, method.correction)
    arrival = Arrival(
        update=update,
        staleness=state.staleness(update.version),
        weight=method.share(weight),
        updates=state.updates,
        theta=state.theta,
        statistics=state.statistics,
        measure=lambda: _check_finite(offsets.gram()),
        situation=situation,
        target_ratio=method.target_ratio,
        space=space,
        lift=offsets.at_model,
        train_trusted=trusted,
    )
    admission, admitted, gram = _pass_gates(method, memories, arrival, offsets)
    if method.correction.transforms:
        admitted = memories.call("correction", admitted.transformed, method.correction, arrival)
        gram = _check_finite(admitted.gram())
    mixing = admitted.coefficients(method.correction, gram)
    curve = mixing @ gram @ mixing.T
    if np.any(np.diag(curve) < CANCELLED * np.diag(gram)[:-1]):
        admitted = admitted.replaced(admitted.combined(mixing))
        gram = _check_finite(admitted.gram())
        mixing, curve = np.eye(*mixing.shape), gram[:-1, :-1]
    return arrival, admission, admitted, mixing, curve


def _pass_gates(
    method: Method, memories: Memories, arrival: Arrival, offsets: Tangents
) -> tuple[Admission, Tangents, Floats]:
    """Return what all gates together admit, the offsets that are left, and their inner products with d."""
    factor = count = 1.0
    pending, is_drawn = 1.0, False  # the factors that have not been applied to the offsets
    for stage, gate in method.all_gates.items():
        found = memories.call(stage, gate.admit, arrival)
        admission = found if isinstance(found, Admission) else Admission(found)
        factor, count = factor * admission.factor, count * admission.count
        if admission.centre is None:
            pending *= admission.factor
        elif admission.factor != 1.0:
            rows = torch.lerp(admission.centre, offsets.scaled(pending).at_model(), admission.factor)
            offsets, pending, is_drawn = offsets.replaced(list(rows)), 1.0, True
    gram = _check_finite(offsets.gram()) if is_drawn else arrival.gram
    if pending != 1.0:
        gram, offsets = _scale_offsets(gram, pending), offsets.scaled(pending)
    return Admission(factor, count=count), offsets, gram


def _move_model(
    method: Method,
    state: ServerState,
    memories: Memories,
    move: Move,
    gathered: Memory,
    space: Space,
    out: Tensor | None = None,
    updates: int = 0,
) -> ServerState:
    """Return the state at its next version, with so many more updates accepted."""
    scale = move.scale
    if (optimizer := method.server_optimizer) is not None:
        rate = method.rate(state.version) if optimizer.takes_rate else 1.0
        step = memories.call("server_optimizer", optimizer.step, move)
        move = move.along(step, rate * optimizer.factor(move))
    theta = move.target(out)
    if not space.is_flat:
        memories.transport_tangents(space, theta)
    memories.keep("statistics", {})
    moved = ServerState(
        theta=theta,
        statistics=mix_statistics(state.statistics, gathered, scale),
        version=state.version + 1,
        updates=state.updates + updates,
        memory=memories.kept,
    )
    if method.averaging is None:
        return moved
    memories.keep("averaging", method.averaging.include(memories.recall("averaging"), moved, space))
    return replace(moved, memory=memories.kept)


def _check_update(method: Method, state: ServerState, update: Update, base: Tensor | None) -> Tensor:
    """Reject an update of the wrong form or version; return its base model."""
    if update.version > state.version:
        raise Rejected(f"base version {update.version} is in the future, the model is at {state.version}")
    if base is None or update.version < 0:
        raise Rejected(f"base version {update.version} is unknown")
    expected = (method.embedding.points, state.theta.numel())
    _check_form("offsets", update.offsets, expected, state.theta.dtype)
    for name, received, known in zip(Statistics._fields, update.statistics, state.statistics, strict=True):
        _check_form(f"statistics.{name}", received, tuple(known.shape), known.dtype)
    return state.theta if update.version == state.version else base


def _check_form(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape:
        raise Rejected(f"{name} have shape {tuple(tensor.shape)}, not {shape}")
    if tensor.dtype != dtype:
        raise Rejected(f"{name} are {tensor.dtype}, not {dtype}")


def _check_finite(gram: Floats) -> Floats:
    """Reject non-finite offsets; they show in the Gram matrix, so this needs no pass over the offsets."""
    if not all(map(isfinite, gram.ravel().tolist())):
        raise Rejected("offsets have non-finite values or overflow")
    return gram


def _scale_offsets(gram: Floats, factor: float) -> Floats:
    """Return the inner products with every offset multiplied by ``factor``, the drift unchanged."""
    factors = np.full(len(gram), factor)
    factors[-1] = 1.0
    return np.asarray(gram * np.outer(factors, factors))


def _length(gram: Floats, index: int) -> float:
    return sqrt(max(0.0, float(gram[index, index])))
