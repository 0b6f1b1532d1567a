"""The comparison with peers: what it counts, reads and concludes. No peer is run here."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


@pytest.fixture
def load(monkeypatch):
    """Import a module of the benchmarks, as the driver or a script of a peer would."""
    monkeypatch.syspath_prepend(BENCHMARKS / "peers")
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module


def measurement(load, cpu, wall=0.0):
    return load("peers.measuring").Measurement(cpu, wall, 100.0, {"torch": "2.13.0"})


def test_a_line_of_stat_is_read_whatever_the_name_of_the_process(load):
    fields = ["S", "17", *["0"] * 9, "100", "20", "3", "2", *["0"] * 6, "5"]  # from the third field on
    process = load("peers.processes").parse_stat(f"42 (a ) b (c) {' '.join(fields)} 0 0\n")
    assert (process.number, process.parent) == (42, 17)
    assert process.cpu_seconds == pytest.approx(125 / os.sysconf("SC_CLK_TCK"))
    assert process.resident_bytes == 5 * os.sysconf("SC_PAGE_SIZE")


@needs_proc
def test_children_of_children_count(load):
    processes = load("peers.processes")
    sleep = "import time; print(flush=True); time.sleep(60)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    with subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE, process_group=0) as child:
        try:
            assert child.stdout.readline() == b"\n"
            found = {process.number: process for process in processes.descendants(os.getpid())}
            (grandchild,) = processes.descendants(child.pid)
            assert {child.pid, grandchild.number} <= found.keys()
            assert grandchild.parent == child.pid
            assert processes.resident_bytes(child.pid) > grandchild.resident_bytes > 0
        finally:
            os.killpg(child.pid, 9)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_problem_is_the_same_for_all_who_read_it(load, tmp_path, name):
    problem = load("peers.problem")
    size = problem.SIZES[name]
    for file in ("a.pt", "b.pt"):
        problem.write_problem(tmp_path / file, size)
    first, second = (problem.read_problem(tmp_path / file, size) for file in ("a.pt", "b.pt"))
    assert first.inputs.shape[:2] == first.targets.shape == (10, 32 * size.steps)
    assert torch.equal(first.inputs, second.inputs)
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_meter_times_what_lies_between_warm_up_and_end(load, tmp_path, monkeypatch, capsys):
    problem, meter = load("problem"), load("meter")
    monkeypatch.setenv(problem.PASSES_FILE, str(tmp_path / "passes"))
    problem._passes.cache_clear()
    model = problem.CountedSequential(torch.nn.Linear(2, 1))
    size = problem.Size("mlp", 3, steps=1, warm_up=2, measured=3)
    watch = meter.Meter(size)
    for examples in (9, 9, 4, 5, 4, 9):
        assert watch.is_done == (examples == 9 and watch._updates >= 5)
        model(torch.zeros(examples, 2))
        watch.count()
    model.eval()(torch.zeros(7, 2))
    watch.print(torch="2.13.0")
    printed = json.loads(capsys.readouterr().out)
    assert printed["updates"] == printed["passes"] == 3
    assert printed["batch_sizes"] == [4, 5]  # neither the warm-up's nor what came after, nor an evaluation
    assert 0.0 < printed["wall_seconds"] < 60.0


def printed(**changes):
    good = {"updates": 10, "passes": 50, "batch_sizes": [32], "wall_seconds": 2.0, "cpu_seconds": 1.0}
    return good | {"versions": {}} | changes


def test_a_run_is_read_as_the_cost_of_one_update(load):
    measuring, mlp = load("peers.measuring"), load("peers.problem").SIZES["mlp"]
    measured = measuring.read(printed(), mlp, 3_000_000, is_parallel=False)
    assert measured == measuring.Measurement(100.0, 200.0, 3.0, {})
    ahead = measuring.read(printed(passes=60), mlp, 0, is_parallel=True)  # 12 clients trained, 10 absorbed
    assert ahead.wall_ms_per_update == pytest.approx(2000.0 / 12)


@pytest.mark.parametrize(
    ("changes", "is_parallel", "reason"),
    [
        ({"batch_sizes": [32, 7]}, False, r"batches of \[32, 7\], not 32"),
        ({"passes": 55}, False, "55 steps for 10 updates of 5"),
        ({"passes": 80}, True, "80 steps for 10 updates of 5"),  # more ahead than there are clients at work
    ],
)
def test_a_system_that_does_other_work_is_not_compared(load, changes, is_parallel, reason):
    measuring, mlp = load("peers.measuring"), load("peers.problem").SIZES["mlp"]
    with pytest.raises(measuring.Failed, match=reason):
        measuring.read(printed(**changes), mlp, 0, is_parallel)


def test_a_script_that_fails_is_reported_by_its_last_line(load, tmp_path):
    measuring, mlp = load("peers.measuring"), load("peers.problem").SIZES["mlp"]
    failing = "import sys; print('so far', file=sys.stderr); raise RuntimeError('no such thing')"
    with pytest.raises(measuring.Failed, match="RuntimeError: no such thing"):
        measuring.measure([sys.executable, "-c", failing], mlp, tmp_path / "work", False)


def test_an_environment_that_cannot_be_made_is_reported(load, tmp_path):
    environments = load("peers.environments")
    (tmp_path / "env").write_text("a file where a folder should be")
    with pytest.raises(environments.NotInstalled, match=r"\S"):
        environments.prepare(environments.PEERS[0], tmp_path / "env")


def test_the_comparison_is_with_the_fastest_peer_each_at_its_best(load):
    bench = load("bench_peers")
    slow, fast = "FLGo FedAsync", "FLGo FedBuff"
    measurements = {
        (bench.OUR_FEDASYNC, "mlp"): [measurement(load, cpu) for cpu in (3.0, 4.0, 5.0)],
        (bench.BARE, "mlp"): [measurement(load, cpu) for cpu in (2.0, 2.0, 2.0)],
        (slow, "mlp"): [measurement(load, cpu) for cpu in (7.0, 7.0, 7.0)],
        (fast, "mlp"): [measurement(load, cpu) for cpu in (10.0, 8.0, 6.0)],
        (bench.OUR_WORKERS, "cnn"): [measurement(load, 1.0, wall=6.0)],
        (bench.OUR_WORKERS_LAYOUT, "cnn"): [measurement(load, 1.0, wall=4.0)],
        (fast, "cnn"): [measurement(load, 1.0, wall=8.0)],  # on one core, and still the fastest
        ("FLGo FedBuff, num_parallels: 2", "cnn"): [measurement(load, 1.0, wall=10.0)],
        ("Flower FedAvg, 2 actors", "cnn"): [measurement(load, 1.0, wall=5.0)],
    }
    figures = {figure.key: figure for figure in bench.compare(list(bench.SYSTEMS), measurements, None)}
    assert figures["cpu_over_fastest_peer_mlp"].value == 0.5  # 3 over 6
    assert fast in figures["cpu_over_fastest_peer_mlp"].detail
    assert figures["cpu_over_bare_loop_mlp"].value == 1.5
    assert figures["wall_on_two_cores_cnn"].value == 0.5
    assert figures["wall_on_two_cores_cnn_same_layout"].value == 0.75
    assert figures["wall_on_two_cores_cnn_or_in_rounds"].value == 0.8
    assert figures.keys().isdisjoint({"cpu_over_fastest_peer_cnn", "cpu_over_bare_loop_cnn"})  # not measured
    assert bench.missed_goals(list(figures.values())) == [
        "cpu_over_bare_loop_mlp",
        "wall_on_two_cores_cnn_same_layout",
        "wall_on_two_cores_cnn_or_in_rounds",
    ]


def test_a_peer_that_fails_is_described_not_dropped(load):
    bench = load("bench_peers")
    systems = [system for system in bench.SYSTEMS if system.name in (bench.BARE, "FLGo FedAsync")]
    failures = {systems[1].name: "not installed: No matching distribution"}
    measured = {(bench.BARE, "mlp"): [measurement(load, cpu) for cpu in (3.0, 1.0, 2.0)]}
    described = bench.describe(systems, measured, failures, [], repeats=3)
    entry = described["systems"][bench.BARE]["mlp"]
    assert (entry["cpu_ms_per_update"], entry["wall_ms_per_update"], entry["peak_mb"]) == (1.0, 0.0, 100.0)
    assert described["systems"]["FLGo FedAsync"]["error"] == "not installed: No matching distribution"
    json.dumps(described, allow_nan=False)
