"""The live view's figures, against hand-made traces: cut, torn and still growing; and its server."""

import http.client
import json
import os
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest

from asyncmanifold.errors import InputError
from asyncmanifold.session.live_jobs import LiveJobs
from asyncmanifold.watch import followed_runs
from asyncmanifold.watch.followed_runs import FollowedRuns, thin
from asyncmanifold.watch.live_figures import MOST_POINTS, LiveFigures, Thinned
from asyncmanifold.watch.trace_follower import TraceFollower
from asyncmanifold.watch.watch_server import WatchServer, read_token

CONFIG = 'scenario = "digits"\nmethod_name = "fedasync"\n[run]\nupdates = 40\nseed = 3\ntarget = 0.9\n'


def update(number, client, **more):
    known = {
        "kind": "update",
        "update": number,
        "client": client,
        "time": float(number),
        "staleness": number % 4,
    }
    return {
        **known,
        "loss": 1.0 / number,
        "train_seconds": 0.5,
        "version": number,
        "wall_seconds": 2.0 * number,
        **more,
    }


RECORDS = [
    {"kind": "evaluation", "update": 0, "version": 0, "time": 0.0, "accuracy": 0.1, "wall_seconds": 0.0},
    {"kind": "joined", "time": 0.0, "client": 0, "node": 7, "name": "<b>ward</b>"},
    update(1, 0, node=7, upload_bytes=100, download_bytes=50, epsilon=0.5),
    update(2, 1, upload_bytes=10, download_bytes=5, epsilon=0.25),
    {"kind": "failed", "time": 2.5, "client": 1, "job": 3, "reason": "out of memory"},
    {"kind": "rejected", "time": 2.6, "client": 1, "job": 4, "reason": "non-finite"},
    {"kind": "resting", "time": 2.6, "client": 1, "seconds": 60.0},
    update(3, 0, node=7, upload_bytes=100, download_bytes=50, epsilon=0.75),
    {"kind": "evaluation", "update": 3, "version": 3, "time": 3.0, "accuracy": 0.6, "wall_seconds": 6.0},
    {"kind": "left", "time": 4.0, "client": 0, "node": 7},
]


def write_run(folder, records=RECORDS):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "trace.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_the_figures_of_a_trace_by_hand():
    figures = LiveFigures(total=40)
    for record in RECORDS:
        figures.add(record)
    assert (figures.done, figures.metric, figures.score) == (3, "accuracy", 0.6)
    assert figures.staleness == pytest.approx((1 + 2 + 3) / 3)
    assert figures.rate == pytest.approx(2 / 4.0)  # two updates in the four seconds from 2 to 6
    assert figures.seconds_left == pytest.approx(37 / 0.5)
    assert (figures.upload_bytes, figures.download_bytes, figures.epsilon) == (210, 105, 0.75)
    first, second = figures.clients[0], figures.clients[1]
    assert (first.updates, first.staleness, first.epsilon, first.upload_bytes) == (2, 2.0, 0.75, 200)
    assert (first.name, first.node, first.is_present) == ("<b>ward</b>", 7, False)
    assert (second.failed, second.rejected, second.failures, second.rests) == (1, 1, 2, 1)
    assert (second.rests_until, second.reason) == (62.6, "non-finite")
    assert figures.counts == {"failed": 1, "rejected": 1, "dropped": 0, "resting": 1}
    assert [event["text"] for event in figures.events][1] == "client 1: failed: out of memory"


def test_controls_and_changes_count():
    figures = LiveFigures(total=40)
    for command in (
        {"command": "pause"},
        {"command": "exclude", "client": 2},
        {"command": "updates", "to": 50},
    ):
        figures.add({"kind": "control", "time": 1.0, **command})
    assert (figures.is_paused, figures.total, figures.controls) == (True, 50, 3)
    assert figures.clients[2].is_excluded
    figures.add({"kind": "control", "time": 1.0, "command": "resume"})
    figures.add({"kind": "changed", "time": 1.0, "key": "run.updates", "from": 50, "to": 60})
    assert (figures.is_paused, figures.total) == (False, 60)


def test_what_is_withheld_is_not_zero_and_a_spent_budget_shows():
    figures = LiveFigures(total=40)
    figures.add(update(1, 3, loss=None, train_seconds=0.0, epsilon=0.5))
    figures.add(
        {"kind": "retired", "time": 1.5, "client": 3, "reason": "privacy budget spent", "epsilon": 0.9}
    )
    assert (figures.loss_series.points, figures.staleness_series.points) == ([], [(1, 1.0)])
    assert (figures.clients[3].is_retired, figures.clients[3].epsilon, figures.epsilon) == (True, 0.9, 0.9)
    assert figures.events[-1]["text"] == "client 3: takes no further part: privacy budget spent"


