"""Portable arithmetic: chosen before torch is loaded, everywhere, and told by every file."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from asyncmanifold import InputError, Run, simulate
from asyncmanifold.arithmetic import PORTABLE, describe_arithmetic, explain_difference, is_portable
from asyncmanifold.commands.cli import main
from asyncmanifold.files import load_tree, save_tree
from tiny import TRAINING, make_run, make_task, simulated

PLAIN = {name: value for name, value in os.environ.items() if name not in PORTABLE}
SHORT = ["--set", "updates=4", "--set", "evaluate_every=2"]
MADE = {"kind": "native", "cpu": "Xeon", "capability": "AVX512", "torch": "2.13.0", "numpy": "2.4.6"}


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=PLAIN | environment, capture_output=True, text=True, timeout=120)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    whole = [sys.executable, "-m", "asyncmanifold", *arguments]
    return subprocess.run(whole, env=PLAIN | environment, capture_output=True, text=True, timeout=120)


def summary_of(out) -> dict:
    return json.loads((out / "summary.json").read_text())


def test_it_must_be_chosen_before_torch_is_loaded():
    choose = "import asyncmanifold; asyncmanifold.use_portable_arithmetic()"
    state = (
        "from asyncmanifold.arithmetic import describe_arithmetic as d; print(d()['kind'], d()['capability'])"
    )
    assert python(f"{choose}; {choose}; import torch; {choose}; {state}").stdout == "portable AVX2\n"
    assert python(state, **PORTABLE).stdout == "portable AVX2\n"
    for package in ("torch", "numpy"):
        refused = python(f"import {package}; {choose}").stderr.splitlines()[-1]
        assert f"portable arithmetic must be chosen before {package} is loaded" in refused


def test_a_run_is_refused_in_a_process_with_other_arithmetic(capsys):
    assert not is_portable()
    assert describe_arithmetic()["kind"] == "native"
    with pytest.raises(InputError, match="must be chosen before torch is loaded"):
        simulate(make_task(), run=Run(arithmetic="portable"))
    assert main(["run", "digits", "--portable"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(InputError, match="must be 'native' or 'portable'"):
        Run(arithmetic="exact")


def test_the_command_line_chooses_it_wherever_it_is_asked_for(tmp_path):
    """By an option, by a key, by a scenario's file, and from the configuration of a run."""
    scenario = tmp_path / "mine.toml"
    scenario.write_text('[run]\narithmetic = "portable"\n')
    ways = {
        "option": ["digits", "--portable", "--workers", "2"],
        "key": ["digits", "--set", "arithmetic=portable"],
        "file": [str(scenario)],
    }
    for name, way in ways.items():
        made = command("run", *way, *SHORT, "--method", "fedasync", "--quiet", "--out", str(tmp_path / name))
        assert made.stderr == ""
        assert summary_of(tmp_path / name)["arithmetic"]["kind"] == "portable"
        assert 'arithmetic = "portable"' in (tmp_path / name / "config.toml").read_text()
    models = {(tmp_path / name / "model.safetensors").read_bytes()[-4000:] for name in ("option", "key")}
    assert len(models) == 1  # two workers computed as the process that started them
    twice = command("run", "digits", "--portable", "--set", "arithmetic=native")
    assert twice.returncode == 2
    assert twice.stderr == "asyncmanifold: --set arithmetic: given twice\n"


def test_every_file_says_which_arithmetic_made_it(tmp_path):
    simulated(make_task(), training=TRAINING, run=make_run(10), out=tmp_path)
    here = describe_arithmetic()
    assert set(here) == {"kind", "products", "cpu", "capability", "python", "numpy", "torch"}
    assert summary_of(tmp_path)["arithmetic"] == here
    assert load_tree(tmp_path / "checkpoint.safetensors")["arithmetic"] == here


def test_differences_are_one_line_each():
    assert explain_difference(MADE, MADE) is None
    assert explain_difference(MADE, MADE | {"cpu": "EPYC", "capability": "AVX2"}) == (
        "made on Xeon (AVX512), this is EPYC (AVX2): the last digits may differ "
        "(not so in portable arithmetic)"
    )
    portable = MADE | {"kind": "portable"}
    assert explain_difference(portable, portable | {"cpu": "EPYC", "capability": "AVX2"}) is None
    assert explain_difference(portable, MADE) == (
        "made in portable arithmetic, this is native: the last digits may differ"
    )
    assert explain_difference(portable, portable | {"torch": "2.14.0"}) == (
        "made with torch 2.13.0, this is 2.14.0: the last digits may differ"
    )
    assert explain_difference(MADE, MADE | {"products": "compiled"}) == (
        "made with torch's inner products, here they are compiled: the last digits of models "
        "with more than 131,072 parameters may differ"
    )


def test_a_resume_on_another_processor_says_so(tmp_path):
    """The checkpoint is rewritten as if another machine had made it."""
    records = []

    def stop(record):
        if record.get("update") == 5:
            raise KeyboardInterrupt

    settings = {"training": TRAINING, "run": replace(make_run(10), checkpoint_seconds=0.0), "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        simulated(make_task(), **settings, observer=stop)
    checkpoint = tmp_path / "checkpoint.safetensors"
    tree = load_tree(checkpoint)
    save_tree(checkpoint, tree | {"arithmetic": describe_arithmetic() | {"cpu": "Z80"}})
    simulated(make_task(), **settings, resume=True, observer=records.append)
    warnings = [record["reason"] for record in records if record["kind"] == "warning"]
    assert len(warnings) == 1
    assert f"{tmp_path}: made on Z80" in warnings[0]


def test_a_replay_of_a_trace_from_another_processor_says_so(tmp_path, capsys):
    first, again = tmp_path / "first", tmp_path / "again"
    arguments = ["run", "digits", "--method", "fedasync", *SHORT]
    assert main([*arguments, "--out", str(first), "--quiet"]) == 0
    replay = [*arguments, "--replay", str(first / "trace.jsonl")]
    assert main([*replay, "--out", str(again)]) == 0
    assert "made on" not in capsys.readouterr().err
    summary = summary_of(first)
    summary["arithmetic"]["cpu"] = "Z80"
    (first / "summary.json").write_text(json.dumps(summary))
    assert main([*replay, "--out", str(tmp_path / "other")]) == 0
    assert f"asyncmanifold: {first}: made on Z80" in capsys.readouterr().err
