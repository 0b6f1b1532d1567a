"""The report shows what the traces say, in files that open anywhere, whatever the files say."""

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tomli_w

from asyncmanifold.report import write_report
from asyncmanifold.report.curves import band, histogram, thin_out
from asyncmanifold.report.result_table import latex
from asyncmanifold.report.svg import AxisScale, escape, number, ticks
from tiny import CLOCK, TRAINING, make_run, make_task, simulated

COMPARISONS = [
    *("score-updates", "score-time", "gini", "theil", "clients"),
    *("staleness", "cosine-spread", "projections"),
]
SINGLES = ["timeline", "cosines", "steps"]
HOSTILE = "<script>alert('&\"')</script>\x00\ud800]]>"
SVG = "{http://www.w3.org/2000/svg}"


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
        | {"staleness": u, "cosines": [0.5, -0.25], "projected": [False, True], "fraction": 0.3, "t": 0.2}
        for u in (1, 2, 3)
    ]
    lost = {"kind": "dropped", "time": 3.9, "client": 1, "job": 9, "dispatched": 3.0, "base_version": 0}
    lines = [json.dumps(record) + "\n" for record in (first, *jobs, lost, last)]
    (path / "trace.jsonl").write_text("".join(lines))
    summary = {"scenario": "made-up", "method": name, "seed": seed, "metric": "accuracy", "target": 0.5}
    summary |= {"final": scores[-1], "best": scores[-1], "rounds_to_target": 4, "time_to_target": 4.0}
    summary |= {"gini": 0.125, "theil": 0.03, "per_client": [0.25, None, 0.75]}
    (path / "summary.json").write_text(json.dumps(summary))


def figure(directory: Path, name: str) -> ElementTree.Element:
    return ElementTree.parse(directory / "figures" / f"{name}.svg").getroot()


def classes(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if kind in element.get("class", "").split()]


def places(element: ElementTree.Element) -> list[tuple[float, float]]:
    """Read a line's or a dot path's places."""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", element.get("d"))]


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


def test_every_figure_is_there_and_has_marks(compared):
    page = write_report(compared)
    assert page == compared / "report.html"
    tags = tags_of(page)
    shown = [attributes["data-figure"] for tag, attributes in tags.seen if tag == "figure"]
    assert shown == COMPARISONS + 4 * SINGLES
    assert sum(tag == "figcaption" for tag, _ in tags.seen) == len(shown)
    singles = [f"{name}-{m}-seed-{s}" for name in SINGLES for m in ("plain", "better") for s in (0, 1)]
    assert {file.stem for file in (compared / "figures").iterdir()} == {*COMPARISONS, *singles}
    for name in [*COMPARISONS, *singles]:
        root = figure(compared, name)
        marks = [*classes(root, "f"), *classes(root, "s")]
        assert marks, name
        assert all(mark.get("d") for mark in marks), name
        assert not re.search(r"nan|inf\b|None", ElementTree.tostring(root, encoding="unicode")), name


def test_a_real_run_is_shown_point_by_point(tmp_path):
    simulated(
        make_task(), "asyncbezier", training=TRAINING, schedule=CLOCK, run=make_run(), out=tmp_path / "run"
    )
    write_report(tmp_path / "run", tmp_path / "report")
    records = [json.loads(line) for line in (tmp_path / "run/trace.jsonl").read_text().splitlines()]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    root = figure(tmp_path / "report", "score-time")
    numbers = [float(v) for v in classes(root, "lines")[0].get("data-scales").split(",")]
    x, y = AxisScale(*numbers[:4]), AxisScale(*numbers[4:])
    line = next(mark for mark in classes(root, "line") if "L" in mark.get("d"))
    expected = [(x(e["time"]), y(e["accuracy"])) for e in evaluations]
    assert places(line) == [pytest.approx(place, abs=0.006) for place in expected]
    assert not classes(root, "band")
    updates = [record for record in records if record["kind"] == "update"]
    jobs = classes(figure(tmp_path / "report", "timeline-asyncbezier-seed-0"), "jobs")
    assert sum(len(places(mark)) for mark in jobs) == len(updates)


def test_two_seeds_make_a_mean_and_a_band(compared):
    write_report(compared)
    root = figure(compared, "score-updates")
    _, _, _, _, low, high, bottom, top = map(float, classes(root, "lines")[0].get("data-scales").split(","))
    # plain ends at 0.6 and 0.7: mean 0.65, standard deviation 0.1/√2
    assert (low, high) == (0.2, pytest.approx(0.85 + 0.1 / 2**0.5))
    y = AxisScale(low, high, bottom, top)
    ends = {places(mark)[-1][1] for mark in classes(root, "line") if "L" in mark.get("d")}
    assert ends == {float(number(y(0.65))), float(number(y(0.85)))}
    assert len(classes(root, "band")) == 2


