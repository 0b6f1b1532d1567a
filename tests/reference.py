"""The slow, obvious twin of the package: the design's formulas on whole vectors, in float64.

Nothing here knows a rule of the package: a method is given in plain words and numbers. Lengths, angles
and places on curves are worked out on the vectors themselves, without a Gram matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, floor, prod, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call


def inner(a: np.ndarray, b: np.ndarray) -> float:
    """Return ⟨a, b⟩."""
    return float((a * b).sum())


def length(a: np.ndarray) -> float:
    """Return ‖a‖."""
    return sqrt(inner(a, a))


# --- curves -------------------------------------------------------------------------------------------


def de_casteljau(points: list[Any], t: Any) -> Any:
    """Return the point at ``t`` of the curve with these control points, by repeated interpolation."""
    while len(points) > 1:
        points = [(1.0 - t) * a + t * b for a, b in pairwise(points)]
    return points[0]


def curve_point(offsets: np.ndarray, t: float) -> np.ndarray:
    """Return γ(t) − p_0 of the curve whose free control points are p_0 + offsets."""
    return de_casteljau([np.zeros_like(offsets[0]), *offsets], t)


def chord_lengths(offsets: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return ‖γ(t) − p_0‖ at many places.

    The offsets are first written in an orthonormal basis of the space that they span: the same lengths
    in as few coordinates as there are offsets.
    """
    few = np.linalg.qr(offsets.T)[1].T
    points = [np.zeros((1, few.shape[1])), *few[:, None, :]]
    return np.linalg.norm(de_casteljau(points, places[:, None]), axis=1)


def first_crossing(offsets: np.ndarray, fraction: float) -> float:
    """Return the smallest t with ‖γ(t) − p_0‖ = fraction · ‖v_n‖: a dense scan, then bisection."""
    target = fraction * length(offsets[-1])
    if target == 0.0:
        return 0.0
    places = np.linspace(0.0, 1.0, 20_001)
    reached = np.flatnonzero(chord_lengths(offsets, places) >= target)
    if reached.size == 0:
        return 1.0
    low, high = places[reached[0] - 1], places[reached[0]]
    for _ in range(30):
        middle = 0.5 * (low + high)
        if length(curve_point(offsets, middle)) >= target:
            high = middle
        else:
            low = middle
    return float(high)


# --- the server ---------------------------------------------------------------------------------------


@dataclass
class ReferenceServer:
    """A server that keeps every version of its model and follows section 3.2 of the design."""

    theta: np.ndarray
    correction: str = "tangent"
    threshold: float = 0.0
    jointly: bool = False
    step: str = "chord"
    strength: float = 2.0
    adaptive: bool = True
    momentum: float = 0.95
    epsilon: float = 1e-7
    decay: float = 0.0
    warmup: int = 0
    target: float = 1.0
    lowest: float = 0.0
    highest: float = 10.0
    staleness: Callable[[int], float] = lambda staleness: 1.0
    buffer_size: int = 1
    barrier: bool = False
    weighting: str = "examples"
    global_lr: float = 1.0
    average_from: int | None = None
    average_every: int = 1
    tail_power: int | None = None

    updates: int = 0
    models: list[np.ndarray] = field(default_factory=list)
    held: list[tuple[np.ndarray, float]] = field(default_factory=list)
    averaged: list[np.ndarray] = field(default_factory=list)
    mean_square: Any = 0.0
    t: float = 0.0
    penalty: float = 1.0
    fraction: float = 0.0

    def __post_init__(self) -> None:
        self.models.append(self.theta)

    @property
    def version(self) -> int:
        return len(self.models) - 1

    def absorb(self, offsets: np.ndarray, version: int, weight: float) -> None:
        drift = self.theta - self.models[version]
        share = weight
        if self.weighting == "none":
            share = 1.0 / self.buffer_size
        corrected = self._corrected(offsets, drift)
        self.penalty = self._penalty(corrected[-1], drift)
        factor = self.staleness(self.version - version)
        self.fraction = min(1.0, self.penalty * share * self.global_lr * factor)
        self.t = self.fraction if self.step == "parameter" else first_crossing(corrected, self.fraction)
        self.updates += 1
        self.held.append((curve_point(corrected, self.t), share))
        if not self.barrier and len(self.held) == self.buffer_size:
            self.flush()

    def flush(self) -> None:
        """Move by the held steps: by their sum, or after a synchronous round by their weighted mean."""
        if not self.held:
            return
        step = sum(step for step, _ in self.held)
        if self.barrier:
            step = step / sum(share for _, share in self.held)
        self.held = []
        self.theta = self.theta + step
        self.models.append(self.theta)
        if self.average_from is not None:
            past = self.version - self.average_from
            if past >= 0 and past % self.average_every == 0:
                self.averaged.append(self.theta)

    def returned(self) -> np.ndarray:
        if self.tail_power is not None:  # model t counts as t (t + 1) … (t + k − 1), about t^k
            weights = [prod(range(t, t + self.tail_power)) for t in range(1, len(self.models))]
            return np.average(self.models[1:], axis=0, weights=weights)
        return np.mean(self.averaged, axis=0) if self.averaged else self.theta

    def _corrected(self, offsets: np.ndarray, drift: np.ndarray) -> np.ndarray:
        if self.correction == "delay-compensation":
            strength: Any = self.strength
            if self.adaptive:
                squares = offsets[-1] ** 2
                self.mean_square = self.momentum * self.mean_square + (1.0 - self.momentum) * squares
                strength = self.strength / np.sqrt(self.mean_square + self.epsilon)
            return offsets - strength * offsets**2 * drift
        if self.jointly:
            long = self._orthodc(offsets.ravel(), np.tile(drift, len(offsets)))
            return long.reshape(offsets.shape)
        rules = {"position": self._position, "tangent": self._tangent, "orthodc": self._orthodc}
        return np.stack([rules[self.correction](offset, drift) for offset in offsets])

    def _position(self, offset: np.ndarray, drift: np.ndarray) -> np.ndarray:
        return offset - drift

    def _tangent(self, offset: np.ndarray, drift: np.ndarray) -> np.ndarray:
        return offset

    def _orthodc(self, offset: np.ndarray, drift: np.ndarray) -> np.ndarray:
        lengths = length(offset) * length(drift)
        if lengths == 0.0 or inner(offset, drift) / lengths > self.threshold:
            return offset
        return offset - inner(offset, drift) / inner(drift, drift) * drift

    def _penalty(self, end: np.ndarray, drift: np.ndarray) -> float:
        if self.updates < self.warmup:
            scale = 1.0 + self.decay * (1.0 / self.target - 1.0)
        elif length(drift) == 0.0:
            return 1.0
        else:
            scale = 1.0 + self.decay * (length(end) / length(drift) - 1.0)
        return min(self.highest, max(self.lowest, scale))


