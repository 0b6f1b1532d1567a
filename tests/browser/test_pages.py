"""Every page is quiet, whole and readable, on screen and on paper, and answers mouse, keys and touch."""

import json

import pytest

from conftest import PAGES, VIEWS

OVERFLOW = """() => [...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, svg') && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 80))"""
COLOURED = """name => [...document.querySelectorAll(`.plot [stroke='${name}'], .plot [fill='${name}']`)]
  .filter(mark => !mark.closest('#runs')).length"""
"""How many marks have a colour, but for the figures of a single run, where colours are outcomes."""
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
    written = {file.stem for file in (opened.file.parent / "figures").glob("*.svg")}
    shown = {figure.get_attribute("data-figure") for figure in opened.page.locator("figure").all()}
    assert written <= shown
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
def test_a_key_switches_its_series_off_and_on_in_every_figure(open_page, name, press):
    page = open_page(name, "light").page
    key = page.locator(".legend .key").nth(1)
    before = page.evaluate(COLOURED, "var(--series-1)")
    others = page.evaluate(COLOURED, "var(--series-0)")
    assert before > 1
    for pressed in ("false", "true"):
        key.click() if press == "click" else key.press(press)
        assert key.get_attribute("aria-pressed") == pressed
        page.mouse.move(1, 1)
        expected = before if pressed == "true" else 0
        for _ in range(100):  # the policy of the page forbids Playwright's own way to wait
            if page.evaluate(COLOURED, "var(--series-1)") == expected:
                break
            page.wait_for_timeout(100)
        assert page.evaluate(COLOURED, "var(--series-1)") == expected
        assert page.evaluate(COLOURED, "var(--series-0)") == others


@every_page
def test_every_download_holds_the_figure(open_page, name, tmp_path):
    page = open_page(name, "dark").page
    figure = page.locator("figure").first
    stem = figure.get_attribute("data-figure")
    found = {}
    for words in ("SVG", "PNG", "CSV", "Specification"):
        with page.expect_download() as waiting:
            figure.get_by_role("button", name=words, exact=True).click()
        waiting.value.save_as(tmp_path / words)
        found[words] = waiting.value.suggested_filename
    assert found["SVG"] == f"{stem}.svg"
    assert found["PNG"] == f"{stem}.png"
    assert found["CSV"].startswith(f"{stem}.")
    svg = (tmp_path / "SVG").read_text()
    assert svg.startswith("<svg")
    assert "var(" not in svg  # a file has the light colours, whatever the screen has
    assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "CSV").read_text().splitlines()) > 1
    specification = json.loads((tmp_path / "Specification").read_text())
    assert specification["$schema"].endswith("vega-lite/v6.json")
    assert any(specification["datasets"].values())
