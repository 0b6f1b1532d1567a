"""The same bits for any number of workers, and however often a run is interrupted."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from asyncmanifold import (
    METHODS,
    ArrivalGroups,
    Averaging,
    DelayLimit,
    EveryClient,
    ExponentialAveraging,
    RoundTable,
    Schedule,
    ServerMomentum,
)
from asyncmanifold.commands.cli import main
from asyncmanifold.execution.executors import InlineExecutor
from asyncmanifold.files import load_tree
from asyncmanifold.server.methods import COMPARED
from tiny import EVENTFUL, TRAINING, make_run, make_task, simulated, start_interruptible, trace_of

PROGRAM = [sys.executable, "-m", "asyncmanifold"]


def complete(*arguments) -> None:
    """Run a command to its end, in this process."""
    assert main([str(argument) for argument in arguments]) == 0


def run(out: Path, method="asyncbezier", schedule=EVENTFUL, updates=40, **options):
    settings = {"updates": updates, "checkpoint_seconds": options.pop("checkpoint_seconds", 30.0)}
    return simulated(
        make_task(sizes=(10, 14, 18, 22, 26, 30, 34)),
        method,
        training=TRAINING,
        schedule=schedule,
        run=make_run(**settings),
        out=out,
        **options,
    )


def assert_same(one: Path, other: Path) -> None:
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert trace_of(one) == trace_of(other)


def test_any_number_of_workers_gives_the_same_bits(tmp_path):
    for workers in (1, 2, 3):
        run(tmp_path / str(workers), workers=workers)
    assert_same(tmp_path / "1", tmp_path / "2")
    assert_same(tmp_path / "1", tmp_path / "3")
    run(tmp_path / "alone", workers=1, executor="process")
    assert_same(tmp_path / "1", tmp_path / "alone")


def test_another_seed_gives_another_run(tmp_path):
    one = simulated(make_task(), training=TRAINING, run=make_run(10, seed=0), out=tmp_path / "0")
    two = simulated(make_task(), training=TRAINING, run=make_run(10, seed=1), out=tmp_path / "1")
    assert one.summary["seed"] != two.summary["seed"]
    assert trace_of(tmp_path / "0") != trace_of(tmp_path / "1")


INTERRUPTED = {
    **{name: METHODS[name] for name in (*COMPARED, "fadas", "ca2fl", "aced")},
    **{name: METHODS[name] for name in ("rescaled", "fedcompass")},
    "on disk": replace(METHODS["ringleader"], buffer=RoundTable(cache_place="disk")),
    "averaged": replace(METHODS["fedbuff"], averaging=Averaging(1)),
    "polynomial": replace(METHODS["dcasgd"], max_staleness=6),
    "everything": replace(
        METHODS["asyncbezier-ed"],
        buffer=EveryClient(cache_precision="bfloat16"),
        server_optimizer=ServerMomentum(0.3),
        averaging=ExponentialAveraging(5.0),
        adaptive_epochs=ArrivalGroups(1, 3),
        gates=(DelayLimit(6),),
    ),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_run_interrupted_at_20_random_points_ends_the_same(tmp_path, name, monkeypatch):
    """Interrupt during training, where a checkpoint is written, and between two records, where none is."""
    method, schedule = INTERRUPTED[name], EVENTFUL if name != "fedavg" else Schedule("clock")
    run(tmp_path / "whole", method, schedule)
    points = random.Random(name)
    train, calls = InlineExecutor.result, 0

    def interrupting_train(self, job, remaining):
        nonlocal calls
        calls += 1
        if calls == next_call:
            raise KeyboardInterrupt
        return train(self, job, remaining)

    def interrupting_observer(record):
        nonlocal calls
        calls += 1
        if calls == next_call:
            raise KeyboardInterrupt

    monkeypatch.setattr(InlineExecutor, "result", interrupting_train)
    for _ in range(20):
        calls, next_call = 0, points.randrange(1, 4)
        observer = interrupting_observer if points.random() < 0.3 else None
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", method, schedule, resume=True, observer=observer)
    next_call = -1
    run(tmp_path / "parts", method, schedule, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_may_be_resumed_with_other_workers(tmp_path, monkeypatch):
    run(tmp_path / "whole")

    def interrupt(record):
        if record.get("update") == 17:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", observer=interrupt)
    run(tmp_path / "parts", resume=True, workers=2)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_killed_process_continues_to_the_same_bits(tmp_path):
    """kill -9 at random moments, then --resume; the checkpoints are as frequent as can be."""
    command = ["run", "digits", "--method", "asyncbezier", "--quiet", "--set", "updates=40"]
    command += ["--set", "checkpoint_seconds=0", "--out"]
    complete(*command, tmp_path / "whole")
    moments, kills = random.Random(3), 0
    for _ in range(4):
        process = subprocess.Popen([*PROGRAM, *command, tmp_path / "parts", "--resume"])
        trace = tmp_path / "parts" / "trace.jsonl"
        size = trace.stat().st_size if trace.exists() else 0
        while process.poll() is None and (not trace.exists() or trace.stat().st_size <= size):
            time.sleep(0.005)  # until it makes progress
        time.sleep(moments.random() * 0.2)
        if process.poll() is None:
            process.kill()
            kills += 1
        process.wait()
    complete(*command, tmp_path / "parts", "--resume")
    assert kills >= 2
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_ctrl_c_leaves_a_run_that_resume_continues(tmp_path):
    """With a checkpoint, unless the signal falls into the moment in which an update is absorbed."""
    command = ["run", "digits", "--method", "fedasync", "--set", "updates=150", "--out"]
    complete(*command, tmp_path / "whole", "--quiet")
    for attempt in range(5):
        parts = tmp_path / f"parts-{attempt}"
        process = start_interruptible([*PROGRAM, *command, parts])
        trace = parts / "trace.jsonl"
        while not trace.exists() or trace.read_bytes().count(b"\n") < 20:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        assert process.returncode == 130
        assert "with --resume continues" in said
        assert not (parts / "summary.json").exists()
        has_checkpoint = (parts / "checkpoint.safetensors").exists()
        complete(*command, parts, "--quiet", "--resume")
        assert_same(tmp_path / "whole", parts)
        if has_checkpoint:
            return
    pytest.fail("none of five interruptions left a checkpoint")


FULL_DISK = """
import resource, sys
from asyncmanifold.commands.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # the trace fits, a checkpoint does not
sys.exit(main(sys.argv[1:]))
"""


def test_a_checkpoint_that_cannot_be_written_costs_nothing(tmp_path):
    options = ["run", "digits", "--set", "updates=30", "--set", "checkpoint_seconds=0", "--out"]
    whole = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *options, tmp_path / "full"], capture_output=True, text=True
    )
    assert whole.returncode == 0, whole.stderr
    assert "warning: checkpoint not written" in whole.stderr
    assert not list((tmp_path / "full").glob("*.draft"))
    checkpoint = load_tree(tmp_path / "full" / "checkpoint.safetensors")  # the last complete one
    assert checkpoint["state"]["updates"] < 30
    complete(*options, tmp_path / "free", "--quiet")
    assert_same(tmp_path / "full", tmp_path / "free")


def test_a_trace_that_cannot_be_written_stops_a_run_that_can_be_resumed(tmp_path):
    options = ["run", "digits", "--quiet", "--set", "updates=40", "--set", "checkpoint_seconds=0", "--out"]
    small = FULL_DISK.replace("300_000", "12_000")
    stopped = subprocess.run(
        [sys.executable, "-c", small, *options, tmp_path / "parts"], capture_output=True, text=True
    )
    assert stopped.returncode == 1
    assert stopped.stderr.count("\n") == 1
    assert "File too large" in stopped.stderr
    for name, more in (("parts", ["--resume"]), ("whole", [])):
        complete(*options, tmp_path / name, *more)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_the_caller_keeps_its_threads_and_its_random_numbers(tmp_path):
    import torch

    torch.manual_seed(5)
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    simulated(make_task(), training=TRAINING, run=make_run(10))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_workers_leave_no_file_behind(tmp_path, monkeypatch):
    made, make = [], tempfile.mkstemp

    def remember(*arguments, **options):
        handle, path = make(*arguments, **options)
        made.append(Path(path))
        return handle, path

    monkeypatch.setattr(tempfile, "mkstemp", remember)  # other tests make such files at the same time
    run(tmp_path / "run", workers=2, updates=5)
    shared = [path for path in made if path.name.startswith("asyncmanifold-")]
    assert len(shared) == 1
    assert not shared[0].exists()


def test_a_dead_worker_is_said_and_the_run_can_be_resumed(tmp_path):
    run(tmp_path / "whole")

    def kill(record):
        if record.get("update") == 12:
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(RuntimeError, match="a worker process died"):
        run(tmp_path / "parts", workers=2, observer=kill)
    run(tmp_path / "parts", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_program_without_a_guard_is_told_so(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from asyncmanifold import Placement, Run, Task, simulate\n"
        "data = (torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64))\n"
        "task = Task(torch.nn.Linear(2, 2), torch.nn.functional.cross_entropy, [data, data], data)\n"
        "simulate(task, run=Run(updates=4), placement=Placement(workers=2))\n"
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert ended.returncode != 0
    assert "must do its work below if __name__ == '__main__'" in ended.stderr


def test_a_task_that_cannot_be_sent_to_workers_is_refused(tmp_path):
    task = replace(make_task(), loss=lambda outputs, targets: outputs.sum())
    with pytest.raises(ValueError, match="a task for several workers must be picklable"):
        simulated(task, workers=2, out=tmp_path)
    assert list(tmp_path.iterdir()) == []  # free for another try


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 0}, r"Placement\(workers=0\) must be at least 1"),
        ({"executor": "dask"}, r"executor='dask'\) must be 'inline', 'process', 'ray' or 'batched'"),
        ({"executor": "process", "ray_address": "auto"}, "is only for executor 'ray'"),
    ],
)
def test_an_executor_that_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        simulated(make_task(), **options)
