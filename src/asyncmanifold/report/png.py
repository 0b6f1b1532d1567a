"""Figures as PNG, for documents that take no SVG; drawn by resvg, which the ``report`` extra brings.

The font comes with the extra too, so that a machine without fonts draws the same bytes; a character that it
lacks is drawn as a crossed box.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.resources import as_file, files
from pathlib import Path

from asyncmanifold.files import write_atomically
from asyncmanifold.report.drawing import Figure, standalone_svg

SCALE = 3
"""A PNG's pixels for one of its SVG's: more than 400 dots an inch in a paper's column."""
NEEDED = "no PNG figures: they need pip install 'asyncmanifold[report]'"
FAMILY, FONT = "Source Sans Pro", "files/SourceSansPro-Regular.ttf"


def write_pngs(folder: Path, figures: Iterable[Figure]) -> None:
    """Write the figures as PNG, or say in one line why not."""
    try:
        for figure in figures:
            write_atomically(folder / f"{figure.name}.png", as_png(standalone_svg(figure)))
    except ImportError as error:
        print(f"report: {error}", file=sys.stderr)


def as_png(svg: str) -> bytes:
    """Return the drawing as a PNG file's bytes; an ImportError says what to install."""
    try:
        import resvg_py

        font = files("font_source_sans_pro") / FONT
    except ImportError as error:
        raise ImportError(NEEDED) from error
    with as_file(font) as path:
        return resvg_py.svg_to_bytes(
            svg_string=svg,
            zoom=SCALE,
            skip_system_fonts=True,
            font_files=[str(path)],
            font_family=FAMILY,
            sans_serif_family=FAMILY,
        )
