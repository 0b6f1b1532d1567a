"""Write figures to files: SVG, and PNG for documents that cannot include SVG.

resvg, from the ``report`` extra, draws the PNG. The font comes with the extra too, so that every machine
draws the same bytes; a character that the font lacks is drawn as a crossed box.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.resources import as_file, files
from pathlib import Path

from asyncmanifold.errors import InputError
from asyncmanifold.files import write_atomically
from asyncmanifold.report.svg import Figure, standalone_svg

SCALE = 3
"""PNG pixels per SVG pixel: more than 400 dots per inch in a paper's column."""
NEEDED = "no PNG figures: they need pip install 'asyncmanifold[report]'"
FAMILY, FONT = "Source Sans Pro", "files/SourceSansPro-Regular.ttf"


def make_figures_folder(out: Path) -> Path:
    """Make and return the folder for the figures in ``out``; an ``InputError`` says why it cannot be made."""
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}") from error
    return out / "figures"


def write_svgs(folder: Path, figures: Iterable[Figure]) -> None:
    """Write the figures as SVG."""
    for figure in figures:
        write_atomically(folder / f"{figure.name}.svg", standalone_svg(figure).encode())


def write_pngs(folder: Path, figures: Iterable[Figure]) -> None:
    """Write the figures as PNG, or print one line that says why not."""
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
