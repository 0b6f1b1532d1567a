"""Configurations: composed from parts, overridden by key, written out and read back the same."""

import tomllib
from dataclasses import fields, replace
from itertools import permutations
from typing import Any

import pytest
import tomli_w

from asyncmanifold import (
    METHODS,
    PARTS,
    AdaptiveEpochs,
    Averaging,
    Bezier,
    Buffer,
    CyclicRate,
    DelayCompensation,
    Distance,
    Hinge,
    LocalPrivacy,
    LocalTraining,
    Method,
    NormBound,
    OrthoDC,
    PortBuffer,
    Run,
    Schedule,
)
from asyncmanifold.configuration.config import (
    config_tree,
    load_config,
    method_names,
    scenario_names,
    with_setting,
)
from asyncmanifold.configuration.parts import part_class
from asyncmanifold.errors import InputError
from asyncmanifold.privacy.protection import Protection


def write(tmp_path, text: str) -> str:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", METHODS)
def test_a_configuration_repeats_itself(tmp_path, name):
    config = load_config("digits", name, seed=4, settings={"updates": "7", "concurrency": "3"})
    path = write(tmp_path, tomli_w.dumps(config_tree(config)))
    assert load_config(path) == config


def test_any_composition_can_be_named_in_a_scenario(tmp_path):
    path = write(
        tmp_path,
        """
        [methods.cubic]
        embedding = { name = "bezier", degree = 3 }
        correction = "delay-compensation"
        staleness = { name = "hinge", delay = 2 }
        buffer = { name = "buffer", buffer_size = 4 }
        penalty = { name = "distance", decay = 0.5 }
        """,
    )
    assert load_config(path, "cubic").method == Method(
        embedding=Bezier(3),
        correction=DelayCompensation(),
        staleness=Hinge(delay=2),
        buffer=Buffer(4),
        penalty=Distance(0.5),
    )
    assert method_names(path) == [*METHODS, "cubic"]


def test_a_method_can_be_a_file_of_its_own(tmp_path):
    path = write(tmp_path, 'embedding = "bezier"\ncorrection = { name = "orthodc", threshold = -1 }')
    config = load_config("digits", path)
    assert config.method_name == "own"
    assert config.method == Method(embedding=Bezier(), correction=OrthoDC(-1.0))


def test_a_scenario_can_change_a_published_method(tmp_path):
    path = write(tmp_path, "[methods.asyncbezier]\nglobal_lr = 0.5\ncorrection.threshold = 1.0")
    method = load_config(path, "asyncbezier").method
    assert (method.global_lr, method.correction, method.embedding) == (0.5, OrthoDC(1.0), Bezier(2))


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [
        *(("asyncbezier", key, "1") for key in ("updates", "clients", "concurrency", "evaluate_every")),
        *(("asyncbezier", key, "1") for key in ("batch_size", "point_epochs", "curve_epochs", "local_lr")),
        *(("asyncbezier", key, "1") for key in ("proximal", "global_lr", "threshold", "decay", "degree")),
        ("fedbuff", "buffer_size", "3"),
    ],
)
def test_keys_are_reached_by_their_last_name(method, key, value):
    config = load_config("digits", method, settings={key: value})
    found = []

    def walk(table):
        for name, entry in table.items():
            if isinstance(entry, dict):
                walk(entry)
            elif name == key:
                found.append(entry)

    walk(config_tree(config))
    assert found == [float(value)]


