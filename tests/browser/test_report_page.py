"""What only the report has: a chooser of runs, and a hint about the keys."""

RUNS = [f"{method}, seed {seed}" for method in ("fedasync", "asyncbezier") for seed in (0, 1)]


def test_the_chooser_shows_one_run_at_a_time(open_page, check_figure):
    page = open_page("report", "light").page
    assert page.locator("figure:visible").count() == 8 + 3
    chooser = page.get_by_label("Run:")
    assert chooser.locator("option").all_text_contents() == RUNS
    for name in RUNS:
        chooser.select_option(name)
        figures = page.locator("#runs figure:visible").all()
        assert len(figures) == 3
        for figure in figures:
            assert figure.locator("figcaption").inner_text().startswith(name)
            check_figure(figure)


def test_paper_has_no_controls(open_page):
    screen, paper = open_page("report", "light").page, open_page("report", "print").page
    for control in (".chooser", ".hint"):
        assert screen.locator(control).is_visible()
        assert not paper.locator(control).is_visible()
