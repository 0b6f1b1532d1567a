"""The live page in a real browser, while real Flower processes train: names, ε and bytes, and control."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from test_watch_page import watched

from asyncmanifold.commands.cli import main
from conftest import VIEWS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from flower_demo import Federation  # noqa: E402

SECONDS = 600.0
"""The longest that anything may take on a busy machine."""
METHOD = """
weighting = "none"
global_lr = 0.1
outgoing = [{ name = "local-privacy", clip_norm = 0.5, noise_multiplier = 8.0 }, "int8"]
"""


@pytest.fixture
def federation(tmp_path):
    """A SuperLink with two named nodes, which have budgets of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))
        started = Federation(tmp_path / "federation")
    with started:
        for part in range(2):
            ledger = str(tmp_path / f"ledger-{part}.json")
            started.start_node(
                partition_id=part, name=f"ward-{part}", privacy_epsilon=50.0, privacy_ledger=ledger
            )
        yield started


def test_a_deployment_is_followed_from_its_first_update_to_its_end(federation, browser, tmp_path, capsys):
    out, method = tmp_path / "runs" / "first", tmp_path / "private.toml"
    out.parent.mkdir()
    method.write_text(METHOD)
    config = {"clients": 2, "num_updates": 300, "evaluate_every": 2, "method": str(method)}
    run = federation.run(out=str(out), **config)
    complaints = []
    with watched(out.parent) as address:
        page = browser.new_context(**VIEWS["phone"]).new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.goto(address)

        def shows(condition):
            """Wait until the page shows something; it is never loaded again."""
            deadline = time.monotonic() + SECONDS
            while not condition():
                assert time.monotonic() < deadline, page.locator("body").inner_text()
                page.wait_for_timeout(300)

        def said(place):
            return page.locator(place).first.text_content() if page.locator(place).count() else ""

        def row(name):
            """What the page says about a client, by the heads of its columns."""
            heads = page.locator("#clients thead th").all_inner_texts()
            (line,) = page.locator("#clients tbody tr", has_text=name).all()
            return dict(zip(heads, line.locator("th, td").all_inner_texts(), strict=True))

        shows(lambda: "ward-0" in said("#clients") and "ward-1" in said("#clients"))
        shows(lambda: all(row(f"ward-{part}").get("updates", "0") != "0" for part in range(2)))
        assert said("#run-name .state") == "running"
        page.screenshot(path=tmp_path / "deployment.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        known = row("ward-0")
        assert "training" in known["now"] or known["now"] == "idle"
        assert float(known["ε"]) >= 0.92  # of one release with σ = 8
        assert known["up"].endswith("kB")
        assert said("#loss") == "withheld by the clients"
        assert "runs asyncmanifold" in said("#events")

        assert main(["control", str(out), "exclude", "ward-1"]) == 0
        shows(lambda: row("ward-1")["now"] == "excluded")
        assert main(["control", str(out), "pause"]) == 0
        shows(lambda: said("#run-name .state") == "paused")
        assert main(["control", str(out), "stop"]) == 0
        shows(lambda: said("#run-name .state") == "stopped")
        assert said("#news") == "ended: stopped"
        run.wait(SECONDS)
        summary = json.loads((out / "summary.json").read_text())
        shows(lambda: said("#cards dd").startswith(str(summary["updates"])))
        page.context.close()
    assert (summary["ended"], summary["controls"]) == ("stopped", 3)
    assert complaints == []