def test_a_part_can_be_replaced_and_unset_from_the_command_line():
    settings = {"correction": "orthodc", "threshold": "0.5", "target": "none", "latency": "constant"}
    config = load_config("digits", "fedasync", settings=settings)
    assert config.method.correction == OrthoDC(0.5)
    assert config.run.target is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[run]\nupdates = ", "own.toml: Invalid value (at line 2, the end)"),
        ("[run]\nupdates = 3\nseed = = 4\n", "own.toml: Invalid value (at line 3, column 8)"),
        ("[runs]\nupdates = 3", "own.toml: unknown key 'runs', did you mean 'run'?"),
        ("[run]\nupdate = 3", "own.toml: run: unknown key 'update', did you mean 'updates'?"),
        ("[run]\nupdates = 0", "own.toml: run: Run(updates=0) must be at least 1"),
        ("[run]\nupdates = 1.5", "own.toml: run.updates = 1.5: must be a whole number"),
        ("[run]\nupdates = true", "own.toml: run.updates = True: must be a whole number"),
        ("[training]\noptimizer = 'adagradd'", "training: optimizer 'adagradd' is not in torch.optim"),
        ("[training]\nlocal_lr = 'big'", "own.toml: training.local_lr = 'big': must be a number"),
        ("[schedule]\nlatency = 'warp'", "schedule.latency has no part 'warp': allowed are constant, "),
        ("[schedule]\nlatency = 3", "schedule.latency must be a name or a table"),
        ("[schedule.latency]\njitter = 3.0", "schedule.latency needs a name: allowed are constant"),
        ("[schedule.latency]\nname = 'recorded'", "schedule.latency: RecordedLatency needs path"),
        ("[task]\nname = 'digit'", "task has no part 'digit': allowed are digits, "),
        ("task = 3", "task must be a name or a table"),
        ("run = 3", "own.toml: run must be a table"),
        ("[methods]\nfedasync = 3", "methods.fedasync must be a table"),
        ("[methods.fedasync]\ncorection = 'tangent'", "unknown key 'corection', did you mean 'correction'?"),
        ("[methods.fedasync]\ncorrection = 'sideways'", "method.correction has no part 'sideways'"),
        ("[methods.fedasync.penalty]\ndecay = 2.0", "Distance(decay=2.0) must be between 0 and 1"),
        ("[methods.fedasync]\nglobal_lr = 0", "Method(global_lr=0.0) must be above 0"),
        ("[task]\nname = 'digits'\nclients = 500", "Digits(clients=500, min_examples=8) must need at most"),
    ],
)
def test_a_bad_scenario_is_one_line_with_its_place(tmp_path, text, problem):
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_config(path, "fedasync")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"treshold": "1"}, "--set treshold: unknown key, did you mean 'threshold'?"),
        ({"threshold": "1.5"}, "OrthoDC(threshold=1.5) must be between -1 and 1"),
        ({"threshold": "high"}, "threshold = 'high': must be a number"),
        ({"updates": "none"}, "run.updates must have a value"),
        ({"buffer_size": "3"}, "--set buffer_size: unknown key"),
    ],
)
def test_a_bad_setting_is_one_line(settings, problem):
    with pytest.raises(InputError) as error:
        load_config("digits", "asyncbezier", settings=settings)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_unset_stays_unset(tmp_path):
    path = write(tmp_path, '[task]\nname = "shakespeare"\nmax_test = "none"')
    config = load_config(path, settings={"updates": "3"})
    assert config.task.max_test is None
    again = write(tmp_path, tomli_w.dumps(config_tree(config)))
    assert load_config(again) == config


