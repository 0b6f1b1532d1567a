"""The figures of the loss around one update: planes with contours, and the loss along the curve."""

from __future__ import annotations

from collections.abc import Sequence

from asyncmanifold.landscape.numbers import Landscape, Mark, Scene
from asyncmanifold.report import svg
from asyncmanifold.report.contours import Place, contour, levels
from asyncmanifold.report.palette import marker
from asyncmanifold.report.svg import LEFT, RIGHT, AxisScale, Figure, Plot, number

COLOURS = ("#440154", "#46337e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#9fda3a", "#fde725")
"""Viridis, from low loss to high: its lightness increases, so it is readable in grey and with any colour
vision. Marks on it are white with a dark edge, on light and dark pages."""
CURVE, CHORD = 0, 1
"""The series of the profiles."""
STOP = 3
"""The marker of where the server stopped."""


def landscape_figures(landscape: Landscape) -> list[Figure]:
    """Return the planes and the profiles: first the client's, then the server's."""
    return [
        draw(landscape, scene)
        for view in ("client", "server")
        for draw in (plane_figure, profile_figure)
        for scene in landscape.scenes
        if scene.view == view
    ]


def plane_figure(landscape: Landscape, scene: Scene) -> Figure:
    """Return a plane with the loss as filled contours, and the curve, the chord and the models on it."""
    plot = Plot(
        AxisScale(scene.xs[0], scene.xs[-1], LEFT, RIGHT), AxisScale(scene.ys[0], scene.ys[-1], 426.0, 26.0)
    )
    steps = levels(scene.losses, len(COLOURS) - 1)
    stop_last = sorted(scene.marks, key=lambda mark: _shape(mark.name) == STOP)
    parts = [
        svg.axes(plot, "along the chord (in chords)", "across"),
        _draw_contours(plot, scene, steps),
        _line(plot, [(0.0, 0.0), (1.0, 0.0)], "6 4"),
        _line(plot, scene.curve, "") if scene.curve else "",
        *(_mark(plot, mark) for mark in stop_last),
        _colour_key(steps, 474.0),
    ]
    place, data = _describe_scene(scene)
    name = f"landscape-plane-{scene.view}-{scene.data}"
    return Figure(name, f"{place}: {data}", _plane_caption(landscape, scene), "".join(parts), 512.0)


def profile_figure(landscape: Landscape, scene: Scene) -> Figure:
    """Return the loss along the curve and along the chord."""
    values = _known_losses([*scene.curve_losses, *scene.chord_losses])
    plot = Plot(AxisScale(0.0, 1.0, LEFT, RIGHT), svg.scale(values, 270.0, 26.0))
    parts = [svg.axes(plot, "t", "loss")]
    x = plot.x(min(1.0, scene.stop.t))
    parts.append(svg.path(f"M{number(x)} 270V26", "target"))
    parts.append(_profile(plot, scene, CURVE, "curve", scene.curve_losses))
    parts.append(_profile(plot, scene, CHORD, "chord", scene.chord_losses))
    anchor, aside = ("end", -5.0) if scene.stop.t > 0.7 else ("start", 5.0)
    parts.append(svg.text(x + aside, plot.y.end + 11, f"t* = {scene.stop.t:.3g}", anchor=anchor, kind="over"))
    key, height = svg.legend(["curve", "chord"], 312.0) if scene.curve_losses else ("", 0.0)
    body = svg.lines_group(plot, parts) + key
    place, data = _describe_scene(scene)
    name = f"landscape-profile-{scene.view}-{scene.data}"
    caption = _profile_caption(landscape, scene)
    return Figure(name, f"{place}: {data} against t", caption, body, 312.0 + height)


def _draw_contours(plot: Plot, scene: Scene, steps: Sequence[float]) -> str:
    """Return filled contour bands, each painted over the lower ones, with thin lines between."""
    left, top = number(LEFT), number(plot.y.end)
    size = f'width="{number(RIGHT - LEFT)}" height="{number(plot.y.start - plot.y.end)}"'
    is_known = any(loss is not None for row in scene.losses for loss in row)
    parts = [f'<rect x="{left}" y="{top}" {size} fill="{COLOURS[0]}"/>'] if is_known else []
    lines: list[str] = []
    for level, colour in zip(steps, COLOURS[1:], strict=False):
        found = contour(scene.xs, scene.ys, scene.losses, level)
        d = "".join(svg.polyline([plot.place(*p) for p in area]) + "z" for area in found.areas)
        parts.append(f'<path fill="{colour}" stroke="{colour}" stroke-width=".7" d="{d}"/>')
        lines.extend(svg.polyline([plot.place(*end) for end in edge]) for edge in found.edges)
    thin = 'fill="none" stroke="#fff" stroke-opacity=".45" stroke-width=".8" stroke-linecap="round"'
    parts.append(f'<path {thin} d="{"".join(lines)}"/>' if lines else "")
    return "".join(parts)


