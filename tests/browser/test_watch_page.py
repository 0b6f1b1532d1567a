"""The live page in a real browser: on finished runs, on one that is going on, on a phone, in the dark."""

import json
import threading
from contextlib import contextmanager

import pytest
from test_pages import OVERFLOW

from asyncmanifold import StopRun
from asyncmanifold.watch.watch_server import WatchServer
from conftest import VIEWS
from tiny import EVENTFUL, TRAINING, make_run, make_task, simulated

LOOKS = ("light", "dark", "phone")
NAME = "<script>alert(1)</script>"


@contextmanager
def watched(directory):
    with WatchServer(directory) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.address
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with lost jobs and clients that leave."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedasync", "asyncbezier"):
        run = make_run(60, seed=1, target=0.6)
        simulated(make_task(), method, training=TRAINING, schedule=EVENTFUL, run=run, out=folder / method)
    return folder


@pytest.fixture
def show(browser):
    """Return a way to open an address; its page may not complain, nor ask any other server."""
    opened = []

    def start(address, view):
        page = browser.new_context(**VIEWS[view]).new_page()
        complaints, requests = [], []
        opened.append((page, address, complaints, requests))
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        page.wait_for_selector("body[data-drawn]", timeout=60_000)
        return page

    yield start
    for page, address, complaints, requests in opened:
        page.context.close()
        assert complaints == []
        assert [url for url in requests if not url.startswith((address, "data:,"))] == []


def settle(page, condition, seconds=30.0):
    """Wait until something is true; the policy of the page forbids Playwright's own way."""
    for _ in range(int(10 * seconds)):
        if condition():
            return
        page.wait_for_timeout(100)
    assert condition()


@pytest.mark.parametrize("view", LOOKS)
def test_finished_runs_side_by_side(runs, show, view, tmp_path):
    with watched(runs) as address:
        page = show(address, view)
        page.screenshot(path=tmp_path / f"{view}.png", full_page=True)
        assert page.locator("#runs tbody tr").count() == 2
        assert page.locator("#all-scores polyline").count() == 2
        assert page.locator("#run-name").inner_text().startswith("asyncbezier, seed 1")
        page.get_by_role("button", name="fedasync, seed 1").click()
        settle(page, lambda: page.locator("#run-name").inner_text().startswith("fedasync, seed 1"))
        assert "60" in page.locator("#cards").inner_text()
        assert page.locator("#clients tbody tr").count() == 5
        assert page.locator("#events li").count() > 2
        assert page.locator("#news").inner_text() == "ended: updates"
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.evaluate(OVERFLOW) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (view != "dark")


def test_pointing_at_a_chart_reads_a_value(runs, show):
    with watched(runs / "fedasync") as address:
        page = show(address, "light")
        assert page.locator("#compare").is_hidden()
        page.locator("#scores svg").hover()
        assert "at update" in page.locator("#scores .told").text_content()


def test_a_run_is_followed_while_it_goes_on(show, tmp_path):
    """The run waits in an observer until the page has shown how far it is; then it goes on to its end."""
    reached, go_on = threading.Event(), threading.Event()

    def wait(record):
        if record["kind"] == "update" and record["update"] == 10:
            reached.set()
            if not go_on.wait(120.0):
                raise StopRun("nobody looked")

    def run():
        simulated(
            make_task(),
            training=TRAINING,
            schedule=EVENTFUL,
            run=make_run(30),
            out=tmp_path / "run",
            observer=wait,
        )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert reached.wait(120.0)
        with watched(tmp_path) as address:
            page = show(address, "phone")
            page.screenshot(path=tmp_path / "going.png", full_page=True)
            assert page.locator("#run-name .state").inner_text() == "running"
            assert page.locator("#cards dd").first.inner_text().startswith("10")
            go_on.set()
            settle(page, lambda: page.locator("#run-name .state").inner_text() == "finished")
            assert page.locator("#cards dd").first.inner_text().startswith("30")
    finally:
        go_on.set()
        thread.join()


def test_what_nodes_say_is_only_ever_text(show, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.toml").write_text("[run]\nupdates = 5\n")
    said = {"kind": "failed", "time": 1.0, "client": 0, "node": 4, "name": NAME, "reason": "<img src=x>"}
    (out / "trace.jsonl").write_text(json.dumps(said) + "\n")
    with watched(out) as address:
        page = show(address, "light")
        assert NAME in page.locator("#clients tbody th").inner_text()
        assert page.locator("#clients img, #clients script, #events img").count() == 0


def test_no_run_yet_and_a_server_that_has_gone(show, tmp_path):
    with watched(tmp_path) as address:
        page = show(address, "light")
        settle(page, lambda: page.locator("#news").inner_text() == "no run here yet")
