"""What only the report has: evaluations to read, a view to zoom, a table to sort, a chooser of runs."""

import pytest

RUNS = [f"{method}, seed {seed}" for method in ("fedasync", "asyncbezier") for seed in (0, 1)]
LABELS = "plot => [...plot.querySelectorAll('.role-axis-label text')].map(label => label.textContent).sort()"
EVALUATION = 'path[aria-roledescription="point"][aria-label*="seed: 1"]'
TOOLTIP = "#vg-tooltip-element.visible"


@pytest.fixture
def scores(open_page):
    """Return the page and the plot of scores against updates."""
    page = open_page("report", "light").page
    plot = page.locator('figure[data-figure="score-updates"] .plot')
    plot.scroll_into_view_if_needed()
    return page, plot


def test_pointing_reads_evaluations_and_nothing_between(scores):
    page, plot = scores
    point = plot.locator(EVALUATION).last
    point.hover()
    page.wait_for_selector(TOOLTIP)
    words = dict(row.split("\t") for row in page.locator(f"{TOOLTIP} tr").all_inner_texts())
    assert words["method"] in ("fedasync", "asyncbezier")
    assert words["seed"] == "1"
    assert words["accuracy"].endswith("%")
    assert set(words) == {"method", "seed", "accuracy", "accepted updates", "virtual time"}
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.wait_for_selector(TOOLTIP, state="hidden")


def test_a_wheel_with_a_key_zooms_and_a_double_click_goes_back(scores):
    page, plot = scores
    box = plot.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 3
    before = plot.evaluate(LABELS)
    page.mouse.move(*middle)
    page.mouse.wheel(0, -100)
    page.wait_for_timeout(300)
    assert plot.evaluate(LABELS) == before  # a plain wheel scrolls
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    page.keyboard.down("Shift")
    for _ in range(5):
        page.mouse.wheel(0, -200)
    page.keyboard.up("Shift")
    page.wait_for_timeout(300)
    assert plot.evaluate(LABELS) != before
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    page.wait_for_timeout(300)
    assert plot.evaluate(LABELS) == before


def test_the_whole_range_is_one_click_away(scores):
    page, _ = scores
    ranges = page.get_by_role("button", name="Whole range")
    count = ranges.count()
    ranges.first.click()
    assert page.get_by_role("button", name="Useful range").count() == count > 1


def test_the_table_sorts_by_any_column(open_page):
    page = open_page("report", "light").page
    heads = page.locator("table.sortable thead th")
    for place in range(1, heads.count()):
        for direction in ("ascending", "descending"):
            heads.nth(place).get_by_role("button").click()
            assert heads.nth(place).get_attribute("aria-sort") == direction
            cells = page.locator(f"table.sortable tbody tr > :nth-child({place + 1})")
            values = [cell.get_attribute("data-value") or cell.inner_text() for cell in cells.all()]
            known = [float(value) for value in values if value not in ("", "–")]
            assert known == sorted(known, reverse=direction == "descending")


def test_the_chooser_shows_one_run_at_a_time(open_page, check_figure):
    page = open_page("report", "light").page
    assert page.locator("figure:visible").count() == 10 + 3
    chooser = page.get_by_label("Run:")
    assert chooser.locator("option").all_text_contents() == RUNS
    for name in (RUNS[0], RUNS[3]):
        chooser.select_option(name)
        page.wait_for_timeout(1500)
        figures = page.locator("#runs figure").all()
        assert len(figures) == 3
        for figure in figures:
            assert figure.locator("figcaption").inner_text().startswith(name)
            check_figure(figure)


def test_paper_has_no_controls(open_page):
    screen, paper = open_page("report", "light").page, open_page("report", "print").page
    for control in (".chooser", ".hint", ".tools"):
        assert screen.locator(control).first.is_visible()
        assert not paper.locator(control).first.is_visible()
