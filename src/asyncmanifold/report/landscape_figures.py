"""The figures of the loss around one update: planes with contours, and the loss along the curve."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from asyncmanifold.landscape.numbers import Landscape, Mark, Scene
from asyncmanifold.report.contours import Place, area_above, levels
from asyncmanifold.report.figure import Figure, Row, Specification, category, layer, quantity, rounded
from asyncmanifold.report.score_layers import SWITCHES, VIEW, VISIBLE, faded, series_encodings

COLOURS = ("#440154", "#46337e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#9fda3a", "#fde725")
"""Viridis, from low loss to high: its lightness increases, so it is readable in grey and with any colour
vision. Marks on it are white with a dark edge, on light and dark pages."""
PATHS = {"domain": ["curve", "chord"], "range": [[1, 0], [6, 4]]}
"""The curve is solid and the chord dashed."""
SIZE = 380
"""The width and height of a plane: equal, so that shapes are not distorted."""


def landscape_figures(landscape: Landscape) -> list[Figure]:
    """Return the planes and the profiles: first the client's, then the server's."""
    return [
        draw(landscape, scene)
        for view in ("client", "surface", "server")
        for draw in (plane_figure, profile_figure)
        for scene in landscape.scenes
        if scene.view == view and not (view == "surface" and draw is profile_figure)
    ]


def plane_figure(landscape: Landscape, scene: Scene) -> Figure:
    """Return a plane with the loss as filled contours, and the curve, the chord and the models on it."""
    steps = levels(scene.losses, len(COLOURS) - 1)
    name = f"{scene.view}-{scene.data}"
    data = {
        f"areas-{name}": area_rows(scene, steps),
        f"paths-{name}": [
            *_path_rows("chord", [(0.0, 0.0), (1.0, 0.0)]),
            *_path_rows("curve", scene.curve),
        ],
        f"marks-{name}": [
            {"name": mark.name.replace("^", ""), "x": rounded(mark.x), "y": rounded(mark.y)}
            | {"shape": _shape(mark.name), "loss": "not finite" if mark.loss is None else f"{mark.loss:.4g}"}
            for mark in sorted(scene.marks, key=lambda mark: _shape(mark.name) == "diamond")
        ],
        f"labels-{name}": [row for mark in scene.marks for row in _label_rows(scene, mark)],
    }
    place, loss = _describe_scene(scene)
    caption = _plane_caption(landscape, scene)
    specification = _plane_specification(scene, name, steps)
    return Figure(f"landscape-plane-{name}", f"{place}: {loss}", caption, specification, data)


def profile_figure(landscape: Landscape, scene: Scene) -> Figure:
    """Return the loss along the curve and along the chord."""
    name = f"{scene.view}-{scene.data}"
    lines = {"curve": scene.curve_losses, "chord": scene.chord_losses}
    rows = [
        {"method": line, "t": rounded(t), "loss": rounded(loss)}
        for line, losses in lines.items()
        for t, loss in zip(scene.ts, losses, strict=False)
        if loss is not None
    ]
    stop = scene.stop
    ends = [("curve", stop.t, stop.curve_loss), ("chord", stop.share, stop.chord_loss)]
    stops = [
        {"method": line, "t": rounded(t), "loss": rounded(loss)}
        for line, t, loss in ends
        if scene.view == "server" and loss is not None and t <= 1.0 and lines[line]
    ]
    label = {"t": rounded(min(1.0, stop.t)), "label": f"t* = {stop.t:.3g}"}
    shown = [line for line in lines if any(row["method"] == line for row in rows)]
    place, loss = _describe_scene(scene)
    return Figure(
        f"landscape-profile-{name}",
        f"{place}: {loss} against t",
        _profile_caption(landscape, scene),
        _profile_specification(name, shown, is_right=stop.t > 0.7),
        {f"profile-{name}": rows, f"stops-{name}": stops, f"stop-{name}": [label]},
    )


def area_rows(scene: Scene, steps: Sequence[float]) -> list[Row]:
    """Return the areas above each level, first all that has a loss; a row without a place ends a ring."""
    if not any(loss is not None for row in scene.losses for loss in row):
        return []
    rings = [area_above(scene.xs, scene.ys, scene.losses, level) for level in (-inf, *steps)]
    rows: list[Row] = []
    for band, parts in enumerate(rings):
        height = steps[band - 1] if band else (steps[0] - 1.0 if steps else 0.0)
        for ring in parts:
            rows += [{"band": band, "height": height, "x": rounded(x), "y": rounded(y)} for x, y in ring]
            rows.append({"band": band, "height": height, "x": None, "y": None})
    return [{**row, "order": order} for order, row in enumerate(rows)]


def _plane_specification(scene: Scene, name: str, steps: Sequence[float]) -> Specification:
    def within(ends: Sequence[float]) -> Row:
        return {"domain": [rounded(ends[0]), rounded(ends[-1])], "nice": False}

    is_domain = scene.view == "surface"
    across = "first coordinate" if is_domain else "along the chord (in chords)"
    up = "second coordinate" if is_domain else "across"
    places = {
        "x": quantity("x", title=across, scale=within(scene.xs)),
        "y": quantity("y", title=up, scale=within(scene.ys)),
    }
    scale = {"type": "threshold", "domain": list(steps), "range": list(COLOURS[: len(steps) + 1])}
    legend = {"orient": "right", "format": ".4~g", "gradientLength": 220} if steps else None
    areas = {
        **places,
        "fill": quantity("height", title="loss", scale=scale, legend=legend),
        "order": quantity("order"),
        "detail": quantity("band"),
    }
    ring: Row = {"interpolate": "linear-closed", "invalid": "break-paths-show-path-domains", "clip": True}
    edge: Row = {"stroke": "white", "strokeOpacity": 0.45, "strokeWidth": 0.8}
    lines = {**places, "strokeDash": category("path", scale=PATHS, legend=None), "order": quantity("order")}
    marks: Row = {**places, "shape": category("shape", scale=None, legend=None)}
    marks["tooltip"] = [category("name", title="model"), category("loss")]
    words = {**places, "text": category("text")}
    own = {key: {"expr": f"datum.{key}"} for key in ("dx", "dy", "align", "fontSize")}
    label: Row = {"fontWeight": "bold", **own}
    layers = [
        layer("line", areas, f"areas-{name}", **ring, **edge),
        layer("line", lines, f"paths-{name}", clip=True, opacity=1, color="#333333", strokeWidth=4.6),
        layer("line", lines, f"paths-{name}", clip=True, opacity=1, color="white", strokeWidth=2.4),
        layer("point", marks, f"marks-{name}", size=75, fill="white", stroke="black", opacity=1),
        layer("text", words, f"labels-{name}", stroke="white", strokeWidth=3, strokeJoin="round", **label),
        layer("text", words, f"labels-{name}", color="black", **label),
    ]
    return {"width": SIZE, "height": SIZE, "usermeta": {"layout": "square"}, "layer": layers}


def _profile_specification(name: str, lines: Sequence[str], *, is_right: bool) -> Specification:
    styles = series_encodings(lines)
    x = quantity("t", title="t", axis={"grid": False}, scale={"domain": [0, 1]})
    y = quantity("loss", title="loss", scale={"zero": False})
    places = {"x": x, "y": y, "color": styles["color"], "opacity": faded()}
    numbers = [quantity(key, format=".4~g") for key in ("t", "loss")]
    tooltip = {"tooltip": [category("method", title="along the"), *numbers]}
    hidden = {**places, "opacity": {"value": 0}, **tooltip}
    stops = {**places, "shape": styles["shape"], **tooltip}
    dot: Row = {"filled": True, "size": 60, "clip": True}
    aside: Row = {"align": "right", "dx": -5} if is_right else {"align": "left", "dx": 5}
    label = {"x": x, "y": {"value": 2}, "text": category("label")}
    dashed = {**places, "strokeDash": styles["strokeDash"]}
    layers = [
        layer("rule", {"x": x}, f"stop-{name}", strokeDash=[4, 3]),
        layer("line", dashed, f"profile-{name}", [VISIBLE], "lines", clip=True),
        layer("point", hidden, f"profile-{name}", [VISIBLE], "evaluations", **dot),
        layer("point", stops, f"stops-{name}", [VISIBLE], **dot),
        layer("text", label, f"stop-{name}", baseline="top", **aside),
    ]
    return {"height": 260, "params": [*SWITCHES, VIEW], "layer": layers}


def _path_rows(path: str, places: Sequence[Place]) -> list[Row]:
    return [
        {"path": path, "order": order, "x": rounded(x), "y": rounded(y)}
        for order, (x, y) in enumerate(places)
    ]


def _label_rows(scene: Scene, mark: Mark) -> list[Row]:
    """Return a mark's label and its raised power, if it has one.

    The origin's label is below it, so that it does not cover the end of a short step.
    """
    is_origin = (mark.x, mark.y) == (0.0, 0.0) and mark.name.startswith("Θ")
    is_at_edge = mark.x > scene.xs[-1] - 0.12 * (scene.xs[-1] - scene.xs[0])
    align, aside = ("right", -1.0) if is_origin or is_at_edge else ("left", 1.0)
    name, _, power = mark.name.partition("^")
    place = {"x": rounded(mark.x), "y": rounded(mark.y), "align": align}
    down = 14.0 if is_origin else -12.0
    width = 7.0 * len(power) if align == "right" else 10.0 * len(name)
    rows: list[Row] = [{**place, "text": name, "dx": aside * 8.0, "dy": down, "fontSize": 13}]
    if power:
        if align == "right":
            rows[0]["dx"] -= width
        raised = aside * 8.0 + (width if align == "left" else 0.0)
        rows.append({**place, "text": power, "dx": raised, "dy": down - 5.0, "fontSize": 10})
    return rows


def _shape(name: str) -> str:
    """Return a model's marker: round for the server's, square for control points, a diamond for the stop."""
    if name in ("Θ^τ+1", "stop"):
        return "diamond"
    return "circle" if name.startswith("Θ") else "square"


def _describe_scene(scene: Scene) -> tuple[str, str]:
    places = {"client": "At the client", "surface": "On the learned surface", "server": "At the server"}
    place = places[scene.view]
    return place, "loss on its training data" if scene.data == "train" else "loss on the global test data"


def _plane_caption(landscape: Landscape, scene: Scene) -> str:
    if scene.view == "surface":
        return (
            "The surface that the client learned, on its domain: lengths are not those of parameter space. "
            "Solid: the geodesic from Θ^t to C; dashed: the straight way."
        )
    names = [mark.name for mark in scene.marks]
    prime = "" if scene.view == "client" else "′"
    origin, other = ("Θ^t", "Θ^τ") if scene.view == "client" else ("Θ^τ", "Θ^t")
    inner = f"B{prime}" if landscape.degree == 2 else f"P1{prime}"
    if landscape.is_surface:
        inner = "the middle of the geodesic"
    third = other if other in names else inner
    parts = [f"The plane through {origin}, {third} and C{prime}; one chord is {scene.unit:.4g} long."]
    if scene.view == "server":
        is_apart = third == inner and landscape.version > landscape.base_version
        parts.append(_server_words(landscape, is_apart=is_apart))
    parts.append("Solid: the curve; dashed: the chord." if scene.curve else "Dashed: the straight update.")
    if scene.off_plane > 1e-3:
        kind = "geodesic" if landscape.is_surface else f"curve of degree {landscape.degree}"
        parts.append(
            f"A {kind} does not lie in a plane: it and its control points are projected, and it leaves the "
            f"plane by up to {scene.off_plane:.2g} chords."
        )
    parts.append(_buffer_words(landscape, scene))
    return " ".join(part for part in parts if part)


def _server_words(landscape: Landscape, *, is_apart: bool) -> str:
    """Describe the server's plane."""
    start = (
        "The server corrects the offsets and starts from its own model Θ^τ, outside of the client's plane"
        if is_apart
        else "The server's own move, from its model Θ^τ along the corrected offsets"
    )
    end = (
        "the diamond is where this update alone would take it; a buffer adds up several such steps."
        if landscape.is_buffered
        else "the diamond is Θ^τ+1, where it stopped."
    )
    return f"{start}; {end}"


