"""Devices: everything runs on one that refuses the CPU's tensors; names are understood or refused."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

import pretended
from asyncmanifold import (
    METHODS,
    Averaging,
    Bezier,
    Buffer,
    DelayCompensation,
    ExamplePrivacy,
    InputError,
    LocalTraining,
    Method,
    Outgoing,
    Placement,
    Records,
    Run,
    Shares,
    Task,
    Tunnel,
    simulate,
)
from asyncmanifold.client.device_data import DeviceExamples, MovedBatches
from asyncmanifold.configuration.config import load_config
from asyncmanifold.devices import CPU, find_device, move, repeatable, spread_devices
from asyncmanifold.execution.ray_workers import gpus_per_worker
from asyncmanifold.server.named_parts import KINDS, SEVERAL
from asyncmanifold.server.trusted_gates import AflGuard
from asyncmanifold.tasks import TensorData
from asyncmanifold.vectors import FlatModel
from tiny import TRAINING, make_task, without_wall_times

pretended.register()
DEVICE = torch.device("pretended")
CURVE = METHODS["asyncbezier"]
METHODS_THERE = {
    **METHODS,
    "cubic": replace(CURVE, embedding=Bezier(3, interior_start="chord")),
    "trajectory": replace(CURVE, embedding=Bezier(2, interior_start="trajectory")),
    "tunnel": replace(CURVE, embedding=Tunnel(2, radius=0.05)),
    "sharpness-aware": replace(CURVE, embedding=Tunnel(2, radius=0.05, sharpness_aware=True)),
    "compensated": replace(CURVE, correction=DelayCompensation(0.5, adaptive=True)),
    "averaged": replace(CURVE, buffer=Buffer(3), averaging=Averaging(2, 2, curve_degree=1)),
}


class Half(Outgoing):
    """Half precision on the way."""

    def send(self, parcel, random):
        noise = torch.from_numpy(random.standard_normal(1))  # on the CPU, as every part's own tensors
        sent = (parcel.tensors["offsets"] + 0 * noise).half()
        return replace(parcel, tensors={**parcel.tensors, "offsets": sent})

    def receive(self, parcel):
        received = parcel.tensors["offsets"].float()
        return replace(parcel, tensors={**parcel.tensors, "offsets": received})


@pytest.fixture(autouse=True)
def _keep_parameters():
    """Modules keep their parameters when they move, as they do on a GPU."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    pretended.calls.clear()
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def run_on(device, method, task=None, **settings):
    updates = settings.pop("updates", 4)
    run = Run(updates=updates, evaluate_every=2, device=device, server_device=settings.pop("server", "cpu"))
    return simulate(
        task or make_task(), method, training=settings.pop("training", TRAINING), run=run, **settings
    )


def parts_there():
    """A method for every part by its name, with settings that let it act within a few updates."""
    settings = {
        "aflguard": {"trusted_distance": 20.0},
        "averaging": {"average_from": 1, "curve_degree": 2},
        "buffer": {"buffer_size": 2},
        "calibrated": {"calibrated_size": 2},
        "norm-bound": {"norm_bound": 0.2, "clips": True},
        "port": {"port_size": 2},
        "private-buffer": {"buffer_size": 2},
        "staleness-bound": {"max_staleness": 3},
        "window": {"window": 2},
    }
    for stage, (_, parts) in KINDS.items():
        for name, kind in parts.items():
            part = kind(**settings.get(name, {}))
            weighting = "none" if name in ("local-privacy", "private-buffer") else "examples"
            given = (part,) if stage in SEVERAL else part
            yield name, Method(**{"weighting": weighting, "global_lr": 0.5, stage: given})


PARTS_THERE = dict(parts_there())
UNREPEATABLE = ("local-privacy", "private-buffer")


