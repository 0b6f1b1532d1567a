"""The figures over all runs as PNG: drawn whole, words included, on a machine with or without fonts."""

import re
import struct
import sys
import zlib
from pathlib import Path

import pytest

from asyncmanifold.report import write_report
from asyncmanifold.report.figure_files import SCALE, as_png
from test_report import COMPARISONS, write_run

DRAWING = (
    '<svg xmlns="http://www.w3.org/2000/svg" class="fig" width="60" height="20"><style>'
    ".fig text{{fill:#000000;font:12px system-ui,sans-serif}}.f.c0{{fill:#0072b2}}</style>"
    '<rect width="100%" height="100%" fill="#ffffff"/>{}</svg>'
)


def pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    """Decode eight-bit RGBA: width, height and every pixel."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        chunks[kind] = chunks.get(kind, b"") + png[place + 8 : place + 8 + length]
        place += length + 12
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 6)
    rows, above = [], bytes(4 * width)
    data = zlib.decompress(chunks[b"IDAT"])
    for start in range(0, len(data), 4 * width + 1):
        above = unfiltered(data[start], data[start + 1 : start + 4 * width + 1], above)
        rows += [above[i : i + 4] for i in range(0, 4 * width, 4)]
    return width, height, rows


def unfiltered(kind: int, row: bytes, above: bytes) -> bytes:
    """Undo one of PNG's five filters on a row."""
    out = bytearray(4) + bytearray(row)
    for i, value in enumerate(row):
        left, up, corner = out[i], above[i], above[i - 4] if i >= 4 else 0
        nearest = min((left, up, corner), key=lambda v: abs(left + up - corner - v))
        out[i + 4] = (value + (0, left, up, (left + up) // 2, nearest)[kind]) % 256
    return bytes(out[4:])


def inked(body: str) -> int:
    """Count the pixels of a drawing that are not its white ground."""
    width, height, found = pixels(as_png(DRAWING.format(body)))
    assert (width, height) == (60 * SCALE, 20 * SCALE)
    return sum(pixel != b"\xff\xff\xff\xff" for pixel in found)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


def test_every_figure_over_all_runs_is_there_at_three_times_its_size(run, capsys):
    write_report(run)
    figures = run / "figures"
    assert {file.stem for file in figures.glob("*.png")} == set(COMPARISONS)
    for file in figures.glob("*.png"):
        svg = file.with_suffix(".svg").read_text()
        size = [round(SCALE * float(v)) for v in re.search(r'width="(\d+)" height="([\d.]+)"', svg).groups()]
        assert list(struct.unpack(">II", file.read_bytes()[16:24])) == size, file.name
    assert capsys.readouterr().err == ""


def test_a_figure_has_its_marks_and_its_words(run):
    write_report(run)
    svg = (run / "figures/gini.svg").read_text()
    assert (run / "figures/gini.png").read_bytes() == as_png(svg)
    svg = svg.replace('width="460"', 'width="153"', 1)  # smaller, to be decoded soon
    _, _, whole = pixels(as_png(svg))
    _, _, wordless = pixels(as_png(re.sub(r"<text.*?</text>", "", svg)))
    blue = bytes.fromhex("0072b2ff")
    assert whole.count(blue) == wordless.count(blue) > 1000
    assert sum(a != b for a, b in zip(whole, wordless, strict=True)) > 500


def test_styles_by_class_dashes_and_opacity_are_drawn():
    line = '<path d="M0 10H60" stroke="#000000" stroke-width="2"{}/>'
    assert inked("") == 0
    assert inked('<rect class="f c0" width="10" height="10"/>') == (10 * SCALE) ** 2
    assert inked(line.format("")) == 60 * SCALE * 2 * SCALE
    assert inked(line.format(' stroke-dasharray="5 5"')) == 30 * SCALE * 2 * SCALE
    faint = '<rect width="60" height="20" fill="#000000" fill-opacity=".2"/>'
    assert set(pixels(as_png(DRAWING.format(faint)))[2]) == {b"\xcc\xcc\xcc\xff"}


@pytest.mark.parametrize("sign", "aZ9−±–…·*%é漢")
def test_no_character_is_lost(sign):
    assert inked(f'<text x="5" y="15">{sign}</text>') > 10


@pytest.mark.parametrize("missing", ["resvg_py", "font_source_sans_pro"])
def test_without_the_extra_one_line_says_so_and_the_report_is_whole(run, capsys, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    page = write_report(run)
    assert page.exists()
    assert len(list((run / "figures").glob("*.svg"))) == len(COMPARISONS) + 3
    assert not list((run / "figures").glob("*.png"))
    expected = "report: no PNG figures: they need pip install 'asyncmanifold[report]'\n"
    assert capsys.readouterr().err == expected
