"""One server update: check, correct, scale, and move along the curve (design.md, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncmanifold.errors import InputError
from asyncmanifold.geometry.bezier import Floats
from asyncmanifold.geometry.spaces import FLAT, Space
from asyncmanifold.server.corrections import cosines
from asyncmanifold.server.gram import combine, gram_matrix
from asyncmanifold.server.methods import Method
from asyncmanifold.server.protocol import Pending, Rejected, ServerState, Update
from asyncmanifold.vectors import Buffers


@dataclass(frozen=True)
class Step:
    """What one accepted update did; the numbers of its trace line."""

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
    """s = min(1, S · w · η_g · staleness factor)."""
    t: float
    """The smallest t* with ‖γ(t*) − Θ‖ = s ‖v'_n‖."""
    step_norm: float
    """The length of this update's own step; a buffer applies it later."""


def absorb(
    method: Method,
    state: ServerState,
    update: Update,
    *,
    base: Tensor | None,
    weight: float,
    out: Tensor | None = None,
    space: Space = FLAT,
) -> tuple[ServerState, Step]:
    """Return the state after ``update`` and what happened, or raise ``Rejected``.

    ``base`` is the model of the version that the client started from, None if the server does not have
    it; ``weight`` is the client's share of all examples. No input is modified. ``out`` may name a vector
    of the model's size, not in use, to write the new model to. ``space`` is where the model lives.
    """
    if not 0.0 <= weight < inf:
        raise InputError(f"absorb(weight={weight}) must be at least 0 and finite")
    base = _checked_base(method, state, update, base)
    if not space.is_flat:
        return _absorb_curved(space, method, state, update, base, weight)
    gram = gram_matrix(update.offsets, state.theta, base)
    _check_lengths(method, gram)
    offsets, corrected_gram, memory = update.offsets, gram, state.memory
    if method.correction.transforms:
        offsets, memory = method.correction.transform(offsets, state.theta - base, memory)
        corrected_gram = gram_matrix(offsets, state.theta, base)
        _check_lengths(method, corrected_gram)

    mixing = method.correction.coefficients(corrected_gram)
    curve = mixing @ corrected_gram @ mixing.T
    scale = _scale(method, state, update, _length(curve, -1), _length(gram, -1), weight)
    t = method.embedding.parameter(curve, scale.fraction)
    weights = np.array(method.embedding.weights(t))

    state = replace(state, updates=state.updates + 1, memory=memory)
    start, full = _start(method, state)
    vector = combine(start, offsets, state.theta, base, weights @ mixing, out)
    gathered = _gathered(state.pending, vector, update.buffers, scale)
    if full:
        moved = _moved(method, state, vector, _mixed(state.buffers, gathered, 1.0))
    else:
        moved = replace(state, pending=gathered)
    length = sqrt(max(0.0, float(weights @ curve @ weights)))
    return moved, _step(method, moved, update, gram, _length(gram, -2), scale, t, length)


def _absorb_curved(
    space: Space, method: Method, state: ServerState, update: Update, base: Tensor, weight: float
) -> tuple[ServerState, Step]:
    """The same in tangent space at the current model, along geodesics.

    Offsets are tangent vectors at the base model; a correction takes them to the current one and then acts as
    in flat space, with the inner product there.
    """
    theta, memory = state.theta, state.memory
    is_fresh = base is theta
    drift = torch.zeros_like(theta) if is_fresh else -space.log(theta, base)
    offsets = list(update.offsets)
    if not is_fresh:
        offsets = method.correction.lifted(space, theta, base, update.offsets)
    gram = space.gram(theta, [*offsets, drift])
    _check_lengths(method, gram)
    if method.correction.transforms:
        changed, memory = method.correction.transform(torch.stack(offsets), drift, memory)
        offsets = [space.project(theta, offset) for offset in changed]
    rows = torch.stack([*offsets, drift])
    corrected_gram = space.gram(theta, list(rows))
    _check_lengths(method, corrected_gram)
    mixing = method.correction.lifted_coefficients(corrected_gram)
    curve = mixing @ corrected_gram @ mixing.T
    controls = [theta, *(space.exp(theta, v) for v in torch.from_numpy(mixing).to(rows) @ rows)]
    scale = _scale(method, state, update, _length(curve, -1), _length(gram, -1), weight)
    t = method.embedding.place(space, controls, scale.fraction)
    reached = space.repaired(space.curve(controls, t))
    way = space.log(theta, reached)

    state = replace(state, updates=state.updates + 1, memory=memory)
    held = state.pending
    total = way if held is None else held.step + way
    gathered = _gathered(held, total, update.buffers, scale)
    if method.buffer is None or method.buffer.full(gathered.count):
        target = reached if held is None else space.repaired(space.exp(theta, total))
        moved = _moved(method, state, target, _mixed(state.buffers, gathered, 1.0), space)
    else:
        moved = replace(state, pending=gathered)
    received = space.norm(base, update.offsets[-1])
    return moved, _step(method, moved, update, gram, received, scale, t, space.norm(theta, way))