def next_epochs(
    epochs: int,
    drift: np.ndarray,
    offset: np.ndarray,
    updates: int,
    target: float = 1.0,
    gain: float = 1.0,
    warmup: int = 10,
    max_epochs: int = 10,
    nearest: bool = False,
) -> int:
    """Return K ← max(1, K + ⌊(γ̄ − γ)κ⌋), γ = ‖d‖/‖v‖ and γ̄ during warm-up, bounded above."""
    ratio = length(drift) / length(offset) if updates >= warmup else target
    change = (target - ratio) * gain
    whole = floor(change)
    if nearest and change - whole >= 0.5:
        whole += 1
    return min(max_epochs, max(1, epochs + whole))


# --- local training -----------------------------------------------------------------------------------


def training_steps(
    random: np.random.Generator, examples: int, batch_size: int, point_epochs: int, curve_epochs: int
) -> Iterator[tuple[bool, float, np.ndarray]]:
    """Yield (whether along the curve, place on the curve, examples) for every step of a job."""
    for epoch in range(point_epochs + curve_epochs):
        along_curve = epoch >= point_epochs
        for indices in np.array_split(random.permutation(examples), ceil(examples / batch_size)):
            yield along_curve, 1.0 - random.random() if along_curve else 1.0, indices


def train_through_curve(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    steps: Iterator[tuple[bool, float, np.ndarray]],
    inputs: Tensor,
    targets: Tensor,
    *,
    degree: int,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    proximal: float,
    interior_start: str = "base",
    freeze_end: bool = False,
) -> Tensor:
    """Return the offsets that a client learns, by autograd through the curve.

    The control points are the leaves, in float64. The first one is the module's own parameters.
    """
    module = module.double()
    inputs = inputs.double()
    base = nn.utils.parameters_to_vector(module.parameters()).detach()
    free = [base.clone().requires_grad_() for _ in range(degree)]
    optimiser = optimizer(free)
    started, way = False, []
    for along_curve, s, indices in steps:
        if along_curve and not started:
            started = True
            start_interior(interior_start, base, free, way)
        weights = de_casteljau([base, *free], s)
        outputs = functional_call(module, named_slices(module, weights), (inputs[indices],))
        value = loss(outputs, targets[indices]) + 0.5 * proximal * (weights - base).square().sum()
        optimiser.zero_grad()
        value.backward()
        for point in free[:-1]:
            if not along_curve:
                point.grad = None
        if along_curve and freeze_end:
            free[-1].grad = None
        optimiser.step()
        way.append(free[-1].detach() - base)
    if not started:
        start_interior(interior_start, base, free, way)
    return torch.stack([point.detach() - base for point in free])


@torch.no_grad()
def start_interior(interior_start: str, base: Tensor, free: list[Tensor], way: list[Tensor]) -> None:
    """Move the interior control points to where they start the curve phase; ``way`` has all end points."""
    if interior_start == "chord":
        for k, point in enumerate(free[:-1], 1):
            point.copy_(base + k / len(free) * (free[-1] - base))
    elif interior_start == "trajectory" and len(free) > 1:
        for point, fitted in zip(free, fit_bezier(torch.stack(way), len(free)), strict=False):
            point.copy_(base + fitted)


def fit_bezier(way: Tensor, degree: int) -> Tensor:
    """Return the interior offsets of the curve from 0 to the last point that is closest to all of them.

    Point j of J belongs to t = j/J. The weights of the control points are read off de Casteljau's curve.
    """
    unit = torch.eye(degree + 1, dtype=torch.float64)
    weights = torch.stack([de_casteljau(list(unit), (j + 1) / len(way)) for j in range(len(way))])
    left = way - weights[:, -1:] * way[-1]
    return torch.linalg.lstsq(weights[:, 1:-1], left).solution


def named_slices(module: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Return a flat vector as the module's named parameters."""
    named, start = {}, 0
    for name, parameter in module.named_parameters():
        named[name] = vector[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    return named


def elevate(offsets: np.ndarray) -> np.ndarray:
    """Return the n + 1 offsets of degree n + 1 that trace the same curve as the n given ones.

    q_k = k/(n + 1) v_(k−1) + (1 − k/(n + 1)) v_k, with v_0 = 0
    """
    degree = len(offsets)
    padded = np.concatenate([np.zeros_like(offsets[:1]), offsets, np.zeros_like(offsets[:1])])
    share = np.arange(1, degree + 2, dtype=np.float64)[:, None] / (degree + 1)
    return share * padded[:-1] + (1.0 - share) * padded[1:]