def test_bars_histograms_and_shares_by_hand(compared):
    write_report(compared)
    words = [e.text for e in figure(compared, "gini").iter(f"{SVG}text")]
    assert words.count("0.125") == 2
    assert [e.text for e in figure(compared, "projections").iter(f"{SVG}text")].count("0.500") == 2
    assert "highest 33%" in [e.text for e in figure(compared, "staleness").iter(f"{SVG}text")]
    cosines = figure(compared, "cosines-plain-seed-0")
    (kept, _), (gone, _) = classes(cosines, "dots"), classes(cosines, "hollow")
    y = AxisScale(-1.0, 1.0, 230.0, 26.0)
    assert {place[1] for place in places(kept)} == {float(number(y(0.5)))}
    assert {place[1] for place in places(gone)} == {float(number(y(-0.25)))}
    assert "(1 of 4)" in figure(compared, "timeline-plain-seed-0").find(f"{SVG}desc").text


def test_the_tables(compared):
    page = write_report(compared).read_text()
    assert "<b>85.0±7.1</b>" in page
    assert "T<sub>e</sub>" in page
    assert "| better | **85.0±7.1** |" in (compared / "table.md").read_text()
    assert r"better & \textbf{85.0$\pm$7.1} &" in (compared / "table.tex").read_text()


def test_several_metrics_have_a_table_of_their_own(tmp_path):
    for method, seed, area in (("better", 0, 0.75), ("better", 1, 0.65), ("worse", 0, 0.5)):
        write_run(tmp_path / method / str(seed), method, seed)
        file = tmp_path / method / str(seed) / "summary.json"
        scores = {"accuracy": 0.6, "auroc <1>": area}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"scores": scores}))
    page = write_report(tmp_path).read_text()
    assert '<th scope="row">auroc &lt;1&gt;</th><td><b>70.0±7.1</b></td><td>50.0</td>' in page
    assert "| auroc <1> | **70.0±7.1** | 50.0 |" in (tmp_path / "table.md").read_text()


def test_names_from_files_are_text_and_nothing_else(tmp_path):
    write_run(tmp_path / "a", HOSTILE)
    write_run(tmp_path / "b", "plain")
    write_run(tmp_path / "<img src=x onerror=alert(1)>", "plain", 1)
    (tmp_path / "<img src=x onerror=alert(1)>" / "trace.jsonl").write_text('{"kind": "<b>"}\n{"<i>')
    page = write_report(tmp_path)
    tags = tags_of(page)
    assert sum(tag == "script" for tag, _ in tags.seen) == 1
    assert not any(tag in ("img", "i") for tag, _ in tags.seen)
    assert "alert('&" not in page.read_text()
    for file in (tmp_path / "figures").glob("*.svg"):
        assert re.fullmatch(r"[a-z0-9-]+\.svg", file.name)
        assert not list(ElementTree.parse(file).getroot().iter(f"{SVG}script"))


def test_the_page_needs_nothing_else(compared):
    tags = tags_of(write_report(compared))
    for tag, attributes in tags.seen:
        assert tag not in ("link", "img", "iframe", "object", "image", "use"), tag
        assert not {"src", "href", "srcset", "xlink:href"} & set(attributes), attributes
    text = (compared / "report.html").read_text()
    assert "://" not in text
    assert "@import" not in text
    assert "url(" not in text
    for file in (compared / "figures").glob("*.svg"):
        assert re.findall(r"\w+://[^\"]*", file.read_text()) == ["http://www.w3.org/2000/svg"]


def test_unfinished_and_broken_runs_are_named(compared):
    (compared / "better/seed-1/summary.json").unlink()
    (compared / "better/seed-0/trace.jsonl").write_text("{broken\n")
    write_run(compared / "other", "other", scores=(0.1, float("nan")))
    write_run(compared / "huge", "huge", seed=10**500)
    write_run(compared / "short", "short")
    (compared / "short/summary.json").write_text("{}")
    text = write_report(compared).read_text()
    assert "2 finished runs of 1 method, seeds 0, 1." in text
    assert "<b>better/seed-1</b>: not finished" in text
    assert "<b>better/seed-0</b>: broken: Expecting property name" in text
    assert "<b>other</b>: broken: nan is not a finite number" in text
    assert "<b>huge</b>: broken: 1000" in text
    assert "<b>short</b>: broken: &#x27;final&#x27; is missing" in text


def test_no_finished_run_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^.*: holds no run$"):
        write_report(tmp_path)
    with pytest.raises(ValueError, match=r"^.*nowhere: no such directory$"):
        write_report(tmp_path / "nowhere")
    write_run(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    with pytest.raises(ValueError, match=r"^.*: holds no finished run \(run: not finished\)$"):
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
        ("final", "best", "target", "rounds_to_target", "time_to_target", "gini", "theil", "per_client")
    )
    (tmp_path / "run/summary.json").write_text(json.dumps(summary | empty))
    text = write_report(tmp_path).read_text()
    assert "No target was set." in text
    assert "NaN" not in text.split("<script>")[0]


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
    assert ticks(0.0, 300.0, 6) == [0.0, 50.0, 100.0, 150.0, 200.0, 250.0, 300.0]
    assert ticks(-0.001, 0.002, 3) == [-0.001, 0.0, 0.001, 0.002]
    assert escape("a<b\x07\ud800") == "a&lt;b\ufffd?"
    assert latex(r"50% \a_b{") == r"50\% \textbackslash{}a\_b\{"
