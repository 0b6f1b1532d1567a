"""The losses around one update, as numbers to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from asyncmanifold.configuration.config import Config
from asyncmanifold.errors import InputError
from asyncmanifold.landscape.plane import (
    Plane,
    Probe,
    Route,
    Sample,
    draw_sample,
    sample_size,
    square_around,
)
from asyncmanifold.landscape.replay import Moment, corrected_offsets
from asyncmanifold.progress import display
from asyncmanifold.report.landscape import Landscape, Mark, Scene, Stop
from asyncmanifold.tasks.task import Task
from asyncmanifold.vectors import Buffers

STEPS = 40
"""Pieces that a curve is cut into."""
IN_PLANE = 1e-3
"""A model no farther from a plane than this, in chords, is drawn in it."""


def measure(
    config: Config,
    task: Task,
    moment: Moment,
    *,
    grid: int,
    examples: int,
    quiet: bool = True,
    differs: bool = False,
) -> Landscape:
    """Return the losses around an update: at the client on both kinds of data, and at the server."""
    client, seed = moment.job.client, config.run.seed
    train = draw_sample(task.clients[client], examples, seed)
    test = draw_sample(task.test, examples, seed)
    at_client, at_server = _client_view(config, moment), _server_view(config, moment)
    if at_client is None:
        raise InputError(
            f"update {moment.record['update']} is a straight line from a model that had not moved meanwhile: "
            "there is no plane to draw, choose another with --update"
        )
    plans = [(at_client, "train", train), (at_client, "test", test)]
    if at_server is not None:
        plans.append((at_server, "test", test))
    ways = 2 if config.method.embedding.points > 1 else 1
    total = sum(grid**2 + ways * (STEPS + 1) + ways + len(view.models) for view, _, _ in plans)
    with display("landscape", total, quiet=quiet, unit="losses") as shown:
        done = count(1)
        probe = Probe(task, seed, lambda: shown.show(next(done)))
        scenes = [_scene(view, data, sample, probe, grid) for view, data, sample in plans]
    return Landscape(
        scenario=config.scenario,
        method=config.method_name,
        seed=seed,
        update=moment.record["update"],
        client=client,
        base_version=moment.job.version,
        version=moment.before.version,
        t=moment.record["t"],
        fraction=moment.record["fraction"],
        degree=config.method.embedding.points,
        is_buffered=config.method.buffer is not None,
        has_buffers=probe.has_buffers,
        train_examples=(sample_size(train), len(task.clients[client])),
        test_examples=(sample_size(test), len(task.test)),
        parameters=moment.job.theta.numel(),
        torch=torch.__version__,
        differs=differs,
        scenes=scenes,
    )


@dataclass(frozen=True)
class View:
    """A plane with what lies on it, or is projected to it."""

    name: str
    plane: Plane
    route: Route
    models: dict[str, Tensor]
    buffers: Buffers
    stop: tuple[float, float]
    """t*, and the share of the chord that reaches as far."""


def _client_view(config: Config, moment: Moment) -> View | None:
    """Return the plane through Θ^t, the first interior control point and the local model.

    A straight update has no such point: the plane goes through Θ^τ instead.
    """
    base, now = moment.job.theta, moment.before.theta
    route = Route(base, moment.update.offsets, config.method.embedding)
    models = {"Θ^t": base, **_control_points(route)}
    return _view("client", moment, route, models, ("Θ^τ", now), moment.update.buffers)


def _server_view(config: Config, moment: Moment) -> View | None:
    """Return the plane of the corrected curve from Θ^τ, along which the server went."""
    route = Route(moment.before.theta, corrected_offsets(config.method, moment), config.method.embedding)
    stopped = "stop" if config.method.buffer is not None else "Θ^τ+1"
    models = {"Θ^τ": route.origin, **_control_points(route, "′"), stopped: route.curve(moment.record["t"])}
    return _view("server", moment, route, models, ("Θ^t", moment.job.theta), moment.after.buffers)


def _view(
    name: str,
    moment: Moment,
    route: Route,
    models: dict[str, Tensor],
    other: tuple[str, Tensor],
    buffers: Buffers,
) -> View | None:
    """Return a route's plane, through the model ``other`` where the route is straight."""
    plane = Plane.through(route.origin, route.offsets[-1], [route.offsets[0], other[1] - route.origin])
    if plane is None:
        return None
    if moment.before.version != moment.job.version and plane.place(other[1])[2] < IN_PLANE:
        models = models | dict([other])
    share = moment.record["step_norm"] / moment.record["end_norm"] if moment.record["end_norm"] > 0.0 else 0.0
    return View(name, plane, route, models, buffers, (moment.record["t"], share))


def _control_points(route: Route, prime: str = "") -> dict[str, Tensor]:
    """Return the free control points by name: B and C, or P1, P2 … and C for a higher degree."""
    inner = len(route.offsets) - 1
    names = [f"B{prime}" if inner == 1 else f"P{k + 1}{prime}" for k in range(inner)]
    return {name: route.origin + v for name, v in zip([*names, f"C{prime}"], route.offsets, strict=True)}


def _scene(view: View, data: str, sample: Sample, probe: Probe, grid: int) -> Scene:
    """Return the losses on a view's plane and along its curve and chord."""

    def loss(theta: Tensor) -> float | None:
        return probe.loss(theta, view.buffers, sample)

    ts = [k / STEPS for k in range(STEPS + 1)]
    is_curve = len(view.route.offsets) > 1
    curve = [view.plane.place(view.route.curve(t)) for t in ts] if is_curve else []
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
        curve_losses=_along(view.route.curve, ts, loss) if is_curve else [],
        chord_losses=_along(view.route.chord, ts, loss),
        stop=Stop(
            t,
            share,
            loss(view.route.curve(t)) if is_curve else None,
            loss(view.route.chord(share)),
        ),
    )


def _along(
    point: Callable[[float], Tensor], ts: Sequence[float], loss: Callable[[Tensor], float | None]
) -> list[float | None]:
    return [loss(point(t)) for t in ts]