def test_a_name_that_fits_several_keys_asks_for_more(tmp_path):
    bounds = 'gates = [{name = "norm-bound", norm_bound = 5.0}, {name = "norm-bound", norm_bound = 9.0}]'
    path = write(tmp_path, f"[method]\n{bounds}")
    with pytest.raises(InputError, match=r"method.gates.0.norm_bound, method.gates.1.norm_bound"):
        load_config(path, settings={"norm_bound": "3"})
    config = load_config(path, settings={"gates.1.norm_bound": "3"})
    assert config.method.gates == (NormBound(5.0), NormBound(3.0))


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(InputError, match=r"none.toml: No such file"):
        load_config(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a UTF-8 text file"):
        load_config(str(tmp_path / "binary.toml"))


def test_every_preset_loads_with_every_method():
    for scenario in scenario_names():
        for method in method_names(scenario):
            config = load_config(scenario, method)
            assert tomllib.loads(tomli_w.dumps(config_tree(config)))


def test_a_choice_called_none_is_a_choice():
    assert load_config("digits", "fedbuff", settings={"weighting": "none"}).method.weighting == "none"


RATED = (
    *("fedasync", "asyncsgd", "fedortho", "fedgs", "dcasgd", "fedbuff"),
    *("asyncfeded", "asyncbezier", "asyncbezier-ed"),
)
PAPER_RATES = {
    # The paper's table of global learning rates; it has none for asyncsgd, which takes FedGS's.
    "femnist": (3.0, 1.0, 3.0, 1.0, 1.0, 1.0, 0.25, 0.5, 0.25),
    "shakespeare": (5.0, 2.5, 5.0, 2.5, 2.5, 2.0, 1.5, 1.5, 1.0),
    "cxr8": (2.0, 1.0, 2.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25),
}
PAPER_THRESHOLDS = {"femnist": 1.0, "shakespeare": 0.0, "cxr8": 0.0}
PAPER_TARGETS = {"femnist": 0.8, "shakespeare": 0.5, "cxr8": 0.75}


PAPER_TASKS: dict[str, dict[str, Any]] = {
    "femnist": {
        "partition": "dirichlet",
        "concentration": 0.5,
        "max_examples": None,
        "max_test": None,
        "validation_fraction": 0.1,
    },
    "shakespeare": {
        "context": 80,
        "stride": 1,
        "max_windows": None,
        "layers": 6,
        "heads": 6,
        "width": 128,
        "dropout": 0.1,
        "max_test": 20_000,
        "validation_fraction": 0.1,
        "test_fraction": 0.1,
    },
    "cxr8": {
        "conditions": 8,
        "image_size": 128,
        "width": "x1.5",
        "max_examples": None,
        "validation_fraction": 0.1,
        "test_fraction": 0.2,
    },
}


@pytest.mark.parametrize("scenario", PAPER_RATES)
def test_paper_size_scenarios_have_the_papers_numbers(scenario):
    """And, where the paper gives none, those of docs/paper.md."""
    for method, rate in zip(RATED, PAPER_RATES[scenario], strict=True):
        config = load_config(scenario, method)
        assert config.method.global_lr == rate, method
        assert (config.training.point_epochs, config.training.curve_epochs) == (2, 2)
        assert (config.training.local_lr, config.training.proximal) == (1e-3, 1e-3)
        assert (config.training.optimizer, config.training.batch_size) == ("adam", 64)
        assert (config.run.updates, config.run.target) == (360, PAPER_TARGETS[scenario])
        assert (config.run.evaluate_every, config.run.target_every) == (10, 1)
        assert config.run.target_examples == 2_000
        assert (config.schedule.kind, config.task.clients) == ("queue", 30)
        assert config.method.weighting == "examples"
        assert {name: getattr(config.task, name) for name in PAPER_TASKS[scenario]} == PAPER_TASKS[scenario]
    assert load_config(scenario, "dcasgd").method.correction == DelayCompensation(2.0, adaptive=True)
    assert load_config(scenario, "fedbuff").method.buffer == Buffer(10)
    assert load_config(scenario, "fedasync").method == replace(
        METHODS["fedasync"], global_lr=PAPER_RATES[scenario][0]
    )
    assert load_config(scenario, "fedgs").method.correction == OrthoDC(0.0)
    assert load_config(scenario, "fedortho").method.correction == OrthoDC(1.0)
    for method, decay in (("asyncbezier", 0.0), ("asyncbezier-ed", 1.0)):
        config = load_config(scenario, method)
        assert config.method.correction == OrthoDC(PAPER_THRESHOLDS[scenario])
        assert config.method.penalty == Distance(decay)
        assert config.method.embedding == Bezier(2)
    asyncfeded = load_config(scenario, "asyncfeded").method
    assert asyncfeded.adaptive_epochs == AdaptiveEpochs(
        1.0, gain=1.0, adapt_after=10, max_epochs=10, epoch_rounding="down"
    )
    assert asyncfeded.penalty == Distance(1.0, warmup=10, lowest=0.0, highest=10.0)


def test_no_key_of_a_configuration_exists_twice():
    """Whatever parts a method has, the last name of a key says which one is meant."""
    slots = {
        slot: [part_class(slot, name) for name in names] for slot, names in PARTS.items() if slot != "task"
    }
    sections = [Method, LocalTraining, Run, Schedule]
    for task in PARTS["task"]:
        homes: dict[str, set[str]] = {}
        for section in sections:
            for field in fields(section):
                homes.setdefault(field.name, set()).add(section.__name__)
        for slot, parts in {**slots, "task": [part_class("task", task)]}.items():
            for part in parts:
                for field in fields(part):
                    homes.setdefault(field.name, set()).add(slot)
        # A run has at most one part that protects privacy.
        private = {field.name for field in fields(Protection)}
        shared = {name: where for name, where in homes.items() if len(where) > 1 and name not in private}
        # Two limits of a method are short for gates of the same name.
        assert shared == {"max_staleness": {"Method", "gates"}, "norm_bound": {"Method", "gates"}}, task


def test_a_short_form_and_its_gate_are_told_apart_by_path():
    config = load_config(
        "digits", "fedasync", settings={"gates": "[{name = 'norm-bound', norm_bound = 4.0}]"}
    )
    with pytest.raises(InputError, match=r"method.gates.0.norm_bound, method.norm_bound"):
        with_setting(config, "norm_bound", "2")
    assert with_setting(config, "gates.0.norm_bound", "2").method.gates == (NormBound(2.0),)


def test_a_part_that_is_not_set_is_reached_by_its_path():
    config = load_config("digits", "asyncsgd", settings={"averaging.average_from": "10"})
    assert config.method.averaging == Averaging(10)
    assert with_setting(config, "average_every", "3").method.averaging == Averaging(10, 3)
    for key in ("average_from", "averaging.nothing", "server_optimizer.beta", "buffer.buffer_size"):
        with pytest.raises(InputError, match=f"--set {key}: unknown key"):
            load_config("digits", "asyncsgd", settings={key: "10"})


def test_settings_are_given_in_any_order():
    needing_each_other = [
        ({"buffer": "port", "port_size": "3"}, "buffer", PortBuffer(3)),
        ({"weighting": "none", "outgoing": "local-privacy"}, "outgoing", (LocalPrivacy(),)),
        ({"outgoing": "local-privacy", "weighting": "none", "clip_norm": "2.0"}, "weighting", "none"),
    ]
    for settings, stage, expected in needing_each_other:
        for order in permutations(settings.items()):
            config = load_config("digits", "fedbuff", settings=dict(order))
            assert getattr(config.method, stage) == expected
    late = {"late_fraction": "0.4", "late_by": "5"}
    for order in permutations(late.items()):
        schedule = load_config("digits", settings=dict(order)).schedule
        assert (schedule.late_fraction, schedule.late_by) == (0.4, 5.0)


def test_the_cause_of_several_refusals_is_said():
    for settings in ({"port_size": "3", "buffer": "prot"}, {"buffer": "prot", "port_size": "3"}):
        with pytest.raises(InputError, match=r"method.buffer has no part 'prot'"):
            load_config("digits", settings=settings)


def test_a_key_of_a_part_that_is_not_chosen_names_the_part():
    with pytest.raises(InputError, match=r"^--set port_size: unknown key without buffer=port$"):
        load_config("digits", "fedbuff", settings={"port_size": "3"})
    with pytest.raises(InputError, match=r"unknown key without buffer=buffer or buffer=private-buffer$"):
        load_config("digits", "asyncsgd", settings={"buffer.buffer_size": "3"})


def test_a_part_with_a_required_setting_shows_its_table():
    with pytest.raises(InputError, match=r'DeviceTraces needs path: {name = "devices", path = …}$'):
        load_config("digits", settings={"latency": "devices"})


def test_schedules_of_the_global_rate_by_name():
    settings = {"rate_schedule": '{name = "cyclic", cycle_length = 5}'}
    assert load_config("digits", "fedasync", settings=settings).method.rate_schedule == CyclicRate(5)
    with pytest.raises(InputError, match=r"CyclicRate\(cycle_length=1\) must be at least 2"):
        load_config("digits", "fedasync", settings=settings | {"cycle_length": "1"})