def _buffer_words(landscape: Landscape, scene: Scene) -> str:
    if not landscape.has_statistics:
        return ""
    whose = "the client's after training" if scene.view == "client" else "the server's after the update"
    return f"Running statistics are {whose}, the same at every point."


def _profile_caption(landscape: Landscape, scene: Scene) -> str:
    ends = "Θ^t to C" if scene.view == "client" else "Θ^τ to C′"
    if not scene.curve_losses:
        parts = [f"The straight line from {ends}."]
    else:
        known = _known_losses(scene.curve_losses), _known_losses(scene.chord_losses)
        highest = [max(losses, default=0.0) for losses in known]
        means = [sum(losses) / max(1, len(losses)) for losses in known]
        parts = [
            f"From {ends}. Highest loss {highest[0]:.4g} on the curve, {highest[1]:.4g} on the chord; mean "
            f"{means[0]:.4g} and {means[1]:.4g}."
        ]
    if scene.view == "client":
        own = "curve" if scene.curve_losses else "line"
        parts.append(f"The vertical line is t*, where the server's step ended on its own, corrected {own}.")
    else:
        parts.append(
            f"The vertical line is t*, where the step ended; the marker on the chord is as far from Θ^τ "
            f"({scene.stop.share:.3g} chords)."
            if scene.curve_losses
            else "The vertical line and the marker are where the step ended."
        )
    return " ".join(parts)


def _known_losses(losses: Sequence[float | None]) -> list[float]:
    return [loss for loss in losses if loss is not None]
