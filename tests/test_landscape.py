"""The landscape shows the run's own models: every number against the models themselves, computed slowly."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, replace
from html import unescape
from itertools import pairwise
from math import hypot, inf, pi

import numpy as np
import pytest
import torch

from asyncmanifold import METHODS, Bezier, Buffer, Disc, Patch, Task, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.configuration.config import Config
from asyncmanifold.errors import InputError
from asyncmanifold.landscape.losses import measure_landscape
from asyncmanifold.landscape.plane import Plane, draw_sample, sample_size, square_around
from asyncmanifold.landscape.repeated_update import (
    choose_update,
    differs,
    repeat_run,
)
from asyncmanifold.report.contours import area_above, levels
from asyncmanifold.report.landscape_figures import area_rows, landscape_figures
from asyncmanifold.report.landscape_page import write_landscape
from asyncmanifold.server.step import corrected_offsets
from asyncmanifold.vectors import FlatModel
from tiny import CLOCK, SIZES, TRAINING, make_run, make_task, of_kind, without_wall_times

EVERYTHING = 10**6


@dataclass(frozen=True)
class Tiny:
    def build(self, seed: int) -> Task:
        return make_task()


def make_config(method="asyncbezier", **parts) -> Config:
    return Config(
        scenario="tiny",
        method_name="tiny",
        task=Tiny(),
        method=replace(METHODS[method], **parts),
        training=TRAINING,
        schedule=CLOCK,
        run=make_run(20),
    )


def repeated_update(config, update=12, workers=1):
    return repeat_run(config, make_task(), update, workers=workers, observer=lambda record: None)


def landscape_of(config, update=12, grid=5):
    repeated = repeated_update(config, update)
    return repeated, measure_landscape(config, make_task(), repeated, grid=grid, examples=EVERYTHING)


def slow_loss(theta, statistics, data):
    model = FlatModel(make_task().build_model(0))
    model.load(theta, statistics)
    return make_task().evaluate(model, data)["loss"]


def shaped(function, count=41):
    axis = [-2.0 + 4.0 * i / (count - 1) for i in range(count)]
    return axis, [[function(x, y) for x in axis] for y in axis]


def polygon_area(places):
    turned = [*places[1:], places[0]]
    return 0.5 * sum(x * v - u * y for (x, y), (u, v) in zip(places, turned, strict=True))


# Contours


@pytest.mark.parametrize("radius", [0.7, 1.0, 1.6])
def test_the_area_above_a_level_of_a_bowl_has_a_round_hole(radius):
    axis, values = shaped(lambda x, y: x * x + y * y)
    outer, hole = area_above(axis, axis, values, radius**2)
    assert all(hypot(*place) == pytest.approx(radius, abs=0.004) for place in hole)
    assert hole[0] == hole[-1]
    assert polygon_area(outer) * polygon_area(hole) < 0  # turning the other way, it stays open when filled
    assert polygon_area(outer) + polygon_area(hole) == pytest.approx(16 - pi * radius**2, rel=0.003)


def test_contours_of_a_slope_are_exact():
    axis, values = shaped(lambda x, y: y, count=5)
    (area,) = area_above(axis, axis, values, 0.25)
    assert min(y for _, y in area) == 0.25
    assert polygon_area(area) == pytest.approx(4 * 1.75)


def test_what_has_no_value_is_left_out():
    """Half of a cell without one corner, and all of it without two."""
    assert area_above([0, 1], [0, 1], [[1.0, None], [None, 1.0]], 0.5) == []
    axis, values = shaped(lambda x, y: 1.0, count=4)
    values[0][1] = None  # two cells of nine
    for level in (0.0, -inf):
        assert sum(map(polygon_area, area_above(axis, axis, values, level))) == pytest.approx(16 * 8 / 9)
    assert area_above(axis, axis, values, 2.0) == []


def test_nothing_is_drawn_outside_of_a_surface():
    """The lowest colour fills the domain alone: around it, it would look like low losses."""
    _, landscape = landscape_of(make_config("asyncdisc"), grid=21)
    (scene,) = scenes_of(landscape, "surface")
    rows = area_rows(scene, levels(scene.losses, 7))
    lowest = [(row["x"], row["y"]) for row in rows if row["band"] == 0 and row["x"] is not None]
    assert max(hypot(x - 0.5, y) for x, y in lowest) <= 0.5 + 1e-4
    assert polygon_area(lowest) == pytest.approx(pi / 4, rel=0.1)


def test_levels_are_close_together_in_the_valley():
    _, values = shaped(lambda x, y: 3.0 + x * x + y * y)
    found = levels(values, 7)
    gaps = [b - a for a, b in pairwise(found)]
    assert len(found) == 7
    assert found[0] > 3.0
    assert gaps == sorted(gaps)
    assert levels([[1.0, 1.0], [1.0, None]], 7) == []
    assert levels([[None]], 7) == []
    assert levels([[1.0, inf], [2.0, 3.0]], 7)[-1] <= 3.0


# Replay


@pytest.mark.parametrize("workers", [1, 2])
def test_a_repeated_update_is_the_recorded_one(workers):
    config = make_config()
    trace = simulate(make_task(), config.method, training=TRAINING, schedule=CLOCK, run=config.run).trace
    recorded = of_kind(trace, "update")[11]
    repeated = repeated_update(config, workers=workers)
    assert without_wall_times([repeated.record]) == without_wall_times([recorded])
    assert not differs(recorded, repeated.record)
    assert differs({**recorded, "end_norm": recorded["end_norm"] * 1.001}, repeated.record)
    assert differs({**recorded, "client": -1}, repeated.record)


@pytest.mark.parametrize("method", ["asyncbezier", "fedasync", "fedortho", "dcasgd", "asyncsgd"])
def test_the_corrected_curve_leads_to_the_next_model(method):
    config = make_config(method)
    repeated = repeated_update(config)
    offsets = corrected_offsets(config.method, repeated.before, repeated.update, repeated.job.theta)
    weights = torch.tensor(config.method.embedding.weights(repeated.record["t"]))
    torch.testing.assert_close(repeated.before.theta + weights @ offsets, repeated.after.theta)
    assert repeated.after.version == repeated.before.version + 1
    assert offsets[-1].norm().item() == pytest.approx(repeated.record["end_norm"], rel=1e-5)
    assert (repeated.before.theta - repeated.job.theta).norm().item() == pytest.approx(
        repeated.record["drift_norm"], rel=1e-5
    )


def test_the_default_is_in_the_middle_and_stale_where_it_must_be():
    updates = [{"update": n, "staleness": n % 4} for n in range(1, 12)]
    assert choose_update(updates, None, is_curve=True)["update"] == 6
    assert choose_update(updates[:4], None, is_curve=False)["update"] == 2
    assert choose_update([*updates[:1], updates[3]], None, is_curve=False)["update"] == 1
    with pytest.raises(InputError, match="none is stale"):
        choose_update(updates[3:4], None, is_curve=False)
    with pytest.raises(InputError, match="--update 4: straight and not stale"):
        choose_update(updates, 4, is_curve=False)
    with pytest.raises(InputError, match="--update 12: the run has updates 1 to 11"):
        choose_update(updates, 12, is_curve=True)


# Geometry


def test_a_plane_has_true_shapes():
    torch.manual_seed(0)
    origin, chord, other = torch.randn(3, 50)
    plane = Plane.through(origin, chord, [2.0 * chord, other])
    assert plane.unit == pytest.approx(chord.norm().item())
    assert plane.place(origin) == (0.0, 0.0, 0.0)
    assert plane.place(origin + chord) == pytest.approx((1.0, 0.0, 0.0), abs=1e-6)
    x, y, off = plane.place(origin + other)
    assert y > 0.0
    assert off < 1e-6
    assert hypot(x, y) == pytest.approx((other.norm() / chord.norm()).item(), rel=1e-6)
    torch.testing.assert_close(plane.at(x, y), origin + other)
    assert plane.place(torch.randn(50))[2] > 0.1
    assert Plane.through(origin, chord, [3.0 * chord]) is None
    assert Plane.through(origin, 0.0 * chord, [other]) is None


def test_the_square_holds_every_place_with_room():
    assert square_around([(0.0, 0.0), (1.0, 0.5)], margin=0.5) == pytest.approx((-0.5, -0.75, 2.0))


def test_examples_are_drawn_by_the_seed():
    data = make_task().clients[4]
    assert sample_size(draw_sample(data, 10, 3)) == 10
    assert sample_size(draw_sample(data, 100, 3)) == len(data) == 44
    one, same, other = (draw_sample(data, 10, seed)[0][0] for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


# Losses


def test_losses_are_those_of_the_models_themselves():
    repeated, landscape = landscape_of(make_config())
    train, test, server = landscape.scenes
    assert [(s.view, s.data) for s in landscape.scenes] == [
        *(("client", "train"), ("client", "test"), ("server", "test"))
    ]
    base, offsets, statistics = repeated.job.theta, repeated.update.offsets, repeated.update.statistics
    models = {"Θ^t": base, "B": base + offsets[0], "C": base + offsets[1]}
    task = make_task()
    for scene, data in ((train, task.clients[repeated.job.client]), (test, task.test)):
        assert {m.name: m.loss for m in scene.marks} == pytest.approx(
            {name: slow_loss(theta, statistics, data) for name, theta in models.items()}
        )
        middle = base + 0.5 * offsets[0] + 0.25 * offsets[1]
        assert scene.curve_losses[20] == pytest.approx(slow_loss(middle, statistics, data), rel=1e-5)
        assert scene.chord_losses[20] == pytest.approx(
            slow_loss(base + 0.5 * offsets[1], statistics, data), rel=1e-5
        )
        ends = [slow_loss(models["Θ^t"], statistics, data), slow_loss(models["C"], statistics, data)]
        for losses in (scene.curve_losses, scene.chord_losses):
            assert [losses[0], losses[-1]] == pytest.approx(ends, rel=1e-5)
    after = {mark.name: mark for mark in server.marks}["Θ^τ+1"]
    assert after.loss == pytest.approx(
        slow_loss(repeated.after.theta, repeated.after.statistics, task.test), rel=1e-5
    )
    assert after.loss == pytest.approx(server.stop.curve_loss)
    assert server.stop.t == repeated.record["t"]
    assert hypot(after.x, after.y) == pytest.approx(repeated.record["fraction"], rel=1e-4)  # the paper's step


def test_the_grid_is_the_plane_through_the_three_models():
    repeated, landscape = landscape_of(make_config(), grid=4)
    scene, task = landscape.scenes[1], make_task()
    v_1, v_2 = repeated.update.offsets
    assert scene.unit == pytest.approx(v_2.norm().item())
    across = v_1 - (v_1 @ v_2) / (v_2 @ v_2) * v_2
    across = across / across.norm() * v_2.norm()
    for i, y in enumerate(scene.ys):
        for k, x in enumerate(scene.xs):
            theta = repeated.job.theta + x * v_2 + y * across
            assert scene.losses[i][k] == pytest.approx(
                slow_loss(theta, repeated.update.statistics, task.test), rel=1e-4
            )
    for mark in scene.marks:
        assert scene.xs[0] < mark.x < scene.xs[-1]
        assert scene.ys[0] < mark.y < scene.ys[-1]
    assert scene.xs[-1] - scene.xs[0] == pytest.approx(scene.ys[-1] - scene.ys[0])
    assert scene.curve[20] == pytest.approx(
        [
            sum(pair)
            for pair in zip(
                *((w * m.x, w * m.y) for w, m in zip((0.25, 0.5, 0.25), scene.marks, strict=True)),
                strict=True,
            )
        ],
        abs=1e-5,
    )
    assert scene.off_plane < 1e-5


def test_a_straight_update_is_drawn_in_the_plane_of_the_drift():
    repeated, landscape = landscape_of(make_config("fedasync"))
    client, _, server = landscape.scenes
    assert [mark.name for mark in client.marks] == ["Θ^t", "C", "Θ^τ"]
    assert [mark.name for mark in server.marks] == ["Θ^τ", "C′", "Θ^τ+1", "Θ^t"]
    assert all(mark.off_plane < 1e-5 for scene in landscape.scenes for mark in scene.marks)
    assert client.curve == client.curve_losses == []
    assert landscape.version - landscape.base_version == repeated.record["staleness"] > 0


def test_a_curve_of_higher_degree_is_projected_and_says_so():
    _, landscape = landscape_of(make_config(embedding=Bezier(3)))
    scene = landscape.scenes[0]
    assert [mark.name for mark in scene.marks] == ["Θ^t", "P1", "P2", "C"]
    assert scene.off_plane > 1e-3
    assert scene.marks[1].off_plane < 1e-5 < scene.marks[2].off_plane
    caption = landscape_figures(landscape)[0].caption
    assert "through Θ^t, P1 and C" in caption
    assert "A curve of degree 3 does not lie in a plane" in caption


def test_a_buffer_is_said_to_hold_the_step():
    _, landscape = landscape_of(make_config(buffer=Buffer(3)))
    assert landscape.scenes[2].marks[-1].name == "stop"
    assert "a buffer adds up several" in landscape_figures(landscape)[4].caption


def test_a_line_without_drift_has_no_plane():
    config = replace(make_config(), training=replace(TRAINING, curve_epochs=0))
    repeated = repeated_update(config, update=1)
    assert repeated.record["staleness"] == 0
    with pytest.raises(InputError, match=r"^update 1 is a straight line, .* another update with --update$"):
        measure_landscape(config, make_task(), repeated, grid=4, examples=10)


# Page


def test_the_page_stands_alone_and_survives_hostile_names_and_losses(tmp_path):
    _, landscape = landscape_of(make_config())
    scene = landscape.scenes[0]
    broken = replace(scene, losses=[[None] * 5] * 5, curve_losses=[None] * 41, chord_losses=[None] * 41)
    hostile = replace(landscape, scenario="<script>alert(1)</script>", scenes=[broken, *landscape.scenes[1:]])
    page = write_landscape(replace(hostile, differs=True), tmp_path).read_text()
    assert "<script>alert" not in page
    assert not re.search(r"(src|href)=\"", page.split("<script>")[0])
    assert "differs from its trace" in page
    assert "Running statistics are the client's after training" in unescape(page)
    assert "Running statistics are the server's after the update" in unescape(page)
    kinds = ("client-test", "client-train", "server-test")
    names = [f"landscape-{what}-{kind}" for what in ("plane", "profile") for kind in kinds]
    for ending in ("svg", "png"):
        assert sorted(path.stem for path in (tmp_path / "figures").glob(f"*.{ending}")) == names
    for path in (tmp_path / "figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "differs from its trace" not in write_landscape(landscape, tmp_path).read_text()


# Command line

QUICK = ["--set", "updates=6", "--set", "evaluate_every=3", "--set", "batch_size=64", "--quiet"]


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("landscape") / "run"
    assert main(["run", "digits", "--method", "asyncbezier", *QUICK, "--out", str(out)]) == 0
    return out


def test_the_command_writes_page_numbers_and_figures(digits_run, tmp_path, capsys):
    before = (digits_run / "trace.jsonl").read_bytes()
    assert main(["landscape", str(digits_run), "--grid", "4", "--out", str(tmp_path / "a" / "b")]) == 0
    said = capsys.readouterr()
    assert said.out == f"landscape: {tmp_path / 'a' / 'b' / 'landscape.html'}\n"
    assert "asyncbezier: 3/3 updates" in said.err
    assert re.search(r"landscape: (\d+)/\1 losses", said.err)
    assert "differs" not in said.err
    numbers = json.loads((tmp_path / "a" / "b" / "landscape.json").read_text())
    assert (numbers["scenario"], numbers["method"], numbers["update"]) == ("digits", "asyncbezier", 3)
    assert numbers["differs"] is False
    assert (digits_run / "trace.jsonl").read_bytes() == before


def test_an_unfinished_run_and_a_chosen_update(digits_run, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_bytes((digits_run / "config.toml").read_bytes())
    lines = (digits_run / "trace.jsonl").read_text().splitlines(keepends=True)
    numbers = [json.loads(line) for line in lines]
    for record in numbers:
        if record.get("update") == 2 and record["kind"] == "update":
            record["end_norm"] *= 2.0  # as if recorded with something else
    kept = [json.dumps(record) + "\n" for record in numbers][:-4]
    (run / "trace.jsonl").write_text("".join(kept) + '{"kind": "upd')
    arguments = ["landscape", str(run), "--grid", "3", "--examples", "20", "--quiet"]
    assert main([*arguments, "--update", "2"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "the repeated run differs from its trace" in said.err
    found = json.loads((run / "landscape.json").read_text())
    assert found["differs"] is True
    assert found["test_examples"][0] == 20
    last = max(record["update"] for record in numbers[:-4] if record["kind"] == "update")
    assert main([*arguments, "--update", "6"]) == 2
    assert f"--update 6: the run has updates 1 to {last}" in capsys.readouterr().err


def test_a_model_on_manifolds_is_refused_before_the_run_is_repeated(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    assert main(["run", "sphere", "--method", "asyncbezier", *QUICK, "--out", str(run)]) == 0
    monkeypatch.setattr("asyncmanifold.landscape.draw.repeat_run", None)
    assert main(["landscape", str(run)]) == 2
    reason = "the model has parameters on manifolds, and landscape draws flat spaces only"
    assert capsys.readouterr().err == f"asyncmanifold: {run}: {reason}\n"
    assert not (run / "figures").exists()


@pytest.mark.parametrize(
    ("change", "arguments", "reason"),
    [
        ({"config.toml": None}, [], "not a run (it has no config.toml)"),
        ({"trace.jsonl": None}, [], "not a run (it has no trace.jsonl)"),
        ({"trace.jsonl": ""}, [], "no update has been accepted yet"),
        ({"trace.jsonl": "nonsense\n"}, [], "trace.jsonl: damaged"),
        ({"trace.jsonl": "[1]\n"}, [], "trace.jsonl: damaged"),
        ({"trace.jsonl": '{"kind": "update"}\n'}, [], "damaged, an update is incomplete"),
        ({"config.toml": "= 3"}, [], "config.toml"),
        ({"config.toml": "[method]\n[task]\nclients = 3\n"}, [], "task needs a name"),
        (
            {"config.toml": '[method]\n[task]\nname = "femnist"\ndata = "gone.npz"\n'},
            ["--update", "1"],
            "gone",
        ),
        ({}, ["--grid", "1"], "--grid 1: must be at least 2"),
        ({}, ["--update", "0"], "'0' must be at least 1"),
        ({}, ["--data", "x.npz"], "takes no --data"),
        ({"file": "x"}, ["--out", "FILE"], "file"),
    ],
)
def test_what_is_wrong_is_one_line(digits_run, tmp_path, capsys, change, arguments, reason):
    for name in ("config.toml", "trace.jsonl"):
        (tmp_path / name).write_bytes((digits_run / name).read_bytes())
    for name, content in change.items():
        (tmp_path / name).unlink(missing_ok=True)
        if content is not None:
            (tmp_path / name).write_text(content)
    if "femnist" in str(change):
        lines = (tmp_path / "trace.jsonl").read_text().replace('"staleness": 0', '"staleness": 1')
        (tmp_path / "trace.jsonl").write_text(lines)
    arguments = [str(tmp_path / "file") if argument == "FILE" else argument for argument in arguments]
    try:
        code = main(["landscape", str(tmp_path), *arguments])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert reason in said.err


# --- surfaces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("embedding", [Disc(2), Patch(1)])
def test_a_surface_is_drawn_on_its_domain_with_its_geodesic(embedding, tmp_path):
    config = make_config("asyncdisc", embedding=embedding)
    repeated, landscape = landscape_of(config, grid=9)
    assert landscape.is_surface
    (scene,) = [scene for scene in landscape.scenes if scene.view == "surface"]
    assert (scene.curve[0], scene.curve[-1]) == (pytest.approx((0.0, 0.0)), pytest.approx((1.0, 0.0)))
    model, task = FlatModel(make_task().build_model(0)), make_task()
    inputs, targets = task.clients[repeated.job.client].batch(torch.arange(SIZES[repeated.job.client]))
    domain, offsets = embedding.domain, repeated.update.offsets
    inside = 0
    for row, y in zip(scene.losses, scene.ys, strict=True):
        for value, x in zip(row, scene.xs, strict=True):
            # Half a chord around the middle is the disc; the square stands on its corner.
            away = hypot(x - 0.5, y) if isinstance(embedding, Disc) else abs(x - 0.5) + abs(y)
            assert (value is not None) == (away <= 0.5 + 1e-9)
            if value is None:
                continue
            inside += 1
            along = domain.end - domain.start
            place = domain.start + x * along + y * np.array([-along[1], along[0]])
            theta = repeated.job.theta + torch.tensor(embedding.weights(tuple(place))) @ offsets
            model.load(theta, repeated.update.statistics)
            model.module.eval()
            with torch.no_grad():
                assert value == pytest.approx(task.loss(model.module(inputs), targets).item(), rel=1e-4)
    assert inside > 20
    write_landscape(landscape, tmp_path)
    assert "On the learned surface" in (tmp_path / "landscape.html").read_text()
    assert "the middle of the geodesic" in (tmp_path / "landscape.html").read_text()
    stop = next(mark for mark in scenes_of(landscape, "server")[0].marks if mark.name == "Θ^τ+1")
    near = min(hypot(stop.x - x, stop.y - y) for x, y in scenes_of(landscape, "server")[0].curve)
    assert near < 0.05


def scenes_of(landscape, view):
    return [scene for scene in landscape.scenes if scene.view == view]
