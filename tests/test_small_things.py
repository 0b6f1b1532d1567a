"""Things that a user meets by accident: each is said in one line, or does no harm."""

import os
import random
import signal
import subprocess
import sys
import time
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from asyncmanifold import InputError, Placement, Run, Score, Task, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.commands.completion import complete_methods, complete_scenarios
from asyncmanifold.execution.placement import available_cores
from asyncmanifold.experiments.given_tasks import method_configs
from asyncmanifold.server.method_notes import METHOD_NOTES, Group
from asyncmanifold.server.methods import COMPARED, METHODS
from tiny import TRAINING, make_run, make_task, simulated, start_interruptible, without_wall_times


class Augmented(Dataset):
    """Adds noise from the two global generators that authors of datasets use."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        noise = np.random.standard_normal(4) + random.random()
        return torch.tensor(index / 20 + 0.1 * noise).float(), index % 3


def test_randomness_inside_a_dataset_is_repeatable_and_leaves_no_trace():
    test = (torch.randn(9, 4), torch.arange(9) % 3)
    task = Task(nn.Linear(4, 3), nn.functional.cross_entropy, [Augmented()] * 3, test=test)
    traces = []
    for seed in (1, 2):
        np.random.seed(seed)
        random.seed(seed)
        before = np.random.get_state()[1].tolist(), random.getstate()
        result = simulate(task, "fedasync", training=TRAINING, run=Run(updates=6))
        traces.append(without_wall_times(result.trace))
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before
    assert traces[0] == traces[1]
    losses = [record["loss"] for record in traces[0] if record["kind"] == "update"]
    assert len(set(losses)) == 6  # jobs draw different numbers


@pytest.mark.parametrize(("target", "hint"), [(90, " (90 % is 0.9)"), (900, "")])
def test_a_target_that_no_score_can_reach_is_refused(target, hint):
    with pytest.raises(InputError) as caught:
        simulate(make_task(), run=Run(target=target))
    assert str(caught.value) == f"Run(target={target}) must be at most 1, the highest accuracy{hint}"


def test_other_scores_may_have_other_targets():
    def points(outputs, targets):
        return 100.0 * (outputs.argmax(dim=-1) == targets).float().mean()

    plain = make_task()
    metrics = {"points": Score(points, higher_is_better=True)}
    task = Task(plain.model, plain.loss, plain.clients, plain.test, metrics=metrics)
    simulate(task, "fedasync", training=TRAINING, run=Run(updates=2, target=90))


def test_more_workers_than_cores_are_told():
    cores = available_cores()
    assert Placement(workers=cores).crowding() is None
    assert Placement(workers=cores + 10).crowding() == (
        f"{cores + 10} workers share {cores} core{'s' * (cores != 1)}: no faster than {cores}"
    )


def test_a_run_tells_of_crowding_before_it_trains(monkeypatch):
    monkeypatch.setattr("asyncmanifold.execution.placement.available_cores", lambda: 1)
    seen = []
    simulated(make_task(), "fedasync", training=TRAINING, run=make_run(2), workers=2, observer=seen.append)
    assert seen[0] == {"kind": "warning", "reason": "2 workers share 1 core: no faster than 1"}


@pytest.mark.parametrize("command", [["run"], ["compare", "--methods", "fedasync", "--seeds", "0,1,2,3"]])
def test_ctrl_c_leaves_no_word_of_a_worker(tmp_path, command):
    """Ctrl-C goes to the whole group, as on a terminal; only the main process may speak."""
    whole = [sys.executable, "-m", "asyncmanifold", command[0], "digits", *command[1:], "--workers", "2"]
    process = start_interruptible(
        [*whole, "--set", "updates=5000", "--out", str(tmp_path / "runs")],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while (
        not any(file.stat().st_size for file in tmp_path.rglob("trace.jsonl")) and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    try:
        said = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 130
    assert "interrupted: the same command with --resume continues" in said
    assert "Process" not in said
    assert "Traceback" not in said


def test_names_complete():
    assert complete_scenarios("hyp") == ["hyperbolic"]
    assert complete_methods("") == list(METHODS)
    assert complete_methods("fedasync,asyncbezier-") == ["fedasync,asyncbezier-ed"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell, capsys):
    pytest.importorskip("argcomplete")
    assert main(["completion", shell]) == 0
    assert "asyncmanifold" in capsys.readouterr().out


def test_a_shell_is_answered():
    pytest.importorskip("argcomplete")
    line = "asyncmanifold compare digits --methods fedas"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    code = "import os, sys; os.dup2(1, 8); from asyncmanifold.commands.cli import main; main()"
    made = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    assert made.stdout.strip() == "fedasync"


def test_list_names_the_gates_of_a_method(capsys):
    assert main(["list"]) == 0
    assert "delay-limit(discard_from=30, cancels=True)" in capsys.readouterr().out


def test_list_shows_every_key(capsys):
    assert main(["list", "--json"]) == 0
    printed = capsys.readouterr().out
    for key in ("local_lr", "concurrency", "evaluate_every", "arithmetic"):
        assert f'"{key}"' in printed


def test_a_comparison_takes_a_selection_or_all():
    def taken(methods):
        return list(method_configs("digits", methods, settings={}, data=None, given={}))

    assert taken(None) == list(COMPARED)
    assert taken("all") == taken(["all"]) == list(METHODS)


def test_the_list_of_methods_has_groups_and_one_line_each(capsys):
    assert main(["list"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    places = [lines.index(group) for group in get_args(Group)]
    assert places == sorted(places)
    for name, note in METHOD_NOTES.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ") and note.summary in line]
        assert ("n × P" in line) == (note.group == "cached")
