"""Pages made from small real runs, opened from disk in a headless Chromium that writes down what it does."""

import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Locator, Page, sync_playwright

from asyncmanifold.commands.cli import main
from asyncmanifold.report import write_report
from tiny import CLOCK, TRAINING, make_run, make_task, simulated

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1200, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1200, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 400, "height": 800}, "has_touch": True},
    "print": {"color_scheme": "dark", "viewport": {"width": 794, "height": 1123}},
}
"""How a reader may look at a page; print starts from a dark screen."""


def make_report(folder: Path) -> Path:
    """Two methods with two seeds each."""
    for method in ("fedasync", "asyncbezier"):
        for seed in (0, 1):
            simulated(
                make_task(),
                method,
                training=TRAINING,
                schedule=CLOCK,
                run=make_run(seed=seed),
                out=folder / method / f"seed-{seed}",
            )
    return write_report(folder)


def make_landscape(folder: Path) -> Path:
    """One update of a short run."""
    run = str(folder / "run")
    assert main(["run", "digits", "--method", "asyncbezier", "--set", "updates=10", "--out", run]) == 0
    coarse = ["--grid", "7", "--examples", "64", "--quiet"]
    assert main(["landscape", run, *coarse, "--out", str(folder)]) == 0
    return folder / "landscape.html"


def make_theory(folder: Path) -> Path:
    """Two short lengths of a study."""
    short = ["--lengths", "8,16", "--seeds", "0,1", "--method", "asyncsgd", "--quiet"]
    assert main(["theory", *short, "--out", str(folder)]) == 0
    return folder / "theory.html"


PAGES: dict[str, Callable[[Path], Path]] = {
    "report": make_report,
    "landscape": make_landscape,
    "theory": make_theory,
}
"""Every page that the package writes, by how a test makes it in an empty folder."""


MARKS = "svg .role-mark path, svg .role-mark rect, svg .role-mark line"
"""What a figure shows, without its axes and legends."""
HIDE = "(plot, marks) => plot.querySelectorAll(marks).forEach(mark => { mark.style.visibility = 'hidden'; })"
CHANGED = """async pictures => {
  const [one, other] = await Promise.all(pictures.map(async picture => {
    const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + picture)).blob());
    const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height).data;
  }));
  let count = 0;
  for (let i = 0; i < one.length; i += 4)
    count += [0, 1, 2].some(c => Math.abs(one[i + c] - other[i + c]) > 24);
  return count;
}"""
"""How many pixels differ clearly between two screenshots of one size."""


@dataclass
class Opened:
    """A page in the browser, its file, and what it did that a page should not."""

    page: Page
    file: Path
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program)
        except Error as error:
            reason = str(error).splitlines()[0]
            pytest.exit(f"no Chromium: none of {', '.join(PROGRAMS)} starts, nor Playwright's ({reason})", 1)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def check_figure(browser: Browser) -> Callable[[Locator], None]:
    """Return a check: a frame with a size, marks and words inside, and marks that can be seen."""
    judge = browser.new_page()

    def check(figure: Locator) -> None:
        plot = figure.locator(".plot")
        plot.scroll_into_view_if_needed()
        drawing, frame = plot.locator("svg").bounding_box(), figure.bounding_box()
        assert drawing is not None
        assert frame is not None
        assert drawing["width"] > 200
        assert drawing["height"] > 50
        assert drawing["x"] >= frame["x"]
        assert drawing["x"] + drawing["width"] <= frame["x"] + frame["width"] + 1
        shown = plot.screenshot()
        plot.evaluate(HIDE, MARKS)
        pictures = [b64encode(picture).decode() for picture in (shown, plot.screenshot())]
        assert judge.evaluate(CHANGED, pictures) > 100
        assert figure.locator("figcaption").is_visible()

    return check


@pytest.fixture(scope="session")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a page's file, made when it is first asked for."""
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            made[name] = PAGES[name](tmp_path_factory.mktemp(name))
        return made[name]

    return find


@pytest.fixture
def open_page(browser: Browser, file_of: Callable[[str], Path]) -> Iterator[Callable[[str, str], Opened]]:
    """Return a way to open a page in a view; no page may complain or ask for more until the test ends."""
    opened: list[Opened] = []

    def start(name: str, view: str) -> Opened:
        page = browser.new_context(**VIEWS[view]).new_page()
        new = Opened(page, file_of(name))
        opened.append(new)
        page.on("console", lambda message: new.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: new.complaints.append(f"error: {error}"))
        page.on("request", lambda request: new.requests.append(request.url))
        if view == "print":
            page.emulate_media(media="print")
        page.goto(new.file.as_uri())
        page.wait_for_selector("body[data-drawn]", timeout=120_000)
        return new

    yield start
    for one in opened:
        one.page.context.close()
        assert one.complaints == []
        outside = [url for url in one.requests if not url.startswith("blob:")]  # a download is the page's own
        assert outside == [one.file.as_uri()]