def assert_same_run(there, here):
    """The pretended device computes as the CPU does, so only where numbers are may differ."""
    for one, other in zip(without_wall_times(there.trace), without_wall_times(here.trace), strict=True):
        assert one.keys() == other.keys()
        for key in one:
            expected = (
                other[key] if isinstance(other[key], str) else pytest.approx(other[key], rel=2e-3, abs=1e-4)
            )
            assert one[key] == expected, key
    for one, other in zip(there.model.state_dict().values(), here.model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_the_pretended_device_refuses_the_cpus_tensors():
    there, here = torch.ones(3, device=DEVICE), torch.ones(3)
    for mix in (
        lambda: there + here,
        lambda: torch.dot(there, here),
        lambda: there.index_add(0, here.long(), here),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mix()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert torch.equal((2 * there).cpu(), torch.full((3,), 2.0))


@pytest.mark.parametrize("name", METHODS_THERE)
def test_every_method_trains_evaluates_and_absorbs_on_a_device(name):
    """With BatchNorm, dropout and statistics, as in the tiny task."""
    there = run_on("pretended", METHODS_THERE[name], server="pretended")
    assert pretended.calls["native_batch_norm"] > 10
    assert {parameter.device for parameter in there.model.parameters()} == {CPU}
    assert_same_run(there, run_on("cpu", METHODS_THERE[name]))


@pytest.mark.parametrize("name", PARTS_THERE)
def test_every_part_acts_on_a_device(name):
    """Buffers are released, averages begun, gates asked; private parts, whose noise is secret, run at all."""
    task = replace(make_task(), trusted=make_task().validation[0])
    updates = 40 if name == "round-table" else 6  # it waits for every client
    there = run_on("pretended", PARTS_THERE[name], task, server="pretended", updates=updates)
    assert there.summary["versions"] > 0
    if name in UNREPEATABLE:
        assert all(parameter.isfinite().all() for parameter in there.model.parameters())
    else:
        assert_same_run(there, run_on("cpu", PARTS_THERE[name], task, updates=updates))


def test_private_training_runs_on_a_device():
    training = replace(TRAINING, example_privacy=ExamplePrivacy(sampling=0.4))
    task = replace(make_task(), model=lambda: nn.Linear(6, 3))
    there = run_on("pretended", Method(weighting="none"), task, training=training, updates=2)
    assert there.summary["updates"] == 2
    assert all(parameter.isfinite().all() for parameter in there.model.parameters())


@pytest.mark.parametrize(("device", "server"), [("cpu", "pretended"), ("pretended", "cpu")])
def test_clients_and_server_may_be_on_different_devices(device, server):
    assert_same_run(run_on(device, "asyncbezier", server=server), run_on("cpu", "asyncbezier"))


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": {"name": "AdamW", "weight_decay": 0.1}, "gradient_clip": 0.5},
        {"optimizer": "sgd", "momentum": 0.9, "accumulate": 2, "local_schedule": "cosine"},
        {"optimizer": "sgd"},
    ],
)
def test_every_way_of_training_runs_on_a_device(training):
    training = replace(TRAINING, **training)
    assert_same_run(
        run_on("pretended", "asyncbezier", training=training), run_on("cpu", "asyncbezier", training=training)
    )


def test_outgoing_parts_run_on_the_cpu():
    method = replace(CURVE, outgoing=(Half(),))
    assert_same_run(run_on("pretended", method), run_on("cpu", method))


