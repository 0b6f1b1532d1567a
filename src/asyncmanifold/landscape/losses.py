"""Measure the losses around one update."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
from torch import Tensor

from asyncmanifold.configuration.config import Config
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.surfaces import Surface
from asyncmanifold.landscape.numbers import Landscape, Mark, Scene, Stop
from asyncmanifold.landscape.plane import (
    LearnedCurve,
    LossProbe,
    Plane,
    Sample,
    draw_sample,
    sample_size,
    square_around,
)
from asyncmanifold.landscape.repeated_update import RepeatedUpdate
from asyncmanifold.landscape.surface_scene import DomainMap, count_losses, measure_surface
from asyncmanifold.progress import display
from asyncmanifold.server.step import corrected_offsets
from asyncmanifold.tasks.task import Task
from asyncmanifold.vectors import Statistics

STEPS = 40
"""The number of segments of a drawn curve."""
IN_PLANE = 1e-3
"""A model whose distance from a plane, in chords, is at most this is drawn in it."""


def measure_landscape(
    config: Config,
    task: Task,
    repeated: RepeatedUpdate,
    *,
    grid: int,
    examples: int,
    quiet: bool = True,
    differs: bool = False,
) -> Landscape:
    """Return the losses around an update: at the client on both kinds of data, and at the server."""
    client, seed, record = repeated.job.client, config.run.seed, repeated.record
    train = draw_sample(task.clients[client], examples, seed)
    test = draw_sample(task.test, examples, seed)
    at_client, at_server = _client_view(config, repeated), _server_view(config, repeated)
    if at_client is None:
        raise InputError(
            f"update {record['update']} is a straight line, and the model had not moved meanwhile: there is "
            "no plane to draw, choose another update with --update"
        )
    plans = [(at_client, "train", train), (at_client, "test", test)]
    if at_server is not None:
        plans.append((at_server, "test", test))
    ways = 2 if config.method.embedding.points > 1 else 1
    drawn = DomainMap.of(config.method.embedding)
    total = sum(grid**2 + ways * (STEPS + 1) + ways + len(view.models) for view, _, _ in plans)
    total += count_losses(drawn, grid) if drawn is not None else 0
    with display("landscape", total, quiet=quiet, unit="losses") as shown:
        done = count(1)
        probe = LossProbe(task, seed, lambda: shown.show(next(done)))
        scenes = [_measure_scene(view, data, sample, probe, grid) for view, data, sample in plans]
        if drawn is not None:
            loss = partial(probe.loss, statistics=at_client.statistics, sample=train)
            scenes.append(
                measure_surface(drawn, at_client.learned, loss, t=record["t"], data="train", grid=grid)
            )
    return Landscape(
        scenario=config.scenario,
        method=config.method_name,
        seed=seed,
        update=record["update"],
        client=client,
        base_version=repeated.job.version,
        version=repeated.before.version,
        t=record["t"],
        fraction=record["fraction"],
        degree=config.method.embedding.points,
        is_surface=isinstance(config.method.embedding, Surface),
        is_buffered=config.method.buffer is not None,
        has_statistics=probe.has_statistics,
        train_examples=(sample_size(train), len(task.clients[client])),
        test_examples=(sample_size(test), len(task.test)),
        parameters=repeated.job.theta.numel(),
        torch=torch.__version__,
        differs=differs,
        scenes=scenes,
    )


@dataclass(frozen=True)
class View:
    """A plane with the curve and the models that lie on it or are projected to it."""

    name: str
    plane: Plane
    learned: LearnedCurve
    models: dict[str, Tensor]
    statistics: Statistics
    stop: tuple[float, float]
    """t*, and the fraction of the chord that is as long as the step."""


def _client_view(config: Config, repeated: RepeatedUpdate) -> View | None:
    """Return the plane through Θ^t, the first interior control point and the local model.

    A straight update has no such point: the plane goes through Θ^τ instead.
    """
    base, now = repeated.job.theta, repeated.before.theta
    learned = LearnedCurve(base, repeated.update.offsets, config.method.embedding)
    models = {"Θ^t": base, **_control_points(learned)}
    return _view("client", repeated, learned, models, ("Θ^τ", now), repeated.update.statistics)


def _server_view(config: Config, repeated: RepeatedUpdate) -> View | None:
    """Return the plane of the corrected curve from Θ^τ, along which the server went."""
    now = repeated.before.theta
    offsets = corrected_offsets(
        config.method, repeated.before, repeated.update, repeated.job.theta, repeated.trusted
    )
    learned = LearnedCurve(now, offsets, config.method.embedding)
    stopped = "stop" if config.method.buffer is not None else "Θ^τ+1"
    models = {"Θ^τ": now, **_control_points(learned, "′"), stopped: learned.curve(repeated.record["t"])}
    return _view("server", repeated, learned, models, ("Θ^t", repeated.job.theta), repeated.after.statistics)


def _view(
    name: str,
    repeated: RepeatedUpdate,
    learned: LearnedCurve,
    models: dict[str, Tensor],
    other: tuple[str, Tensor],
    statistics: Statistics,
) -> View | None:
    """Return the plane of a learned curve, or of a geodesic's ends and middle.

    If it is straight, the plane goes through ``other``.
    """
    origin, offsets, record = learned.origin, learned.offsets, repeated.record
    inner = learned.curve(0.5) - origin if isinstance(learned.embedding, Surface) else offsets[0]
    plane = Plane.through(origin, offsets[-1], [inner, other[1] - origin])
    if plane is None:
        return None
    if repeated.before.version != repeated.job.version and plane.place(other[1])[2] < IN_PLANE:
        models = models | dict([other])
    share = record["step_norm"] / record["end_norm"] if record["end_norm"] > 0.0 else 0.0
    return View(name, plane, learned, models, statistics, (record["t"], share))


def _control_points(learned: LearnedCurve, prime: str = "") -> dict[str, Tensor]:
    """Return the free control points by name: B and C, or P1, P2 … and C for a higher degree."""
    inner = len(learned.offsets) - 1
    names = [f"B{prime}" if inner == 1 else f"P{k + 1}{prime}" for k in range(inner)]
    return {name: learned.origin + v for name, v in zip([*names, f"C{prime}"], learned.offsets, strict=True)}


def _measure_scene(view: View, data: str, sample: Sample, probe: LossProbe, grid: int) -> Scene:
    """Return the losses on a view's plane and along its curve and chord."""

    def loss(theta: Tensor) -> float | None:
        return probe.loss(theta, view.statistics, sample)

    ts = [k / STEPS for k in range(STEPS + 1)]
    learned = view.learned
    is_curve = len(learned.offsets) > 1
    curve = [view.plane.place(learned.curve(t)) for t in ts] if is_curve else []
    places = {name: view.plane.place(theta) for name, theta in view.models.items()}
    left, low, side = square_around([(x, y) for x, y, _ in (*places.values(), *curve)])
    xs = [left + side * i / (grid - 1) for i in range(grid)]
    ys = [low + side * i / (grid - 1) for i in range(grid)]
    t, share = view.stop
    return Scene(
        view=view.name,
        data=data,
        unit=view.plane.unit,
        xs=xs,
        ys=ys,
        losses=[[loss(view.plane.at(x, y)) for x in xs] for y in ys],
        marks=[Mark(name, *places[name], loss(theta)) for name, theta in view.models.items()],
        curve=[(x, y) for x, y, _ in curve],
        off_plane=max((off for _, _, off in curve), default=0.0),
        ts=ts,
        curve_losses=[loss(learned.curve(t)) for t in ts] if is_curve else [],
        chord_losses=[loss(learned.chord(t)) for t in ts],
        stop=Stop(t, share, loss(learned.curve(t)) if is_curve else None, loss(learned.chord(share))),
    )