def _line(plot: Plot, places: Sequence[Place], pattern: str) -> str:
    """Return a white line with a dark edge."""
    d = svg.polyline([plot.place(*place) for place in places])
    dashes = f' stroke-dasharray="{pattern}"' if pattern else ""
    return (
        f'<path fill="none" stroke="#000" stroke-opacity=".65" stroke-width="4.6" d="{d}"{dashes}/>'
        f'<path fill="none" stroke="#fff" stroke-width="2.4" d="{d}"{dashes}/>'
    )


def _mark(plot: Plot, mark: Mark) -> str:
    """Return a model's marker and name; white with a dark edge is visible on every colour."""
    x, y = plot.x(mark.x), plot.y(mark.y)
    shape = marker(_shape(mark.name), number(x), number(y))
    loss = "not finite" if mark.loss is None else f"{mark.loss:.4g}"
    return (
        f"<g><title>{svg.escape(mark.name.replace('^', ''))}: loss {loss}</title>"
        f'<path fill="#fff" stroke="#000" stroke-width="1.6" d="{shape}"/>{_label(x, y, mark)}</g>'
    )


def _label(x: float, y: float, mark: Mark) -> str:
    """Return a mark's label; the origin's is below it, so that it does not cover the end of a short step."""
    is_origin = (mark.x, mark.y) == (0.0, 0.0) and mark.name.startswith("Θ")
    anchor, aside = ("end", -8.0) if is_origin or x > RIGHT - 50 else ("start", 8.0)
    style = "fill:#000;paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-linejoin:round;font-weight:600"
    name, _, power = mark.name.partition("^")
    raised = f'<tspan dy="-5" font-size="10">{svg.escape(power)}</tspan>' if power else ""
    place = f'x="{number(x + aside)}" y="{number(y + (18.0 if is_origin else -8.0))}"'
    return f'<text {place} text-anchor="{anchor}" style="{style}">{svg.escape(name)}{raised}</text>'


def _shape(name: str) -> int:
    """Return a model's marker: round for the server's, square for control points, a diamond for the stop."""
    if name in ("Θ^τ+1", "stop"):
        return STOP
    return 0 if name.startswith("Θ") else 1


def _colour_key(steps: Sequence[float], top: float) -> str:
    """Return the colour legend with the losses between colours."""
    width = (RIGHT - LEFT) / len(COLOURS)
    parts = [svg.text(6, top + 10, "loss", kind="small")]
    for place, colour in enumerate(COLOURS[: len(steps) + 1]):
        x = LEFT + place * width
        box = f'x="{number(x)}" y="{number(top)}" width="{number(width)}" height="12"'
        parts.append(f'<rect {box} fill="{colour}"/>')
        if place:
            parts.append(svg.text(x, top + 27, f"{steps[place - 1]:.4g}", anchor="middle", kind="small"))
    return "".join(parts)


def _profile(plot: Plot, scene: Scene, index: int, name: str, losses: Sequence[float | None]) -> str:
    """Return one line, with a marker where the server stopped on it or would have stopped."""
    places = [plot.place(t, y) for t, y in zip(scene.ts, losses, strict=False) if y is not None]
    if not places:
        return ""
    parts = [svg.series_line(svg.polyline(places), index)]
    stop = scene.stop
    t, loss = (stop.t, stop.curve_loss) if index == CURVE else (stop.share, stop.chord_loss)
    if scene.view == "server" and loss is not None and t <= 1.0:
        parts.append(svg.series_markers([plot.place(t, loss)], index))
    return f'<g data-series="{index}" data-name="{name}">' + "".join(parts) + "</g>"


def _describe_scene(scene: Scene) -> tuple[str, str]:
    place = "At the client" if scene.view == "client" else "At the server"
    return place, "loss on its training data" if scene.data == "train" else "loss on the global test data"


def _plane_caption(landscape: Landscape, scene: Scene) -> str:
    names = [mark.name for mark in scene.marks]
    prime = "" if scene.view == "client" else "′"
    origin, other = ("Θ^t", "Θ^τ") if scene.view == "client" else ("Θ^τ", "Θ^t")
    inner = f"B{prime}" if landscape.degree == 2 else f"P1{prime}"
    third = other if other in names else inner
    parts = [f"The plane through {origin}, {third} and C{prime}; one chord is {scene.unit:.4g} long."]
    if scene.view == "server":
        is_apart = third == inner and landscape.version > landscape.base_version
        parts.append(_server_words(landscape, is_apart=is_apart))
    parts.append("Solid: the curve; dashed: the chord." if scene.curve else "Dashed: the straight update.")
    if scene.off_plane > 1e-3:
        parts.append(
            f"A curve of degree {landscape.degree} does not lie in a plane: it and its control points are "
            f"projected, and it leaves the plane by up to {scene.off_plane:.2g} chords."
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
