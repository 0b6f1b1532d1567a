"""The report shows what the traces say, in files that open anywhere, whatever the files say."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tomli_w

from asyncmanifold.report import write, write_report
from asyncmanifold.report.curves import band, histogram, thin_out
from asyncmanifold.report.figure import as_script, as_table, escape
from asyncmanifold.report.result_table import latex
from tiny import CLOCK, TRAINING, make_run, make_task, simulated

COMPARISONS = [
    *("score-updates", "score-time", "gini", "theil", "clients"),
    *("contribution", "staleness", "cosine-spread", "projections"),
]
SINGLES = ["timeline", "cosines", "steps"]
HOSTILE = "<script>alert('&\"')</script>\x00\ud800]]>"


@pytest.fixture(autouse=True)
def pages_without_files(monkeypatch):
    """Leave out what takes seconds: the drawings in files (test_report_files.py) and the page's library."""
    monkeypatch.setattr(write, "write_figures", lambda folder, figures: None)
    monkeypatch.setattr("asyncmanifold.report.page.page_library", lambda: "/* the library */")


def write_run(path: Path, name="plain", seed=0, scores=(0.2, 0.6), **settings):
    """Make up a finished run: two evaluations, three updates and a lost job."""
    path.mkdir(parents=True)
    config = {"scenario": "made-up", "method_name": "plain", "run": {"seed": seed}, **settings}
    (path / "config.toml").write_text(tomli_w.dumps(config))
    first, last = (
        {
            "kind": "evaluation",
            "update": u,
            "version": u,
            "time": float(u),
            "accuracy": s,
            "wall_seconds": 0.0,
        }
        for u, s in zip((0, 4), scores, strict=True)
    )
    jobs = [
        {"kind": "update", "update": u, "time": u + 0.5, "client": u % 2, "job": u, "dispatched": u - 1.0}
        | {
            "train_seconds": 0.1,
            "staleness": u,
            "cosines": [0.5, -0.25],
            "projected": [False, True],
            "fraction": 0.3,
            "t": 0.2,
            "step_norm": 0.1 * u,
        }
        for u in (1, 2, 3)
    ]
    lost = {"kind": "dropped", "time": 3.9, "client": 1, "job": 9, "dispatched": 3.0, "base_version": 0}
    lines = [json.dumps(record) + "\n" for record in (first, *jobs, lost, last)]
    (path / "trace.jsonl").write_text("".join(lines))
    summary = {"scenario": "made-up", "method": name, "seed": seed, "metric": "accuracy", "target": 0.5}
    summary |= {
        "final": scores[-1],
        "last": scores[-1],
        "best": scores[-1],
        "rounds_to_target": 4,
        "time_to_target": 4.0,
    }
    summary |= {"gini": 0.125, "theil": 0.03, "per_client": [0.25, None, 0.75]}
    (path / "summary.json").write_text(json.dumps(summary))


def content(page: Path) -> dict:
    """Return what the page's script draws."""
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', page.read_text(), re.S)
    return json.loads(found[1])


def rows(table: dict) -> list[dict]:
    return [dict(zip(table["fields"], row, strict=True)) for row in table["rows"]]