def flush(method: Method, state: ServerState, space: Space = FLAT) -> ServerState:
    """Return the state with what a buffer holds applied; a barrier's steps become their weighted mean."""
    pending = state.pending
    if pending is None:
        return state
    share = 1.0 / pending.weight if method.synchronous and pending.weight > 0.0 else 1.0
    if space.is_flat:
        theta = torch.add(state.theta, pending.step, alpha=share)
    else:
        theta = space.repaired(space.exp(state.theta, share * pending.step))
    return _moved(method, state, theta, _mixed(state.buffers, pending, share), space)


class Scale(NamedTuple):
    """How long a step may be, and why."""

    staleness: int
    penalty: float
    share: float
    fraction: float
    drift_norm: float
    end_norm: float


def _scale(
    method: Method, state: ServerState, update: Update, end_norm: float, drift_norm: float, weight: float
) -> Scale:
    staleness = state.staleness(update.version)
    penalty = method.penalty.scale(end_norm, drift_norm, state.updates)
    share = method.share(weight)
    fraction = penalty * share * method.global_lr * method.staleness.factor(staleness)
    if not method.synchronous:  # a round's steps become a mean, which a large η_g may extrapolate
        fraction = min(1.0, fraction)
    return Scale(staleness, penalty, share, fraction, drift_norm, end_norm)


def _step(
    method: Method,
    moved: ServerState,
    update: Update,
    gram: Floats,
    update_norm: float,
    scale: Scale,
    t: float,
    length: float,
) -> Step:
    return Step(
        version=moved.version,
        base_version=update.version,
        staleness=scale.staleness,
        weight=scale.share,
        drift_norm=scale.drift_norm,
        update_norm=update_norm,
        end_norm=scale.end_norm,
        cosines=cosines(gram),
        projected=method.correction.projected(gram),
        penalty=scale.penalty,
        fraction=scale.fraction,
        t=t,
        step_norm=length,
    )


def _start(method: Method, state: ServerState) -> tuple[Tensor, bool]:
    """Return what this step is added to, and whether that moves the model."""
    held = state.pending
    if method.buffer is None or method.buffer.full(1 + (held.count if held else 0)):
        return (state.theta if held is None else state.theta + held.step), True
    return (torch.zeros_like(state.theta) if held is None else held.step), False


def _moved(
    method: Method, state: ServerState, theta: Tensor, buffers: Buffers, space: Space = FLAT
) -> ServerState:
    """Return the state at its next version."""
    state = replace(state, theta=theta, buffers=buffers, version=state.version + 1, pending=None)
    if method.averaging is None:
        return state
    return replace(state, average=method.averaging.next(state, space))


def _gathered(held: Pending | None, step: Tensor, buffers: Buffers, scale: Scale) -> Pending:
    floats = buffers.floats * scale.fraction if buffers.floats.numel() else buffers.floats
    if held is None:
        return Pending(step, 1, scale.share, scale.fraction, Buffers(floats, buffers.integers))
    return Pending(
        step,
        held.count + 1,
        held.weight + scale.share,
        held.fraction + scale.fraction,
        Buffers(held.buffers.floats + floats, buffers.integers),
    )


def _mixed(current: Buffers, gathered: Pending, share: float) -> Buffers:
    """Move the buffers towards the mean of those gathered, by the whole step fraction, at most 1."""
    if gathered.fraction <= 0.0 or not current.floats.numel():
        return Buffers(current.floats, gathered.buffers.integers)
    mean = gathered.buffers.floats / gathered.fraction
    fraction = min(1.0, gathered.fraction * share)
    return Buffers(torch.lerp(current.floats, mean, fraction), gathered.buffers.integers)


def _checked_base(method: Method, state: ServerState, update: Update, base: Tensor | None) -> Tensor:
    """Return the base model of an update of the right form."""
    if update.version > state.version:
        raise Rejected(f"base version {update.version} is in the future, the model is at {state.version}")
    if base is None or update.version < 0:
        raise Rejected(f"base version {update.version} is unknown")
    staleness = state.staleness(update.version)
    if method.max_staleness is not None and staleness > method.max_staleness:
        raise Rejected(f"staleness {staleness} is above the limit {method.max_staleness}")
    expected = (method.embedding.points, state.theta.numel())
    _check_form("offsets", update.offsets, expected, state.theta.dtype)
    for name, received, known in zip(Buffers._fields, update.buffers, state.buffers, strict=True):
        _check_form(f"buffers.{name}", received, tuple(known.shape), known.dtype)
    if update.buffers.floats.numel() and not torch.isfinite(update.buffers.floats).all():
        raise Rejected("buffers have non-finite values")
    return state.theta if staleness == 0 else base


def _check_form(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape:
        raise Rejected(f"{name} have shape {tuple(tensor.shape)}, not {shape}")
    if tensor.dtype != dtype:
        raise Rejected(f"{name} are {tensor.dtype}, not {dtype}")


def _check_lengths(method: Method, gram: Floats) -> None:
    """Reject non-finite offsets, which the Gram matrix shows for free, and those above the norm bound."""
    if not all(map(isfinite, gram.ravel().tolist())):
        raise Rejected("offsets have non-finite values or overflow")
    if method.norm_bound is not None:
        longest = max(_length(gram, k) for k in range(len(gram) - 1))
        if longest > method.norm_bound:
            raise Rejected(f"norm {longest:.6g} is above the bound {method.norm_bound:g}")


def _length(gram: Floats, index: int) -> float:
    return sqrt(max(0.0, float(gram[index, index])))