def test_a_thinned_series_keeps_its_mean_and_its_bound():
    series = Thinned()
    for number in range(10_000):
        series.add(number, float(number))
        assert len(series.points) < MOST_POINTS
    covered = len(series.points) * series.width
    mean = sum(value for _, value in series.points) / len(series.points)
    assert mean == pytest.approx((covered - 1) / 2)
    points = [(float(number), None) for number in range(1001)]
    assert thin(points, 100)[-1] == points[-1]
    assert len(thin(points, 100)) <= 100


def read_all(follower, seen):
    while follower.follow(seen.clear, seen.append):
        pass
    return [record["update"] for record in seen]


def test_a_growing_trace_is_read_once_and_a_torn_line_waits(tmp_path):
    path, seen = tmp_path / "trace.jsonl", []
    follower = TraceFollower(path)
    assert read_all(follower, seen) == []
    lines = [json.dumps(update(number, 0)).encode() + b"\n" for number in range(1, 6)]
    path.write_bytes(lines[0] + lines[1][:20])
    assert read_all(follower, seen) == [1]
    with path.open("ab") as file:
        file.write(lines[1][20:] + b"not json\n[1]\n" + lines[2])
    assert read_all(follower, seen) == [1, 2, 3]
    assert read_all(follower, seen) == [1, 2, 3]


@pytest.mark.parametrize("regrown", [1, 4, 9])
def test_a_trace_that_was_cut_is_read_again_even_if_it_grew_past_its_old_end(tmp_path, regrown):
    path, seen = tmp_path / "trace.jsonl", []
    path.write_text("".join(json.dumps(update(number, 0)) + "\n" for number in range(1, 6)))
    follower = TraceFollower(path)
    read_all(follower, seen)
    with path.open("r+b") as file:  # as a resumed run does it
        file.truncate(len(json.dumps(update(1, 0))) + 1)
        file.seek(0, os.SEEK_END)
        for number in range(2, 2 + regrown):
            file.write(json.dumps(update(number, 1)).encode() + b"\n")
    assert read_all(follower, seen) == list(range(1, 2 + regrown))
    assert [record["client"] for record in seen] == [0, *[1] * regrown]
    path.unlink()
    path.write_text(json.dumps(update(9, 0)) + "\n")
    assert read_all(follower, seen) == [9]


def test_long_traces_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncmanifold.watch.trace_follower.MOST_BYTES", 1000)
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(update(n, 0)) + "\n" for n in range(1, 101)))
    assert read_all(TraceFollower(tmp_path / "trace.jsonl"), []) == list(range(1, 101))


def test_runs_are_found_named_and_told_apart_by_their_state(tmp_path):
    write_run(tmp_path / "a")
    runs = FollowedRuns(tmp_path)
    write_run(tmp_path / "b" / "seed-1")
    (tmp_path / "b" / "seed-1" / "summary.json").write_text('{"ended": "stopped"}')
    write_run(tmp_path / "c", [*RECORDS, {"kind": "control", "command": "pause", "time": 4.0}])
    write_run(tmp_path / "d")
    os.utime(tmp_path / "d" / "trace.jsonl", (1.0, 1.0))
    state = runs.state("c")
    assert {run["place"]: run["state"] for run in state["runs"]} == {
        "a": "running",
        "b/seed-1": "stopped",
        "c": "paused",
        "d": "silent",
    }
    assert state["chosen"]["place"] == "c"
    brief = state["runs"][0]
    assert (brief["method"], brief["seed"], brief["target"], brief["total"]) == ("fedasync", 3, 0.9, 40)
    assert (brief["done"], brief["left"], brief["upload"], brief["failed"]) == (3, 74.0, 210, 1)
    assert brief["scores"] == [(0.0, 0.1), (3.0, 0.6)]
    assert runs.state(None)["chosen"]["place"] == "a"
    json.dumps(state, allow_nan=False)


def test_jobs_that_are_out_are_shown_until_the_run_ends(tmp_path):
    run = write_run(tmp_path / "run")
    live = LiveJobs(run)
    assert live.is_due
    live.show(4.0, 2, [(0, 3.25), (5, 4.0)])
    assert not live.is_due
    details = FollowedRuns(run).state(None)["chosen"]
    assert {row["client"]: row["sent"] for row in details["clients"]} == {0: 3.25, 1: None, 5: 4.0}
    assert FollowedRuns(run).state(None)["runs"][0]["training"] == 2
    live.close()
    assert FollowedRuns(run).state(None)["runs"][0]["training"] == 0