class Tags(HTMLParser):
    """Checks that tags close in order, and keeps them with their attributes."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tags_of(page: Path) -> Tags:
    tags = Tags()
    tags.feed(page.read_text())
    tags.close()
    assert tags.open == []
    return tags


@pytest.fixture
def compared(tmp_path):
    for method, gain in (("plain", 0.0), ("better", 0.2)):
        for seed in (0, 1):
            scores = (0.2, 0.6 + gain + 0.1 * seed)
            write_run(tmp_path / method / f"seed-{seed}", method, seed, scores)
    return tmp_path


def test_every_figure_is_there_and_has_data(compared):
    page = write_report(compared)
    assert page == compared / "report.html"
    tags = tags_of(page)
    shown = [attributes["data-figure"] for tag, attributes in tags.seen if tag == "figure"]
    assert shown == COMPARISONS + SINGLES
    assert sum(tag == "figcaption" for tag, _ in tags.seen) == len(shown)
    drawn = content(page)
    assert list(drawn["figures"]) == shown
    assert len(drawn["runs"]) == 4
    known = set(drawn["data"]) | set(drawn["runs"][0]["data"])
    for name, specification in drawn["figures"].items():
        used = set(re.findall(r'"data": {"name": "([^"]+)"}', json.dumps(specification)))
        assert used, name
        assert used <= known, name
    keys = [attributes["data-name"] for tag, attributes in tags.seen if "key" in attributes.get("class", "")]
    assert keys == ["better", "plain"]


def test_a_real_run_is_shown_point_by_point(tmp_path):
    simulated(
        make_task(), "asyncbezier", training=TRAINING, schedule=CLOCK, run=make_run(), out=tmp_path / "run"
    )
    drawn = content(write_report(tmp_path / "run", tmp_path / "report"))
    records = [json.loads(line) for line in (tmp_path / "run/trace.jsonl").read_text().splitlines()]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    sent = next(record["upload_bytes"] for record in records if record["kind"] == "update") / 1e6
    expected = [
        {
            "method": "asyncbezier",
            "seed": 0,
            "update": e["update"],
            "time": pytest.approx(e["time"], rel=1e-5),
            "upload": pytest.approx(e["update"] * sent, rel=1e-5),
            "score": pytest.approx(e["accuracy"], rel=1e-5),
        }
        for e in evaluations
    ]
    assert rows(drawn["data"]["scores"]) == expected
    line = rows(drawn["data"]["means-time"])
    assert [(row["x"], row["y"]) for row in line] == [
        (pytest.approx(e["time"], rel=1e-5), pytest.approx(e["accuracy"], rel=1e-5)) for e in evaluations
    ]
    assert "low" not in line[0]
    updates = [record for record in records if record["kind"] == "update"]
    (run,) = drawn["runs"]
    assert len(run["data"]["jobs"]["rows"]) == len(run["data"]["steps"]["rows"]) == len(updates)


def test_two_seeds_make_a_mean_and_a_band(compared):
    drawn = content(write_report(compared))
    last = {row["method"]: row for row in rows(drawn["data"]["means-update"]) if row["x"] == 4}
    # plain ends at 0.6 and 0.7: mean 0.65, standard deviation 0.1/√2
    assert last["plain"]["y"] == pytest.approx(0.65)
    assert last["plain"]["low"] == pytest.approx(0.65 - 0.1 / 2**0.5, abs=1e-6)
    assert last["better"]["high"] == pytest.approx(0.85 + 0.1 / 2**0.5, abs=1e-6)


def test_many_methods_have_small_plots_of_their_own(tmp_path):
    for place in range(6):
        write_run(tmp_path / str(place), f"method-{place}")
    page = write_report(tmp_path)
    each = content(page)["figures"]["score-each"]
    assert each["facet"]["field"] == "method"
    assert 'data-figure="score-each" class="wide"' in page.read_text()
    marks = [layer["mark"]["type"] for layer in content(page)["figures"]["score-updates"]["layer"]]
    assert "area" not in marks  # six bands would hide each other


def test_contributions_by_hand(compared):
    """Client 0 has a job of 1.5, client 1 three of 1.5, 1.5 and 0.9, one lost; steps are 0.2, 0.1 and 0.3."""
    drawn = content(write_report(compared))
    found = [row for row in rows(drawn["data"]["contributions"]) if row["method"] == "plain"]
    assert [(row["seed"], row["client"], row["updates"]) for row in found[:2]] == [(0, 0, 1), (0, 1, 2)]
    durations = [row["duration"] for row in found[:2]]
    assert durations == pytest.approx([1.5 / 1.4, 1.3 / 1.4], rel=1e-5)
    assert [row["share"] for row in found[:2]] == pytest.approx([2 / 3, 4 / 3], rel=1e-5)
    assert drawn["figures"]["contribution"]["facet"]["field"] == "method"


def test_bars_histograms_and_shares_by_hand(compared):
    drawn = content(write_report(compared))
    assert [row["mean"] for row in rows(drawn["data"]["bars-gini"])] == [0.125, 0.125]
    assert [row["mean"] for row in rows(drawn["data"]["bars-projections"])] == [0.5, 0.5]
    shares = [row for row in rows(drawn["data"]["shares-staleness"]) if row["method"] == "plain"]
    assert [(row["from"], row["to"], row["share"]) for row in shares] == [
        (place, place + 1, pytest.approx(1 / 3, abs=1e-6)) for place in (1, 2, 3)
    ]
    run = drawn["runs"][0]
    cosines = rows(run["data"]["cosines"])
    assert {(row["point"], row["cosine"], row["outcome"]) for row in cosines} == {
        (1, 0.5, "kept"),
        (2, -0.25, "projected"),
    }
    assert [row["outcome"] for row in rows(run["data"]["jobs"])] == ["accepted"] * 3 + ["lost"]
    assert "(1 of 4)" in run["captions"]["timeline"]
    assert [row["client"] for row in rows(drawn["data"]["clients"])][:2] == [0, 2]


def test_the_page_says_what_was_run(tmp_path):
    for lr in (1.0, 2.0):
        training = {"local_lr": 0.5, "optimizer": "adam"}
        write_run(tmp_path / f"lr-{lr:g}", f"lr{lr:g}", method={"global_lr": lr}, training=training)
        file = tmp_path / f"lr-{lr:g}/summary.json"
        arithmetic = {"kind": "native", "cpu": "Made-up 9000", "versions": {"torch": "2.13.0"}}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"arithmetic": arithmetic}))
    text = unescape(write_report(tmp_path).read_text())
    assert '<th scope="row">lr1</th><td>global_lr = 1</td>' in text
    assert '<th scope="row">lr2</th><td>global_lr = 2</td>' in text
    assert '<th scope="row">training.local_lr</th><td>0.5</td>' in text
    assert '<th scope="row">arithmetic</th><td>native</td>' in text
    assert '<th scope="row">cpu</th><td>Made-up 9000</td>' in text
    assert '<th scope="row">versions.torch</th><td>2.13.0</td>' in text
    assert 'for run in lr-1 lr-2; do\n  asyncmanifold run "$run/config.toml" --out "again/$run"' in text


def test_what_most_methods_share_is_said_once(tmp_path):
    for name, lr in (("one", 1.0), ("other", 1.0), ("third", 2.0)):
        write_run(tmp_path / name, name, method={"global_lr": lr})
    text = unescape(write_report(tmp_path).read_text())
    rows = {"most methods": "global_lr = 1", "one": "–", "other": "–", "third": "global_lr = 2"}
    for method, words in rows.items():
        assert f'<th scope="row">{method}</th><td>{words}</td>' in text


def test_the_tables(compared):
    page = write_report(compared).read_text()
    assert "<b>85.0±7.1</b>" in page
    assert "T<sub>e</sub>" in page
    assert "| better | **85.0±7.1** |" in (compared / "table.md").read_text()
    assert r"better & \textbf{85.0}\textsubscript{$\pm$7.1} &" in (compared / "table.tex").read_text()


def test_several_metrics_have_a_table_of_their_own(tmp_path):
    for method, seed, area in (("better", 0, 0.75), ("better", 1, 0.65), ("worse", 0, 0.5)):
        write_run(tmp_path / method / str(seed), method, seed)
        file = tmp_path / method / str(seed) / "summary.json"
        scores = {"accuracy": 0.6, "auroc <1>": area}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"scores": scores}))
    page = write_report(tmp_path).read_text()
    assert '<th scope="row">auroc &lt;1&gt; %</th><td><b>70.0±7.1</b></td><td>50.0</td>' in page
    assert "| auroc <1> % | **70.0±7.1** | 50.0 |" in (tmp_path / "table.md").read_text()


def test_names_from_files_are_text_and_nothing_else(tmp_path):
    write_run(tmp_path / "a", HOSTILE)
    write_run(tmp_path / "b", "plain")
    write_run(tmp_path / "<img src=x onerror=alert(1)>", "plain", 1)
    (tmp_path / "<img src=x onerror=alert(1)>" / "trace.jsonl").write_text('{"kind": "<b>"}\n{"<i>')
    page = write_report(tmp_path)
    tags = tags_of(page)
    assert sum(tag == "script" for tag, _ in tags.seen) == 3  # the data, the library and the page's own
    assert not any(tag in ("img", "i") for tag, _ in tags.seen)
    assert "alert('&" not in page.read_text()
    assert any("alert" in name for name in {row["method"] for row in rows(content(page)["data"]["scores"])})


def test_the_page_needs_nothing_else(compared):
    tags = tags_of(write_report(compared))
    for tag, attributes in tags.seen:
        assert tag not in ("link", "img", "iframe", "object", "image", "use"), tag
        assert not {"src", "href", "srcset", "xlink:href"} & set(attributes), attributes
    (policy,) = [a["content"] for tag, a in tags.seen if a.get("http-equiv") == "Content-Security-Policy"]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; script-src( 'sha256-[\w+/=]{44}'){2}", policy
    )
    text = (compared / "report.html").read_text()
    assert "://" not in text
    assert "@import" not in text
    assert "url(" not in text


def test_broken_runs_are_named_with_their_file(compared):
    (compared / "better/seed-0/trace.jsonl").write_text("{broken\n")
    write_run(compared / "other", "other", scores=(0.1, float("nan")))
    write_run(compared / "huge", "huge", seed=10**500)
    for name, broken in (("short", "{}"), ("cut", "{")):
        write_run(compared / name, name)
        (compared / name / "summary.json").write_text(broken)
    write_run(compared / "bare", "bare")
    (compared / "bare/config.toml").unlink()
    text = unescape(write_report(compared).read_text())
    assert "3 finished runs of 2 methods, seeds 0, 1." in text
    assert "<b>better/seed-0</b>: broken: trace.jsonl: Expecting property name" in text
    assert "<b>other</b>: broken: summary.json: nan is not a finite number" in text
    assert "<b>huge</b>: broken: summary.json: 1000" in text
    assert "<b>short</b>: broken: summary.json: 'final' is missing" in text
    assert "<b>cut</b>: broken: summary.json: Expecting property name" in text
    assert "<b>bare</b>: broken: config.toml is missing" in text


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(compared):
    (compared / "better/seed-1/summary.json").unlink()
    page = write_report(compared)
    assert "3 finished runs and 1 unfinished of 2 methods, seeds 0, 1." in page.read_text()
    found = {
        row["method"]: row["score"] for row in rows(content(page)["data"]["scores"]) if row["update"] == 4
    }
    assert found["plain (unfinished)"] == pytest.approx(0.9)
    assert '<tr data-name="plain (unfinished)"><th scope="row">' in page.read_text()
    assert list(json.loads((compared / "compare.json").read_text())["methods"]) == ["better", "plain"]


def test_only_unfinished_runs_make_a_report(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    text = write_report(tmp_path).read_text()
    assert "0 finished runs and 1 unfinished of 1 method, seed 0." in text
    assert '<td data-value="0.6">60.0</td>' in text
    (tmp_path / "run/trace.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"shown \(run: broken: trace.jsonl: has no evaluation yet\)$"):
        write_report(tmp_path)


def test_nothing_to_show_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^.*: holds no run$"):
        write_report(tmp_path)
    with pytest.raises(ValueError, match=r"^.*nowhere: no such directory$"):
        write_report(tmp_path / "nowhere")
    write_run(tmp_path / "run")
    (tmp_path / "run/trace.jsonl").write_text("{\n")
    with pytest.raises(
        ValueError, match=r"holds no run that can be shown \(run: broken: trace.jsonl: Expecting"
    ):
        write_report(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_one_run_is_enough(tmp_path):
    write_run(tmp_path / "run")
    text = write_report(tmp_path / "run").read_text()
    assert "1 finished run of 1 method, seed 0." in text
    assert "<td><b>" not in text  # nothing is the best of one


def test_a_run_of_bare_minimum(tmp_path):
    """No score is a number, no update came, no client was scored."""
    write_run(tmp_path / "run", scores=(None, None))
    trace = tmp_path / "run/trace.jsonl"
    trace.write_text("".join(line + "\n" for line in trace.read_text().splitlines() if "evaluation" in line))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    empty = dict.fromkeys(
        (
            "final",
            "last",
            "best",
            "target",
            "rounds_to_target",
            "time_to_target",
            "gini",
            "theil",
            "per_client",
        )
    )
    (tmp_path / "run/summary.json").write_text(json.dumps(summary | empty))
    text = write_report(tmp_path).read_text()
    assert "No target was set." in text
    assert "NaN" not in text.split("<script>")[0]
    assert list(content(tmp_path / "report.html")["figures"]) == SINGLES  # no empty figure over all runs


def test_runs_that_differ_in_more_than_the_seed_stay_apart(tmp_path):
    for lr in (1.0, 2.0):
        for seed in (0, 1):
            write_run(tmp_path / f"lr-{lr:g}" / str(seed), seed=seed, method={"global_lr": lr})
    write_report(tmp_path)
    rows = (tmp_path / "table.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| plain (lr-1/0)", "| plain (lr-2/0)"]


def test_the_same_runs_give_the_same_bytes(compared):
    def content():
        return {f: f.read_bytes() for f in sorted(compared.rglob("*")) if f.is_file()}

    write_report(compared)
    first = content()
    write_report(compared)
    assert content() == first


def test_numbers_for_figures():
    joined = band([[(0.0, 0.0), (2.0, 2.0)], [(0.0, 2.0), (1.0, 2.0), (3.0, 4.0)]])
    assert joined.xs == [0.0, 1.0, 2.0]
    assert joined.means == [1.0, 1.5, 2.5]
    assert joined.deviations == pytest.approx([2**0.5, 0.5**0.5, 0.5**0.5])
    assert band([[], []]).xs == []
    assert thin_out(range(10), 4) == [0, 3, 6, 9]
    assert histogram([-1.0, 0.0, 1.0], -1.0, 0.5, 4) == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 3])
    assert as_table([{"x": 1}, {"y": None}]) == {"fields": ["x", "y"], "rows": [[1, None], [None, None]]}
    assert as_script("</script>&") == '"\\u003c/script\\u003e\\u0026"'
    assert escape("a<b\x07\ud800") == "a&lt;b\ufffd?"
    assert latex(r"50% \a_b{") == r"50\% \textbackslash{}a\_b\{"
