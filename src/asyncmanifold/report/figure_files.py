"""Write figures to files: SVG, and PNG for documents that cannot include SVG.

vl-convert, from the ``report`` extra, draws both from one specification. Its own font comes first, so that
every machine draws the same bytes.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from asyncmanifold.errors import InputError
from asyncmanifold.files import write_atomically
from asyncmanifold.report.drawing_library import vl_convert
from asyncmanifold.report.figure import Figure, Specification, as_script

SPACE = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", SPACE)
WIDTH = 440
"""The width of a plot in a file: about a paper's column, so that its words are readable there."""
SCALE = 2.5
"""PNG pixels per SVG pixel: more than 300 dots per inch in a paper's column."""


def make_figures_folder(out: Path) -> Path:
    """Make and return the folder for the figures in ``out``; an ``InputError`` says why it cannot be made."""
    vl_convert()  # a missing library is refused before any work, too
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}") from error
    return out / "figures"


def write_figures(folder: Path, figures: Iterable[Figure]) -> None:
    """Write every figure as SVG and PNG."""
    for figure in figures:
        drawing = as_svg(figure)
        write_atomically(folder / f"{figure.name}.svg", drawing.encode())
        write_atomically(folder / f"{figure.name}.png", as_png(drawing))


def as_svg(figure: Figure) -> str:
    """Return the figure as an SVG file on a light background; the same figure gives the same string."""
    specification = _without_tooltips(figure.complete())
    if "layer" in specification or "mark" in specification:
        specification.setdefault("width", WIDTH)
    drawn: str = vl_convert().vegalite_to_svg(as_script(specification), allowed_base_urls=[])
    return _clipped_once(_renumbered(drawn))


def as_png(drawing: str) -> bytes:
    """Return an SVG drawing as a PNG file's bytes."""
    drawn: bytes = vl_convert().svg_to_png(drawing, scale=SCALE)
    return drawn


@cache
def page_library() -> str:
    """Return Vega, Vega-Lite and their loader as one script; it takes seconds, once a process."""
    bundle: str = vl_convert().javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _without_tooltips(specification: Specification) -> Specification:
    """Leave out the invisible dots that a reader of a page points at."""
    layers = [layer for layer in specification.get("layer", []) if layer.get("name") != "evaluations"]
    params = [p for p in specification.get("params", []) if "evaluations" not in p.get("views", ())]
    return {**specification, "params": params, **({"layer": layers} if layers else {})}


def _clipped_once(drawing: str) -> str:
    """Clip the lines of a layer together, not one by one, which takes resvg seconds at the size of a PNG."""
    root = ElementTree.fromstring(drawing)
    for group in root.iter(f"{{{SPACE}}}g"):
        if group.get("class", "").endswith("pathgroup"):
            clips = [part.attrib.pop("clip-path") for part in group.iter() if "clip-path" in part.attrib]
            group.attrib |= {"clip-path": clips[0]} if clips else {}
    used = set(re.findall(r"url\(#(\w+)\)", text := ElementTree.tostring(root, encoding="unicode")))
    for parent in list(root.iter()):
        for part in list(parent):
            if part.tag == f"{{{SPACE}}}clipPath" and part.get("id") not in used:
                parent.remove(part)
    return ElementTree.tostring(root, encoding="unicode") if used else text


def _renumbered(drawing: str) -> str:
    """Number identifiers from 0: Vega counts on from one drawing of a process to the next."""
    names: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"{found[1]}{len(names)}")

    return re.sub(r"\b(clip|gradient_)\d+\b", number, drawing)
