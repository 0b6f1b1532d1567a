"""Every page is quiet, whole and readable, on screen and on paper, and answers mouse, keys and touch."""

from math import isfinite

import pytest

from conftest import PAGES, VIEWS

OVERFLOW = """() => [...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, svg') && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 80))"""
NAMES = "root => [...new Set([...root.querySelectorAll('.lines [data-name]')].map(g => g.dataset.name))]"
everywhere = pytest.mark.parametrize(("name", "view"), [(name, view) for name in PAGES for view in VIEWS])
every_page = pytest.mark.parametrize("name", PAGES)


@everywhere
def test_the_page_is_quiet(open_page, name, view):
    """What it must not do is checked as it closes: a word on the console, an error, a request."""
    opened = open_page(name, view)
    opened.page.mouse.wheel(0, 10_000)
    opened.page.wait_for_timeout(200)
    assert opened.page.title()
    assert opened.page.locator("h1").is_visible()


@everywhere
def test_nothing_is_wider_than_the_screen(open_page, name, view):
    page = open_page(name, view).page
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate(OVERFLOW) == []


@everywhere
def test_every_figure_is_drawn(open_page, check_figure, name, view):
    opened = open_page(name, view)
    written = list((opened.file.parent / "figures").glob("*.svg"))
    assert opened.page.locator("figure").count() == len(written)
    for figure in opened.page.locator("figure:visible").all():
        check_figure(figure)


@every_page
def test_the_ground_follows_the_scheme_and_paper_is_white(open_page, name):
    def ground(view):
        return open_page(name, view).page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert ground("light") == ground("print") == "rgb(255, 255, 255)"
    assert max(map(int, ground("dark")[4:-1].split(","))) < 64


@every_page
def test_the_page_prints(open_page, name):
    assert open_page(name, "print").page.pdf().startswith(b"%PDF")


@every_page
@pytest.mark.parametrize("press", ["click", "Enter", " "])
def test_a_key_switches_its_line_off_and_on_in_every_figure(open_page, name, press):
    page = open_page(name, "light").page
    other, chosen = page.locator("body").evaluate(NAMES)
    keys = page.get_by_role("button", name=chosen, exact=True)
    lines = page.locator(f'.lines [data-name="{chosen}"]')
    assert keys.count() == lines.count() > 1
    for key, pressed in ((keys.first, "false"), (keys.last, "true")):
        key.click() if press == "click" else key.press(press)
        assert {one.get_attribute("aria-pressed") for one in keys.all()} == {pressed}
        assert {line.is_visible() for line in lines.all()} == {pressed == "true"}
    assert all(line.is_visible() for line in page.locator(f'.lines [data-name="{other}"]').all())


def point_at(page, figure, *, tap=False):
    """Point into a figure's lines."""
    figure.scroll_into_view_if_needed()
    box = figure.locator("svg").bounding_box()
    place = box["x"] + box["width"] / 2, box["y"] + box["height"] / 3
    page.touchscreen.tap(*place) if tap else page.mouse.move(*place)


@every_page
def test_pointing_reads_the_lines_that_are_shown(open_page, name):
    page = open_page(name, "light").page
    for figure in page.locator("figure:has(.lines)").all():
        names = figure.evaluate(NAMES)
        reading = figure.locator(".read")
        point_at(page, figure)
        heading, *rows = [row.split("\n") for row in reading.locator("div").all_inner_texts()]
        assert heading[0] == figure.locator("h3").inner_text().split(" against ")[1]
        assert sorted(row[0] for row in rows) == sorted(names)
        assert all(isfinite(float(row[1])) for row in [heading, *rows])
        page.mouse.move(1, 1)
        assert reading.count() == 0


@every_page
def test_a_line_that_is_off_is_not_read(open_page, name):
    page = open_page(name, "light").page
    figure = page.locator("figure:has(.lines)").first
    first, second = figure.evaluate(NAMES)
    figure.get_by_role("button", name=first, exact=True).click()
    point_at(page, figure)
    rows = figure.locator(".read div").all_inner_texts()[1:]
    assert [row.split("\n")[0] for row in rows] == [second]


@every_page
def test_a_tap_reads_and_a_tap_elsewhere_ends_it(open_page, name):
    page = open_page(name, "phone").page
    figure = page.locator("figure:has(.lines)").first
    point_at(page, figure, tap=True)
    box, frame = figure.locator(".read").bounding_box(), figure.bounding_box()
    assert frame["x"] <= box["x"]
    assert box["x"] + box["width"] <= frame["x"] + frame["width"]
    page.locator("h1").tap()
    assert figure.locator(".read").count() == 0