def test_a_full_disk_does_not_end_a_run_that_shows_its_jobs(tmp_path):
    LiveJobs(tmp_path / "gone").show(0.0, 0, [])
    LiveJobs(None).show(0.0, 0, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("live", ['{"jobs": 5, "count": 1', '{"jobs": [5], "count": 1}', "[]"])
def test_broken_files_are_no_reason_to_fall_silent(tmp_path, live):
    run = write_run(tmp_path / "run")
    (run / "config.toml").write_text("run = 3")
    (run / "live.json").write_text(live)
    (run / "summary.json").write_text("{")
    (run / "trace.jsonl").write_text(
        '{"kind": "update", "client": 1, "staleness": "x", "update": null}\n{"kind": 3}\n'
    )
    assert FollowedRuns(tmp_path).state(None)["runs"][0]["done"] == 1


@pytest.fixture
def served(tmp_path):
    write_run(tmp_path / "one")
    write_run(tmp_path / "two")
    with WatchServer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET"):
    host, port = server.server_address[:2]
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def test_only_the_address_with_the_token_answers(served):
    base = urlsplit(served.address).path
    assert len(served.token) >= 24
    assert served.server_address[0] == "127.0.0.1"
    for path in ("/", "/state", "/metrics", f"/{served.token[:-1]}/", f"{base}../x", f"{base}trace.jsonl"):
        status, _, body = ask(served, path)
        assert (status, body) == (404, "not found\n")
    status, headers, html = ask(served, base)
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
    state = json.loads(ask(served, base + "state?run=two")[2])
    assert state["chosen"]["place"] == "two"
    assert ask(served, base, "HEAD")[2] == ""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(served, base, method)[0] == 501


def test_prometheus_reads_the_metrics(served):
    parser = pytest.importorskip("prometheus_client.parser")
    status, headers, text = ask(served, urlsplit(served.address).path + "metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    one = ("run", "one")
    assert samples["asyncmanifold_updates_total", one] == 3
    assert samples["asyncmanifold_score", ("metric", "accuracy"), one] == 0.6
    assert (
        samples["asyncmanifold_client_failures_total", ("client", "1"), ("kind", "failed"), ("name", ""), one]
        == 1
    )
    assert samples["asyncmanifold_client_epsilon", ("client", "0"), ("name", "<b>ward</b>"), one] == 0.75
    assert samples["asyncmanifold_state", one, ("state", "running")] == 1
    assert samples["asyncmanifold_state", one, ("state", "finished")] == 0


def test_labels_are_escaped(tmp_path):
    from asyncmanifold.watch.prometheus_text import prometheus_text

    odd = update(1, 0, name='a"b\\c\nd')
    write_run(tmp_path / "run", [odd])
    text = prometheus_text(FollowedRuns(tmp_path).follow())
    assert 'name="a\\"b\\\\c\\nd"' in text


def test_watching_changes_nothing_and_locks_nothing(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.iterdir()}
    run.chmod(0o500)
    monkeypatch.setattr("fcntl.flock", lambda *given: pytest.fail("locked"))
    FollowedRuns(run).state(None)
    run.chmod(0o700)
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.iterdir()} == before


def test_new_runs_are_found_later(tmp_path, monkeypatch):
    monkeypatch.setattr(followed_runs, "SEARCH_SECONDS", -1.0)
    runs = FollowedRuns(tmp_path)
    assert runs.state(None) == {"title": tmp_path.name, "runs": [], "chosen": None}
    write_run(tmp_path / "late")
    assert [run.place for run in runs.follow()] == ["late"]


def test_tokens_of_ones_own_must_be_hard_to_guess(tmp_path):
    file = tmp_path / "token"
    file.write_text("abcdefghij-KLMNOP_42\n")
    assert read_token(file) == "abcdefghij-KLMNOP_42"
    for text in ("short", "with a space in the middle", "ö" * 20):
        file.write_text(text)
        with pytest.raises(InputError, match="at least 16 letters"):
            read_token(file)
    with pytest.raises(InputError, match="No such file"):
        read_token(tmp_path / "none")
    with pytest.raises(InputError, match="no such directory"):
        WatchServer(tmp_path / "none")
    with pytest.raises(InputError, match="cannot listen there"):
        WatchServer(tmp_path, port=99999)


def test_the_command_needs_no_torch_and_is_one_line_when_wrong(tmp_path):
    program = (
        "import sys; from asyncmanifold.commands.cli import main; "
        "code = main(['watch', 'nowhere']); sys.exit(10 * code + ('torch' in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 20
    assert ended.stderr == "asyncmanifold: nowhere: no such directory\n"
