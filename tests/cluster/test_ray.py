"""The Ray executor: the same bits as in this process, whoever is lost on the way."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import descendants, left_alive, trainers, trainers_left, trainers_seen

from asyncmanifold import METHODS, CurveCodec, Score
from asyncmanifold.commands.cli import main
from asyncmanifold.errors import InputError, RunError
from asyncmanifold.execution import ray_workers
from tiny import EVENTFUL, TRAINING, make_run, make_task, simulated, start_interruptible, trace_of

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from own_cache import CachedMean
from own_clip import Clip
from own_momentum import Momentum

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of Ray's own files and processes


def run(out: Path, method="asyncbezier", broken=(), **options):
    return simulated(
        make_task(sizes=(10, 14, 18, 22, 26, 30, 34), broken=broken),
        method,
        training=TRAINING,
        schedule=EVENTFUL,
        run=make_run(updates=40),
        out=out,
        **options,
    )


def on(cluster, **options):
    return {"executor": "ray", "ray_address": cluster.address, "workers": 2} | options


def assert_same(one: Path, other: Path) -> None:
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert trace_of(one) == trace_of(other)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_on_a_cluster_gives_the_same_bits(tmp_path, cluster, method):
    """Client 3's losses are no numbers: such jobs fail there as they do here."""
    run(tmp_path / "here", method, broken=(3,))
    run(tmp_path / "there", method, broken=(3,), **on(cluster))
    assert_same(tmp_path / "here", tmp_path / "there")
    assert "failed" in {record["kind"] for record in trace_of(tmp_path / "here")}
    assert trainers_left() == []


def test_own_parts_give_the_same_bits_on_a_cluster(tmp_path, cluster):
    """A server optimiser, a cache per client and an outgoing part from outside the package, and a codec."""
    method = replace(
        METHODS["asyncbezier"], server_optimizer=Momentum(), outgoing=(Clip(0.5), CurveCodec(64))
    )
    cached = replace(METHODS["asyncsgd"], buffer=CachedMean(7), weighting="none", global_lr=0.3)
    for name, own in (("optimised", method), ("cached", cached)):
        run(tmp_path / name / "here", own)
        run(tmp_path / name / "there", own, **on(cluster))
        assert_same(tmp_path / name / "here", tmp_path / name / "there")


def test_killed_workers_cost_only_their_jobs(tmp_path, cluster):
    """First one of two is killed, later both at once."""
    killed = []

    def kill(record):
        if record["kind"] == "update" and (chosen := {12: 1, 25: 2}.get(record["update"])):
            for pid in trainers_seen()[:chosen]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    run(tmp_path / "here")
    run(tmp_path / "there", **on(cluster), observer=kill)
    assert len(killed) >= 2
    assert_same(tmp_path / "here", tmp_path / "there")


def test_a_lost_machine_costs_only_its_jobs(tmp_path, cluster):
    lost = cluster.add_node(num_cpus=2)

    def lose(record):
        if record["kind"] == "update" and record["update"] == 12:
            cluster.remove_node(lost, allow_graceful=False)

    run(tmp_path / "here")
    run(tmp_path / "there", **on(cluster, workers=4), observer=lose)
    cluster.wait_for_nodes()  # until the loss is noticed: Ray tells every program of it, also another test's
    assert lost not in cluster.list_all_nodes()
    assert_same(tmp_path / "here", tmp_path / "there")


def end_process(outputs, targets):
    if torch.is_grad_enabled():  # evaluations are made here
        os._exit(1)
    return outputs.sum()


def test_a_job_that_kills_every_worker_ends_the_run(cluster):
    with pytest.raises(RunError, match=r"job \d of client \d lost its Ray worker 3 times"):
        simulated(replace(make_task(), loss=end_process), **on(cluster, workers=1))


def fail(outputs, targets):
    if torch.is_grad_enabled():
        raise KeyError("no such thing")
    return outputs.sum()


def test_an_error_in_a_worker_is_shown_as_it_is(cluster):
    with pytest.raises(RuntimeError, match=r"(?s)failed in a Ray worker.*in fail.*no such thing"):
        simulated(replace(make_task(), loss=fail), **on(cluster, workers=1))


def test_what_cannot_be_sent_is_refused(tmp_path, cluster):
    task = replace(make_task(), metrics={"locked": Score(threading.Lock().acquire, higher_is_better=True)})
    with pytest.raises(InputError, match="a task for Ray must be picklable"):
        simulated(task, out=tmp_path, **on(cluster))
    assert list(tmp_path.iterdir()) == []  # free for another try


