"""The command line as a person or a script meets it."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError

import pytest

from asyncmanifold import OrthoDC, Search, __version__, progress
from asyncmanifold.commands.cli import main
from asyncmanifold.configuration.config import load_config
from asyncmanifold.execution import placement
from asyncmanifold.experiments.grid_search import by_size, keys_at_edge
from asyncmanifold.experiments.many_runs import ManyRunsWatcher
from asyncmanifold.progress import Display, LiveBar, PlainLines, RunWatcher

QUICK = ["--set", "updates=6", "--set", "evaluate_every=3", "--set", "batch_size=64"]


def test_run_shows_progress_on_stderr_and_the_result_on_stdout(tmp_path, capsys):
    assert main(["run", "digits", "--method", "fedasync", *QUICK, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "fedasync on digits, seed 0" in said.out
    assert "6 accepted" in said.out
    assert str(tmp_path / "run") in said.out
    assert "fedasync: 6/6 updates, accuracy 0." in said.err
    assert "staleness" in said.err
    assert "left" in said.err


def test_json_is_the_summary_and_nothing_else(tmp_path, capsys):
    assert main(["run", "digits", *QUICK, "--json", "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert said.err == ""


def test_quiet_says_nothing(tmp_path, capsys):
    assert main(["run", "digits", *QUICK, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr() == ("", "")


def test_compare_prints_and_keeps_the_table(tmp_path, capsys):
    arguments = ["compare", "digits", "--methods", "fedasync,asyncbezier", "--seeds", "0,1", *QUICK]
    arguments += ["--set", "threshold=1", "--out", str(tmp_path), "--workers", "2"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    table = json.loads((tmp_path / "compare.json").read_text())
    assert list(table["methods"]) == ["fedasync", "asyncbezier"]
    final = [
        json.loads((tmp_path / "fedasync" / f"seed-{seed}" / "summary.json").read_text())["final"]
        for seed in (0, 1)
    ]
    row = table["methods"]["fedasync"]["final"]
    assert row["mean"] == pytest.approx(sum(final) / 2)
    assert row["sd"] == pytest.approx(abs(final[0] - final[1]) / 2**0.5)
    for text in (said.out, (tmp_path / "table.md").read_text()):
        assert f"{100 * row['mean']:.1f}±{100 * row['sd']:.1f}" in text
    assert "threshold = 1.0" in (tmp_path / "asyncbezier" / "seed-0" / "config.toml").read_text()

    assert main(arguments) == 2  # holds runs already
    assert "holds a run of fedasync, seed-0 already" in capsys.readouterr().err
    assert main([*arguments, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == table


def test_report_says_where_the_page_is_unless_it_is_quiet(tmp_path, capsys):
    assert main(["run", "digits", *QUICK, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page")]) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'page' / 'report.html'}\n"
    assert 'data-figure="score-updates"' in (tmp_path / "page" / "report.html").read_text()
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "quiet"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "quiet" / "report.html").exists()


def test_tune_scores_on_validation_data_and_writes_a_scenario(tmp_path, capsys):
    arguments = ["tune", "digits", "--method", "fedasync", "--values", "0.5,4", "--seeds", "0,1", *QUICK]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    (curve,) = json.loads((tmp_path / "tune.json").read_text())["methods"].values()
    scores = {}
    for point in curve:
        folder = tmp_path / "fedasync" / f"global_lr={point['value']}"
        found = [json.loads((folder / f"seed-{k}" / "summary.json").read_text()) for k in (0, 1)]
        scores[point["value"]] = sum(summary["validation"] for summary in found) / 2
        assert point["mean"] == pytest.approx(scores[point["value"]])
        assert f"{100 * point['mean']:.1f}" in said.out
    best = max(scores, key=scores.get)
    config = load_config(str(tmp_path / "tuned.toml"), "fedasync")
    assert config.method.global_lr == float(best)
    assert config.scenario == json.loads((tmp_path / "tune.json").read_text())["scenario"] == "digits"
    assert config.training == load_config("digits", "fedasync").training
    assert load_config(str(tmp_path / "tuned.toml"), "asyncsgd").method.global_lr == 2.0
    assert "validation accuracy" in said.err
    assert main([*arguments, "--out", str(tmp_path), "--resume", "--quiet"]) == 0


def test_a_finer_search_goes_around_what_each_method_has(tmp_path):
    methods = ["--method", "fedasync,asyncbezier", "--quiet", *QUICK]
    assert main(["tune", "digits", *methods, "--factors", "0.5,1,1.5", "--out", str(tmp_path)]) == 0
    curves = json.loads((tmp_path / "tune.json").read_text())["methods"]
    tried = {method: [point["value"] for point in curve] for method, curve in curves.items()}
    assert tried == {"fedasync": ["2.5", "5", "7.5"], "asyncbezier": ["0.5", "1", "1.5"]}


def test_a_search_is_printed_by_size_and_says_whose_best_is_at_an_edge(capsys, tmp_path):
    def curve(scores):
        return [{"value": value, "mean": mean, "sd": None} for value, mean in scores.items()]

    inside = curve({"1": 0.5, "2": 0.6, "10": 0.4})
    at_edge = curve({"2": 0.5, "10": 0.4, "0.5": 0.6})
    two = curve({"1": 0.1, "2": 0.2})
    said = str(Search("lr", {"inside": inside, "outside": at_edge, "two": two}, runs={}))
    assert re.search(r"method +0\.5 +1 +2 +10", said)
    assert said.endswith("beyond: outside")
    assert keys_at_edge(at_edge, ["lr"]) == ["lr"]
    assert keys_at_edge(curve({"a": 0.3, "b": 0.2, "c": 0.1}), ["lr"]) == []
    assert keys_at_edge(curve({"1": None, "2": None, "3": None}), ["lr"]) == []
    assert by_size(["b", "1", "a", "b"]) == ["b", "1", "a"]


def test_any_key_can_be_tuned_for_a_method_alone(tmp_path):
    arguments = ["tune", "digits", "--method", "asyncbezier", "--quiet", *QUICK]
    for key, values in (("threshold", "-1"), ("local_lr", "0.002")):
        out = tmp_path / key
        assert main([*arguments, "--key", key, f"--values={values}", "--out", str(out)]) == 0
    tuned = load_config(str(tmp_path / "threshold" / "tuned.toml"), "asyncbezier")
    assert tuned.method.correction == OrthoDC(-1.0)
    tuned = str(tmp_path / "local_lr" / "tuned.toml")
    assert load_config(tuned, "asyncbezier").training.local_lr == 0.002
    assert load_config(tuned, "fedasync").training.local_lr == 0.005


def test_list_shows_everything_there_is(capsys):
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "digits" in listed["scenarios"]
    assert listed["methods"]["fedgs"]["correction"] == {
        "name": "orthodc",
        "threshold": 0.0,
        "jointly": False,
    }
    assert listed["parts"]["correction"]["orthodc"] == {"threshold": 0.0, "jointly": False}
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in ("digits", "asyncbezier-ed", "delay-compensation", "lognormal"):
        assert name in shown


def test_a_recorded_run_is_replayed(tmp_path, capsys):
    assert main(["run", "digits", "--method", "fedgs", *QUICK, "--quiet", "--out", str(tmp_path / "a")]) == 0
    again = ["run", str(tmp_path / "a" / "config.toml"), "--replay", str(tmp_path / "a" / "trace.jsonl")]
    assert main([*again, "--out", str(tmp_path / "b")]) == 0
    assert "6 accepted" in capsys.readouterr().out
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]
    (tmp_path / "c.jsonl").write_text('{"kind": "update", "job": 1}\n')
    assert main([*again[:2], "--replay", str(tmp_path / "c.jsonl"), "--out", str(tmp_path / "c")]) == 2
    assert "c.jsonl: not a trace that can be replayed: update 1 has no 'client'\n" in capsys.readouterr().err


def test_data_prepare_writes_a_file_that_a_scenario_takes(tmp_path, capsys):
    lines = ["To be, or not to be: that is the question"] * 60
    speech = {"play": "Hamlet", "speaker": "HAMLET", "lines": lines}
    source, out = tmp_path / "speeches.jsonl", tmp_path / "plays.jsonl.gz"
    source.write_text(json.dumps(speech))
    arguments = ["data", "prepare", "shakespeare", "--source", str(source), "--out", str(out)]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out == f"shakespeare: 1 speeches, 1 speakers, 1 plays: {out}\n"
    assert load_config("shakespeare", data=str(out), settings={"clients": "1"}).build_task().clients
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


BAD_CALLS = {
    "run digits --replay nowhere.jsonl": "nowhere.jsonl: No such file or directory",
    "data": "the following arguments are required: COMMAND",
    "data prepare mnist --source x --out x.npz": "invalid choice: 'mnist'",
    "data prepare femnist --source nowhere --out x.npz": "nowhere: no such path; expected LEAF's",
    "data prepare femnist --source . --out x.txt": "x.txt: must end in .npz",
    "data prepare cxr8 --source setup.cfg": "the following arguments are required: --out",
    "run nowhere": "unknown scenario 'nowhere'",
    "run nowhere.toml": "nowhere.toml: No such file",
    "run digits --method fedmagic": "unknown method 'fedmagic'",
    "run digits --set threshold=7": "must be between -1 and 1",
    "run digits --set nothing=7": "--set nothing: unknown key",
    "run digits --set updates": "'updates' must be KEY=VALUE",
    "run digits --seed -1": "'-1' must be a whole number",
    "run digits --seed 1.5": "'1.5' must be a whole number",
    "run digits --workers 0": "'0' must be at least 1",
    "run digits --executor dask": "invalid choice: 'dask'",
    "run digits --executor inline --workers 2": "executor 'inline' is one process: workers=2 must be 1",
    "run digits --workers 2 --ray-address auto": "ray_address='auto' is only for executor 'ray'",
    "run digits --executor ray --ray-address nowhere": "ray_address='nowhere' must be HOST:PORT or auto",
    "run digits --frobnicate": "unrecognized arguments: --frobnicate",
    "run": "the following arguments are required: SCENARIO",
    "walk": "invalid choice: 'walk'",
    "compare digits --methods fedasync,fedmagic": "unknown method 'fedmagic'",
    "compare digits --methods fedasync --set threshold=1": "--set threshold: unknown key",
    "compare digits --seeds 0,x": "'x' must be a whole number",
    "compare digits --methods fedasync,,asyncsgd": "'fedasync,,asyncsgd' has an empty name",
    "compare digits --methods ,": "',' has an empty name",
    "tune digits --key a --key b": "a, b: give each key its own values, or factors for all",
    "tune digits --key a=1 --key a=2": "--key a: given twice",
    "tune digits --key a=1 --key b": "--key b: give its values too, as --key b=1,2",
    "tune digits --key a=1,2 --values 1": "--key a has values of its own: leave out --values and --factors",
    "tune digits --key a=1,2 --factors 1": "--key a has values of its own: leave out --values and --factors",
    "tune digits --key a=1,,2": "'1,,2' has an empty name",
    "tune digits --key =1": "'=1' must be KEY=VALUE",
    "tune digits --key global_lr=1 --key method.global_lr=2": "method.global_lr is the same key as global_lr",
    "tune digits --method asyncbezier --key threshold=0 --key correction=orthodc": "threshold is a part of",
    "tune digits --halving --set updates=2": "halving so many values needs runs of at least 3 updates, not 2",
    "run digits --method fedasync --method fedbuff": "argument --method: given twice",
    "run digits --set seed=1 --set seed=2": "--set seed: given twice",
    "compare digits --methods fedasync,fedbuff --set gates.norm_bound=1": "unknown key",
    "report nowhere": "nowhere: no such directory",
    "report .": ".: holds no run",
    "tune digits --key nothing": "--set nothing: unknown key",
    "tune digits --method asyncbezier --key threshold --values 0,2": "must be between -1 and 1",
    "tune digits --values 1 --factors 2": "argument --factors: not allowed with argument --values",
    "tune digits --factors 1,x": "'1,x' must be numbers separated by commas",
    "tune digits --factors 0": "'0' must be above 0 and finite",
    "tune digits --key kind --factors 2": "kind is 'clock' and has no multiples; use --values",
    "theory --method asyncdisc": "the theorem is tested for asyncbezier, asyncbezier-ed, asyncsgd, fedortho",
    "theory --lengths 64,64": "a slope needs two different lengths or more",
    "theory --lengths 4,8": "--lengths 4: must be at least 8, the number of clients",
    "theory --lengths 64,x": "'x' must be a whole number",
    "theory --seeds 7": "an interval needs two seeds or more",
    "run digits --set clients=400": "must need at most",
    "run digits --set concentration=0.001": "task: no Dirichlet(0.001) partition with 8 examples",
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_wrong_input_is_one_line_and_exit_code_2_before_any_work(call, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(call.split())
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert BAD_CALLS[call] in said.err
    assert list(tmp_path.iterdir()) == []


def test_ray_that_is_not_installed_is_one_line(capsys, tmp_path, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(placement, "version", absent)
    assert main(["run", "digits", "--executor", "ray", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said == ("asyncmanifold: executor 'ray' needs the extra 'ray': pip install 'asyncmanifold[ray]'\n")
    assert not (tmp_path / "run").exists()


def test_help_is_there_and_imports_nothing_heavy():
    program = (
        "import sys, asyncmanifold.commands.cli as cli; cli.build_parser().format_help(); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"torch", "numpy", "rich", "sklearn"}.isdisjoint(loaded.stdout.split())
    shown = subprocess.run(
        [sys.executable, "-m", "asyncmanifold", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("run", "compare", "theory", "list"):
        assert command in shown.stdout


def test_a_reader_that_stops_is_no_error():
    shown = subprocess.run(
        f"{sys.executable} -m asyncmanifold list | head -1", shell=True, capture_output=True, text=True
    )
    assert shown.stderr == ""


def test_plain_lines_come_now_and_then_and_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr(PlainLines, "INTERVAL", 1000.0)
    watcher = RunWatcher(PlainLines("run", 3, "updates"))
    watcher({"kind": "evaluation", "update": 0, "version": 0, "time": 0.0, "accuracy": 0.25})
    for update in (1, 2, 3):
        watcher({"kind": "update", "update": update, "staleness": 4})
    watcher({"kind": "failed", "client": 7, "reason": "loss became nan in epoch 1"})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("run: 3/3 updates, accuracy 0.250, staleness 4.0, ")
    assert lines[1] == "client 7 failed: loss became nan in epoch 1"


def test_what_was_found_done_does_not_count_as_pace(capsys, monkeypatch):
    clock = iter([0.0, *[1.0] * 3, *[5.0] * 3])  # at the start, and three times a line
    monkeypatch.setattr(progress, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(PlainLines, "INTERVAL", 0.0)
    shown = PlainLines("2 runs", 200, "updates")
    shown.show(1)  # the first update of a new run
    shown.show(109, found=100)  # a finished run was found meanwhile, and eight more updates made
    assert capsys.readouterr().err.splitlines()[1] == "2 runs: 109/200 updates, 2/s, 0:46 left"


def test_a_resumed_comparison_tells_what_it_found_from_what_it_makes(monkeypatch):
    shown = Display()
    seen = []
    monkeypatch.setattr(shown, "show", lambda done, note="", found=0: seen.append((done, found)))
    config = load_config("digits", settings={"updates": "6"})
    watcher = ManyRunsWatcher({(name,): config for name in ("old", "begun", "new")}, shown, "final")
    watcher.end(("old",), {"metric": "accuracy", "final": 0.5})
    watcher.progress(("begun",), 5)  # four of its updates were there
    watcher.progress(("new",), 1)
    watcher.progress(("new",), 2)
    assert seen == [(6, 6), (11, 10), (12, 10), (13, 10)]


def test_the_live_bar_shows_the_same(capsys):
    with LiveBar("run", 3) as bar:
        watcher = RunWatcher(bar)
        watcher({"kind": "update", "update": 2, "staleness": 4})
        watcher({"kind": "warning", "reason": "checkpoint not written"})
    shown = capsys.readouterr().err
    assert "2/3" in shown
    assert "staleness 4.0" in shown
    assert "warning: checkpoint not written" in shown


def test_a_setting_reaches_every_method(tmp_path, capsys):
    """``target`` was a key of AsyncFedED's epochs too, and the method was silently left out."""
    methods = "fedasync,asyncfeded,dcasgd"
    command = ["compare", "digits", "--methods", methods, "--seeds", "0", "--out", str(tmp_path), "--quiet"]
    assert main([*command, *QUICK, "--set", "target=0.9", "--set", "momentum=0.5", "--set", "warmup=3"]) == 0
    for method in methods.split(","):
        config = tomllib.loads((tmp_path / method / "seed-0" / "config.toml").read_text())
        assert config["run"]["target"] == 0.9
        assert config["training"]["momentum"] == 0.5
        assert config["method"]["penalty"]["warmup"] == 3
    assert json.loads((tmp_path / "asyncfeded" / "seed-0" / "summary.json").read_text())["target"] == 0.9


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"client": 99}, "client 99 has partition 99, must be one of the task's 15 clients"),
        ({"client": "x"}, "update 1 has client = 'x', must be a number, at least 0"),
        ({"client": -1}, "update 1 has client = -1, must be a number, at least 0"),
        ({"epochs": 1}, "update 1 has 1 epochs, must have more than the 2 along the curve"),
        ({"epochs": None}, "update 1 has epochs = None, must be a number, at least 0"),
        ({"weight": "much"}, "update 1 has weight = 'much', must be a number, at least 0"),
        ({"base_version": 7}, "update 1 of the trace cannot be repeated: its base version was never made"),
    ],
)
def test_a_trace_that_does_not_fit_is_one_line(change, problem, tmp_path, capsys):
    numbers = {"job": 0, "client": 0, "base_version": 0, "version": 1, "epochs": 4}
    update = {"kind": "update", **numbers, "weight": 0.1, "time": 1.0, "dispatched": 0.0}
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps(update | change) + "\n")
    code = main(["run", "digits", "--replay", str(trace), "--quiet", "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert code == (1 if "base_version" in change else 2)
    assert problem in said
    assert said.count("\n") == 1


def test_a_curved_scenario_without_its_extra_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "geoopt", None)
    assert main(["run", "sphere", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "a curved space needs the extra 'curved': pip install 'asyncmanifold[curved]'" in said


def test_a_run_of_an_earlier_version_is_refused_by_name(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", "digits", *QUICK, "--quiet", "--out", str(out)]) == 0
    config = out / "config.toml"
    earlier = config.read_text().replace(f'asyncmanifold = "{__version__}"\n', "")  # 0.1.0 did not say so
    config.write_text(earlier)
    assert main(["run", "digits", *QUICK, "--out", str(out), "--resume"]) == 2
    said = capsys.readouterr().err
    assert (
        f"{out}: made by asyncmanifold 0.1.0, and this is {__version__}: resume it with that version" in said
    )
    assert said.count("\n") == 1
    assert config.read_text() == earlier


def test_a_bug_is_a_traceback(monkeypatch):
    def broken(options):
        raise ValueError("a mistake of ours")

    monkeypatch.setattr("asyncmanifold.commands.actions.list_command", broken)
    with pytest.raises(ValueError, match="a mistake of ours"):
        main(["list"])