RESUMED = {
    "gathered": Method(buffer=Buffer(3), server_optimizer="adam", averaging=Averaging(1), global_lr=0.05),
    "cached": Method(buffer="every-client", weighting="none", selection="routed"),
    "compensated": replace(CURVE, correction="delay-compensation", penalty="distance"),
    "guarded": Method(gates=("centred-clipping", "peer-bound", "peer-direction", AflGuard(20.0))),
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("server", ["cpu", "pretended"])
def test_a_run_on_a_device_resumes_to_the_same_bits(tmp_path, server, name):
    """The first run is interrupted after a checkpoint."""
    task = replace(make_task(), trusted=make_task().validation[0])

    def interrupt(record):
        if record["kind"] == "update" and record["update"] == 4:
            raise ConnectionAbortedError

    method, run = (
        RESUMED[name],
        Run(updates=8, evaluate_every=4, checkpoint_seconds=0, device="pretended", server_device=server),
    )
    whole = simulate(task, method, training=TRAINING, run=run)
    out = tmp_path / "run"
    with pytest.raises(ConnectionAbortedError):
        simulate(task, method, training=TRAINING, run=run, records=Records(out=out, observer=interrupt))
    assert (out / "checkpoint.safetensors").exists()
    resumed = simulate(task, method, training=TRAINING, run=run, records=Records(out=out, resume=True))
    assert without_wall_times(resumed.trace) == without_wall_times(whole.trace)
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_workers_train_on_a_device():
    """Their processes learn of it from the module of the task's model, ``pretended_task``."""
    import pretended_task

    task = pretended_task.make_task()
    there = run_on("pretended", "fedasync", task, placement=Placement(workers=2))
    assert_same_run(there, run_on("pretended", "fedasync", task))


# --- examples -----------------------------------------------------------------------------------------


def test_shared_examples_are_copied_to_a_device_once():
    inputs, targets = torch.randn(12, 4), torch.arange(12) % 3
    task = Task(
        nn.Linear(4, 3),
        nn.functional.cross_entropy,
        Shares(inputs, targets, [range(5), range(5, 12)]),
        (inputs, targets),
    )
    examples = DeviceExamples(DEVICE)
    pretended.calls.clear()
    for client in (0, 1, 0):
        rows, classes = examples.of(task.clients[client]).batch(torch.tensor([1, 2]))
        assert rows.device.type == "pretended"
        start = 5 * client
        assert torch.equal(rows.cpu(), inputs[start + 1 : start + 3])
        assert torch.equal(classes.cpu(), targets[start + 1 : start + 3])
    copies = pretended.calls["_copy_from"] - 2 * 3  # what the comparisons copied back
    assert copies == 2 + 3  # inputs and targets once, and the row numbers of each batch


def test_examples_that_do_not_fit_or_are_prepared_are_moved_by_batch(monkeypatch):
    data = TensorData(torch.randn(6, 4), torch.zeros(6))
    assert not isinstance(DeviceExamples(DEVICE).of(data), MovedBatches)
    prepared = replace(data, prepare=lambda rows: rows - torch.ones(4))  # a tensor of the CPU
    assert isinstance(DeviceExamples(DEVICE).of(prepared), MovedBatches)
    assert DeviceExamples(DEVICE).of(prepared).batch(torch.arange(2))[0].device.type == "pretended"
    monkeypatch.setattr("asyncmanifold.client.device_data.ROOM", 100)
    assert isinstance(DeviceExamples(DEVICE).of(data), MovedBatches)
    assert DeviceExamples(CPU).of(data) is data


def test_nested_batches_move_with_everything_in_them():
    batch = {"ids": torch.ones(2), "more": [torch.ones(1), (torch.ones(1), "text")], "n": 3}
    moved = move(batch, DEVICE)
    assert moved["ids"].device.type == moved["more"][1][0].device.type == "pretended"
    assert (moved["more"][1][1], moved["n"]) == ("text", 3)
    assert batch["ids"].device == CPU
    ordered = OrderedDict(ids=torch.ones(2))
    assert type(move(ordered, DEVICE)) is OrderedDict


# --- names and refusals -------------------------------------------------------------------------------


def test_names_of_devices_are_understood_or_refused_in_one_line():
    assert find_device("cpu") == find_device("auto") == CPU
    assert find_device("pretended:0") == torch.device("pretended", 0)
    for name in ("cuda", "cuda:1", "mps", "pretended:1", "nonsense"):
        with pytest.raises(
            InputError, match=f"device '{name}' is not available: .*'auto' takes what there is"
        ):
            find_device(name)
    for name in ("", "CUDA 1", "cuda:x", 0, DEVICE):
        with pytest.raises(InputError, match="must be 'auto', 'cpu', 'cuda'"):
            Run(device=name)


def test_auto_takes_the_best_device_and_the_configuration_says_which(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncmanifold.devices.AUTOMATIC", ("cuda", "pretended"))
    run = Run(updates=1, device="auto")
    out = tmp_path / "run"
    simulate(make_task(), "fedasync", training=TRAINING, run=run, records=Records(out=out))
    assert 'device = "pretended"' in (out / "config.toml").read_text()


def test_workers_take_turns_on_the_devices_of_a_kind(monkeypatch):
    monkeypatch.setattr(torch.pretended, "device_count", lambda: 2)
    spread = [str(device) for device in spread_devices(DEVICE, 5)]
    assert spread == ["pretended:0", "pretended:1", "pretended:0", "pretended:1", "pretended:0"]
    assert spread_devices(torch.device("pretended:1"), 2) == [torch.device("pretended:1")] * 2
    assert spread_devices(CPU, 2) == [CPU, CPU]
    assert gpus_per_worker(2, 8) == 0.25


def test_deterministic_algorithms_are_asked_for_on_devices_only():
    with repeatable(CPU):
        assert not torch.are_deterministic_algorithms_enabled()
    with repeatable(DEVICE):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_scenario_and_the_command_line_choose_the_device(tmp_path, capsys):
    from asyncmanifold.commands.cli import main

    scenario = tmp_path / "own.toml"
    scenario.write_text('[run]\ndevice = "cuda:1"\nthreads = 2\nserver_device = "cpu"\n')
    run = load_config(str(scenario), "fedasync").run
    assert (run.device, run.threads) == ("cuda:1", 2)
    assert main(["run", str(scenario), "--method", "fedasync", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("asyncmanifold: device 'cuda:1' is not available")
    out = tmp_path / "out"
    command = ["run", "digits", "--method", "fedasync", "--set", "updates=2", "--quiet", "--out", str(out)]
    assert main([*command, "--device", "pretended"]) == 0
    assert 'device = "pretended"' in (out / "config.toml").read_text()
    assert main([*command, "--device", "mps"]) == 2
    assert "device 'mps' is not available" in capsys.readouterr().err


def test_a_model_on_manifolds_stays_on_the_cpu():
    geoopt = pytest.importorskip("geoopt")
    module = nn.Module()
    module.point = geoopt.ManifoldParameter(torch.eye(3)[0].clone(), geoopt.Sphere())
    with pytest.raises(InputError, match="on manifolds is trained on the CPU, not on pretended"):
        FlatModel(module, DEVICE)


# --- precision, compilation, threads ------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_mixed_precision_learns_the_same_roughly(precision, optimizer):
    """On the CPU's autocast; weights and offsets stay float32."""
    plain = replace(TRAINING, optimizer=optimizer, local_lr=0.01)
    exact = run_on("cpu", "asyncbezier", training=plain, updates=20)
    mixed = run_on("cpu", "asyncbezier", training=replace(plain, precision=precision), updates=20)
    assert {parameter.dtype for parameter in mixed.model.parameters()} == {torch.float32}
    assert mixed.summary["final"] == pytest.approx(exact.summary["final"], abs=0.15)
    first, other = (next(r for r in result.trace if r["kind"] == "update") for result in (exact, mixed))
    assert other["loss"] == pytest.approx(first["loss"], rel=0.03)
    assert other["loss"] != first["loss"]


def test_a_step_that_overflows_is_left_out_and_halves_the_scale():
    from asyncmanifold.client.precision import START, LossScale

    model, scale = FlatModel(nn.Linear(1, 1, bias=False)), LossScale()
    weight = next(model.module.parameters())
    weight.grad = torch.full((1, 1), START * 3.0)
    assert scale.unscale(model)
    assert weight.grad.item() == 3.0
    weight.grad = torch.full((1, 1), torch.inf)
    assert not scale.unscale(model)
    assert (weight.grad, scale.factor) == (None, START / 2)


def test_a_model_is_compiled_only_if_asked(monkeypatch):
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(type(module).__name__))
    run_on("cpu", "fedasync", updates=1)
    assert compiled == []
    run_on("cpu", "fedasync", updates=1, training=replace(TRAINING, compile=True))
    assert compiled == ["Sequential"]


def test_threads_are_those_of_the_run(monkeypatch):
    seen = []

    def loss(outputs, targets):
        seen.append(torch.get_num_threads())
        return nn.functional.cross_entropy(outputs, targets)

    task = replace(make_task(), loss=loss)
    before = torch.get_num_threads()
    simulate(task, "fedasync", training=TRAINING, run=Run(updates=1, threads=2))
    assert set(seen) == {2}
    assert torch.get_num_threads() == before
    for wrong in (0, "two"):
        with pytest.raises(InputError, match=rf"Run\(threads={wrong!r}\) must be at least 1"):
            Run(threads=wrong)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_types_are_refused_with_the_way_out(dtype):
    task = replace(make_task(), model=nn.Linear(6, 3).to(dtype))
    with pytest.raises(InputError, match=r"only float32 can be trained: call model\.float\(\)"):
        simulate(task, "fedasync", training=LocalTraining(), run=Run(updates=1))
