"""The figures over all runs as files: SVG and PNG of one drawing, words included, the same every time."""

import re
import struct
import sys
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import pytest

from asyncmanifold.errors import InputError
from asyncmanifold.report import drawing_library, write_report
from asyncmanifold.report.comparison_figures import comparison_figures
from asyncmanifold.report.figure import Figure
from asyncmanifold.report.figure_files import SCALE, as_png, as_svg, page_library
from asyncmanifold.report.figure_theme import DARK, LIGHT, colours, dashes, shapes
from asyncmanifold.report.finished_runs import find_runs
from asyncmanifold.report.result_table import latex_table
from asyncmanifold.report.run_figures import run_figures
from test_report import COMPARISONS, HOSTILE, write_run

SVG = "{http://www.w3.org/2000/svg}"
WORD = {"type": "text", "fontSize": 14}
ONE = {"data": {"values": [{"x": 1}]}, "width": 60, "height": 20}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """Return the folder of a report about two methods, one of a hostile name."""
    folder = tmp_path_factory.mktemp("drawn")
    write_run(folder / "a", HOSTILE)
    write_run(folder / "b", "plain")
    return write_report(folder).parent


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
        guess = left + up - corner
        nearest = min((abs(guess - v), place, v) for place, v in enumerate((left, up, corner)))[2]
        out[i + 4] = (value + (0, left, up, (left + up) // 2, nearest)[kind]) % 256
    return bytes(out[4:])


def inked(specification: dict) -> int:
    """Count the pixels of a drawing that are not its white ground."""
    _, _, found = pixels(as_png(as_svg(Figure("one", "one", "", specification))))
    return sum(pixel != b"\xff\xff\xff\xff" for pixel in found)


def test_every_figure_is_there_as_svg_and_png_of_one_size(drawn):
    figures = drawn / "figures"
    for ending in ("svg", "png"):
        assert {file.stem for file in figures.glob(f"*.{ending}")} == set(COMPARISONS)
    for file in figures.glob("*.svg"):
        root = ElementTree.parse(file).getroot()
        size = [float(root.get(side)) for side in ("width", "height")]
        assert min(size) > 50, file.name
        png = struct.unpack(">II", file.with_suffix(".png").read_bytes()[16:24])
        assert list(png) == [pytest.approx(SCALE * side, abs=1.5) for side in size], file.name
        assert any("mark-" in e.get("class", "") and len(e) for e in root.iter(f"{SVG}g")), file.name
        text = file.read_text()
        assert not re.search(r"\bNaN\b|Infinity|undefined", text), file.name
        assert {*re.findall(r"\w+://[^\"]*", text)} <= {
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
        }
        assert not list(root.iter(f"{SVG}script"))


def test_the_page_holds_the_library_and_no_word_that_ends_it(drawn):
    page = (drawn / "report.html").read_text()
    assert page_library() in page
    assert page.count("</script>") == 3
    assert 900_000 < len(page) < 1_100_000


def test_a_drawing_is_the_same_every_time():
    clipped = {**ONE, "mark": {"type": "line", "clip": True}, "encoding": {"x": {"field": "x"}}}
    first, second = (as_svg(Figure("one", "one", "", clipped)) for _ in range(2))
    assert 'id="clip0"' in first
    assert first == second
    assert as_png(first) == as_png(second)


@pytest.mark.parametrize("sign", "aZ9−±–…·*%éΘτ′‖½")
def test_no_character_is_lost(sign):
    assert inked({**ONE, "mark": {**WORD, "text": sign}}) > 10


def test_a_word_is_drawn_in_the_middle_of_the_picture():
    assert inked({**ONE, "mark": {**WORD, "text": " "}}) == 0
    assert inked({**ONE, "mark": {"type": "rect", "width": 10, "height": 10}}) == pytest.approx(
        (10 * SCALE) ** 2, rel=0.1
    )


@pytest.mark.parametrize("missing", ["vl_convert"])
def test_without_the_extra_one_line_says_so_before_any_work(tmp_path, monkeypatch, missing):
    write_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, missing, None)
    drawing_library._library.cache_clear()
    needed = r"^figures need pip install 'asyncmanifold\[report\]' \(vl-convert is missing\)$"
    with pytest.raises(InputError, match=needed):
        write_report(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    monkeypatch.undo()
    drawing_library._library.cache_clear()


# Colours

VISIONS = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
LMS = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566))
LMS += ((0.0883024619, 0.2817188376, 0.6299787005),)
LAB = ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099))
LAB += ((0.0259040371, 0.7827717662, -0.8086757660),)


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def seen(colour: str, vision: str) -> list[float]:
    """Return a colour's place in Oklab, as a reader of one kind of vision sees it."""
    light = [min(1.0, max(0.0, c)) for c in times(VISIONS[vision], linear(colour))]
    return times(LAB, [c ** (1 / 3) for c in times(LMS, light)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(times([[0.2126, 0.7152, 0.0722]], linear(c))[0] for c in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_sixteen_colours_are_apart_for_every_reader(theme, vision):
    """As far apart as the seven of Okabe and Ito: 0.156 in full colour vision, 0.076 in the worst other."""
    found = [seen(colour, vision) for colour in theme.series]
    assert len(set(theme.series)) == 16
    nearest = min(
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        for place, one in enumerate(found)
        for other in found[:place]
    )
    assert nearest > (0.125 if vision == "full" else 0.075)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_stands_out_from_the_ground(theme):
    assert min(contrast(colour, theme.background) for colour in theme.series) > 2.1
    assert contrast(theme.text, theme.background) > 7
    assert contrast(theme.quiet, theme.background) > 4.5


def test_thirty_two_methods_differ_without_colour():
    assert len({(shape, *dash) for shape, dash in zip(shapes(32), dashes(32), strict=True)}) == 32
    assert colours(17)[16] == colours(1)[0]


# Table

WIDE = {"mean": 0.8888, "sd": 0.0888, "count": 3}
COUNT = {"mean": 888.0, "sd": 88.0, "count": 3}


def test_the_latex_table_fits_the_column_of_a_two_column_paper():
    """At \\footnotesize, a digit of Computer Modern is 4.25 points wide, and 3.0 when lowered."""
    row = dict.fromkeys(("final", "last", "best", "gini"), WIDE) | {"theil": {**WIDE, "mean": 0.0088}}
    row |= {"rounds_to_target": COUNT, "time_to_target": COUNT, "runs": 3, "scores": {}}
    row |= {"metric": "accuracy", "lower_is_better": []}
    text = latex_table({"asyncbezier-ed": row, "fedasync": row})
    cells = next(line for line in text.splitlines() if line.startswith("asyncbezier-ed")).split(" & ")
    assert len(cells) == 6
    width = 4.25 * len(cells[0]) + 2 * 2.5 * (len(cells) - 1)
    for cell in cells[1:]:
        number, _, lowered = cell.removesuffix(r" \\").partition(r"\textsubscript{$\pm$")
        width += 4.25 * len(number) + 4.7 + 3.0 * len(lowered.rstrip("}"))
    assert 180 < width < 240  # points: the column of most conferences is 237 to 252 wide
    empty = {**row, "time_to_target": {"mean": None, "sd": None, "count": 0}}
    assert "& time" not in latex_table({"a": empty, "b": empty})


# Specifications


def test_every_specification_is_valid_vega_lite(tmp_path):
    from altair import Chart
    from jsonschema import ValidationError

    for place in range(6):
        write_run(tmp_path / str(place), f"method-{place}")
    found = find_runs(tmp_path)
    figures = [*comparison_figures(found), *run_figures(found.runs[0])]
    assert [figure.name for figure in figures][2] == "score-each"
    for figure in figures:
        Chart.from_dict({**figure.complete(), "datasets": {}}, validate=True)
    with pytest.raises(ValidationError, match="lien"):
        Chart.from_dict({"mark": "lien", "encoding": {}}, validate=True)