def test_workers_of_another_version_are_refused(cluster, monkeypatch):
    monkeypatch.setattr(ray_workers, "own_versions", lambda: {"torch": "1.0"})
    with pytest.raises(InputError, match=r"a Ray worker has .*must have {'torch': '1.0'}"):
        simulated(make_task(), **on(cluster, workers=1))


def test_nobody_waits_for_ever_for_a_worker(cluster, monkeypatch):
    monkeypatch.setattr(ray_workers, "START_SECONDS", 0.01)
    with pytest.raises(
        RunError, match=r"no Ray worker started within 0.01 s.*the cluster has \d+ and others"
    ):
        simulated(make_task(), **on(cluster))


def test_models_and_data_lie_in_memory_once(cluster):
    """A tensor that many clients share is put once, and of a view only what it shows."""
    import ray

    inputs, targets = torch.randn(1000, 50), torch.zeros(1000, dtype=torch.int64)
    parts = list(zip(inputs.split(10), targets.split(10), strict=True))
    ray.init(address=cluster.address, logging_level="error")
    try:
        with ray_workers._tensors_as_arrays(ray):
            for clients in ([(inputs, targets)] * 100, parts):
                buffers = []
                ray.cloudpickle.dumps(clients, protocol=5, buffer_callback=buffers.append)
                assert sum(memoryview(buffer).nbytes for buffer in buffers) == 1000 * (50 * 4 + 8)
            sent = {"half": torch.arange(3.0, dtype=torch.bfloat16), "one": torch.tensor(True)}
            sent |= {"none": torch.zeros(0, 3), "grad": torch.ones(2, requires_grad=True)}
            got = ray.get(ray.put(sent))
        for name, tensor in sent.items():
            assert torch.equal(got[name], tensor)
            assert (got[name].dtype, got[name].requires_grad) == (tensor.dtype, tensor.requires_grad)
    finally:
        ray.shutdown()


COMMAND = ["run", "sphere", "--method", "asyncbezier", "--set", "updates=12", "--set", "evaluate_every=6"]


def test_a_curved_model_from_the_command_line(tmp_path, cluster, capsys):
    assert main([*COMMAND, "--quiet", "--out", str(tmp_path / "here")]) == 0
    ray = ["--executor", "ray", "--ray-address", cluster.address, "--out", str(tmp_path / "there")]
    assert main([*COMMAND, "--quiet", *ray]) == 0
    assert capsys.readouterr() == ("", "")
    assert_same(tmp_path / "here", tmp_path / "there")


def test_no_cluster_is_one_line(tmp_path, capsys):
    arguments = ["--executor", "ray", "--ray-address", "127.0.0.1:9", "--out", str(tmp_path / "run")]
    assert main([*COMMAND, *arguments]) == 2
    assert re.fullmatch(
        r"asyncmanifold: no Ray cluster at 127.0.0.1:9: .*Connection refused\n", capsys.readouterr().err
    )
    assert not list((tmp_path / "run").iterdir())


def test_ctrl_c_ends_a_local_ray_and_leaves_a_run_that_resume_continues(tmp_path):
    command = [sys.executable, "-m", "asyncmanifold", "run", "digits", "--method", "fedasync"]
    command += ["--set", "updates=300", "--out"]
    process = start_interruptible(
        [*command, tmp_path / "parts", "--executor", "ray"], stdout=subprocess.PIPE, start_new_session=True
    )
    trace = tmp_path / "parts" / "trace.jsonl"
    while not trace.exists() or trace.read_bytes().count(b"\n") < 20:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    started = descendants(process.pid)
    assert trainers(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal does
    out, said = process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert said.count("\n") <= 3
    assert "with --resume continues" in said
    assert left_alive(started) == []
    for name, more in (("parts", ["--resume"]), ("whole", [])):
        subprocess.run([*command, tmp_path / name, *more, "--quiet"], check=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_the_workers_of_a_portable_run_compute_portably(tmp_path, cluster):
    """The cluster itself was started without; a worker that computes otherwise would be refused."""
    command = [sys.executable, "-m", "asyncmanifold", "run", "digits", "--portable", "--method", "fedasync"]
    command += ["--set", "updates=6", "--quiet", "--out"]
    subprocess.run([*command, tmp_path / "here"], check=True)
    there = ["--executor", "ray", "--ray-address", cluster.address, "--workers", "2"]
    subprocess.run([*command, tmp_path / "there", *there], check=True)
    assert_same(tmp_path / "here", tmp_path / "there")
