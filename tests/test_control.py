"""Control of runs while they run, in simulations and on a grid in this process, with kills in between."""

import threading
import time

import pytest
import torch

from asyncmanifold import Records, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.commands.supervise import SupervisedRun
from asyncmanifold.errors import InputError
from asyncmanifold.flower import Policy
from asyncmanifold.session import control, control_desk
from asyncmanifold.session.control import EXCLUDED, STOPPED, Steward, check_words
from asyncmanifold.session.control_desk import ControlDesk, ControlSlip
from asyncmanifold.session.journal import Journal
from asyncmanifold.session.session import Session
from test_flower import QUICK, Killed, assert_same_model, grid_of, replayed, start
from tiny import CLOCK, TRAINING, make_run, make_task, of_kind, trace_of, without_wall_times

TASK = make_task()
RUN = make_run(30)


@pytest.fixture(autouse=True)
def always_due(monkeypatch):
    monkeypatch.setattr(control_desk, "INTERVAL", -1.0)


def simulated(out, observer=None, method="asyncbezier", run=RUN, **records):
    return simulate(
        TASK,
        method,
        training=TRAINING,
        schedule=CLOCK,
        run=run,
        records=Records(out=out, observer=observer, **records),
    )


class Asking:
    """An observer that asks at certain updates, as another process would."""

    def __init__(self, out, plan):
        self.out, self.plan, self.slips = out, plan, []

    def __call__(self, record):
        if record["kind"] == "update":
            for words in self.plan.get(record["update"], []):
                self.slips.append(ControlSlip(self.out, words.split()))

    @property
    def answers(self):
        return [slip.answer() for slip in self.slips]


def without_control(trace):
    return [record for record in without_wall_times(trace) if record["kind"] != "control"]


def assert_same_weights(one, other):
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_a_stopped_simulation_has_a_result_and_goes_on_to_the_same_bits(tmp_path):
    whole = simulated(None)
    asking = Asking(tmp_path / "run", {10: ["stop"]})
    stopped = simulated(tmp_path / "run", asking)
    assert asking.answers == [(True, "stopped after update 10; --resume continues")]
    assert (stopped.summary["ended"], stopped.summary["updates"], stopped.summary["controls"]) == (
        STOPPED,
        10,
        1,
    )
    assert (tmp_path / "run" / "model.safetensors").exists()
    again = simulated(tmp_path / "run", resume=True)
    assert (again.summary["ended"], again.summary["updates"]) == ("updates", 30)
    assert_same_weights(whole.model, again.model)
    assert without_control(again.trace) == without_wall_times(whole.trace)
    assert simulated(tmp_path / "run", resume=True).summary == again.summary


def test_a_pause_changes_nothing_but_the_clock_on_the_wall(tmp_path):
    asking = Asking(tmp_path / "run", {5: ["pause"]})

    def resume_later(record):
        if record["kind"] == "control" and record["command"] == "pause":
            timer = threading.Timer(1.0, lambda: later.append(ControlSlip(tmp_path / "run", ["resume"])))
            timer.start()

    later = []
    started = time.perf_counter()
    result = simulated(tmp_path / "run", [asking, resume_later])
    assert time.perf_counter() - started > 1.0
    assert asking.answers == [(True, "paused after update 5")]
    assert later[0].answer() == (True, "resumed after update 5")
    assert result.summary["wall_seconds"] < time.perf_counter() - started - 0.9
    assert without_control(result.trace) == without_wall_times(simulated(None).trace)
    commands = [record["command"] for record in of_kind(result.trace, "control")]
    assert commands == ["pause", "resume"]
    assert list((tmp_path / "run" / "control").iterdir()) == []


def test_a_paused_run_that_is_killed_is_still_paused(tmp_path):
    """Here it is told to stop while it is paused, or it would wait for ever."""

    def kill(record):
        if record["kind"] == "warning" and "paused" in record["reason"]:
            ControlSlip(tmp_path / "run", ["stop"])

    asking = Asking(tmp_path / "run", {5: ["pause"]})
    waited = []

    def die(seconds):
        waited.append(seconds)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncmanifold.simulation.simulation_control.sleep", die)
        with pytest.raises(Killed):
            simulated(tmp_path / "run", asking)
    assert waited
    result = simulated(tmp_path / "run", kill, resume=True)
    assert (result.summary["updates"], result.summary["ended"]) == (5, STOPPED)


@pytest.mark.parametrize("method", ["asyncbezier", "fedavg"])
def test_an_excluded_client_gets_no_job_until_it_is_readmitted(tmp_path, method):
    asking = Asking(tmp_path / "run", {4: ["exclude 2", "exclude 2"], 20: ["readmit 2", "readmit 2"]})
    trace = simulated(tmp_path / "run", asking, method, make_run(60)).trace
    assert asking.answers == [
        (True, "client 2 is excluded"),
        (False, "2 is excluded already"),
        (True, "client 2 is readmitted"),
        (False, "2 is not excluded"),
    ]
    first, second = (trace.index(record) for record in of_kind(trace, "control"))
    between = trace[first:second]
    assert [record for record in between if record["kind"] == "update" and record["client"] == 2] == []
    assert {record["client"] for record in of_kind(trace[second:], "update")} == set(range(5))
    refused = of_kind(trace, "rejected")
    assert [(record["client"], record["reason"]) for record in refused] == [(2, EXCLUDED)] * len(refused)
    assert len(refused) <= 1  # what was in flight


def test_an_exclusion_survives_a_kill(tmp_path):
    asking = Asking(tmp_path / "run", {4: ["exclude 1"]})

    def kill(record):
        if record["kind"] == "update" and record["update"] == 8:
            raise Killed

    with pytest.raises(Killed):
        simulated(tmp_path / "run", [asking, kill])
    trace = simulated(tmp_path / "run", resume=True).trace
    (asked,) = of_kind(trace, "control")
    assert all(record["client"] != 1 for record in of_kind(trace[trace.index(asked) :], "update"))
    assert len(of_kind(trace, "update")) == 30


def test_the_last_client_cannot_be_excluded(tmp_path):
    asking = Asking(tmp_path / "run", {1: [f"exclude {client}" for client in range(5)]})
    assert simulated(tmp_path / "run", asking).summary["updates"] == 30
    assert asking.answers[-1] == (False, "client 4 is the last one: pause the run instead")


def test_the_number_of_updates_can_change_and_a_resume_keeps_it_unless_told_otherwise(tmp_path):
    asking = Asking(tmp_path / "run", {5: ["updates 40"], 10: ["updates 10", "updates x", "stop"]})
    simulated(tmp_path / "run", asking)
    wrong = "must be a whole number above 10, the updates so far"
    assert asking.answers == [
        (True, "updates changed from 30 to 40"),
        (False, f"updates 10: {wrong}"),
        (False, f"updates x: {wrong}"),
        (True, "stopped after update 10; --resume continues"),
    ]
    assert simulated(tmp_path / "run", resume=True).summary["updates"] == 40
    again = simulated(tmp_path / "run", run=make_run(45), resume=True, change=["run.updates"])
    assert again.summary["updates"] == 45


MOMENTS = {
    "before the record": (Session, "write"),
    "before the effect": (Session, "obey"),
    "before the checkpoint": (Journal, "checkpoint"),
    "before the answer": (ControlDesk, "answer"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("engine", ["simulation", "flower"])
def test_a_request_is_carried_out_once_whenever_the_process_is_killed(tmp_path, engine, moment, monkeypatch):
    out, (owner, name) = tmp_path / "run", MOMENTS[moment]
    asking = Asking(out, {4: ["updates 12"]})
    original = getattr(owner, name)

    def die(self, *given, **named):
        is_it = name != "write" or given[0] == "control"
        if asking.slips and is_it:
            raise Killed
        return original(self, *given, **named)

    def run(**more):
        if engine == "simulation":
            simulated(out, asking, resume="resume" in more)
        else:
            start(grid_of(), "fedasync", out=out, observer=asking, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        patch.setattr(ControlDesk, "close", lambda self: None)
        with pytest.raises(Killed):
            run()
    asking.plan = {}
    run(resume=True)
    trace = trace_of(out)
    assert len(of_kind(trace, "control")) == 1
    assert [record["update"] for record in of_kind(trace, "update")] == list(range(1, 13))
    assert [answer[0] for answer in asking.answers] == [True]


def test_a_stop_survives_a_kill_before_the_run_could_end(tmp_path, monkeypatch):
    asking = Asking(tmp_path / "run", {4: ["stop"]})

    def die(self, *given):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "conclude", die)
        with pytest.raises(Killed):
            simulated(tmp_path / "run", asking)
    assert not (tmp_path / "run" / "summary.json").exists()
    assert simulated(tmp_path / "run", resume=True).summary["ended"] == STOPPED
    assert simulated(tmp_path / "run", resume=True).summary["updates"] == 30


def named_grid():
    grid = grid_of()
    grid.names = {100: "ward", 101: "lab", 102: "lab"}
    return grid


def test_a_deployment_is_controlled_by_name_number_or_id(tmp_path):
    grid = named_grid()
    plan = {
        3: ["exclude ward", "exclude lab", "exclude 102", "exclude nobody"],
        6: ["readmit 0", "set policy.patience=7", "set policy.deadline=none", "set policy.deadline=20"],
        8: [
            "set policy.patience=0",
            "set policy.reply_bytes=9",
            "set run.updates=3",
            "set policy.deadline=inf",
        ],
    }
    asking = Asking(tmp_path / "run", plan)
    result = start(grid, "fedasync", out=tmp_path / "run", observer=asking)
    answers = asking.answers
    assert answers[0] == (True, "client 0 (ward) is excluded")
    assert answers[1] == (False, "lab: 2 nodes have this name, give a client's number or an id")
    assert answers[2] == (True, "client 2 (lab) is excluded")
    assert answers[3] == (False, "nobody: no such node, must be its name, its number as a client or its id")
    assert answers[4] == (True, "client 0 (ward) is readmitted")
    assert answers[5] == (True, "policy.patience changed from 3 to 7")
    assert answers.pop(6) == (True, "policy.deadline changed from None to None")
    assert answers[6] == (True, "policy.deadline changed from None to 20.0")
    assert answers[7] == (False, "set policy.patience=0: Policy(patience=0) must be at least 1")
    assert answers[8][1].startswith("set policy.reply_bytes: must be policy. and one of queue_depth")
    assert not answers[9][0]
    assert answers[10] == (False, "set policy.deadline=inf: must be finite")
    trace = trace_of(tmp_path / "run")
    after = trace[trace.index(of_kind(trace, "control")[1]) :]
    assert {record["client"] for record in of_kind(after, "update")} == {0, 1}
    assert {record["reason"] for record in of_kind(trace, "rejected")} <= {EXCLUDED}
    assert of_kind(trace, "resting") == []
    late = [message.metadata.ttl for message in grid.sent if message.metadata.message_type == "train"][-1]
    assert late == 20.0
    assert_same_model(result, replayed(tmp_path / "run", "fedasync").model)


def test_a_policy_that_was_set_holds_after_a_resume(tmp_path):
    asking = Asking(tmp_path / "run", {5: ["set policy.deadline=33", "stop"]})
    start(grid_of(), "fedasync", out=tmp_path / "run", observer=asking)
    assert [answer[0] for answer in asking.answers] == [True, True]
    grid = grid_of()
    result = start(grid, "fedasync", out=tmp_path / "run", resume=True)
    assert {m.metadata.ttl for m in grid.sent if m.metadata.message_type == "train"} == {33.0}
    updates = of_kind(trace_of(tmp_path / "run"), "update")
    assert [record["update"] for record in updates] == list(range(1, 21))
    assert_same_model(result, replayed(tmp_path / "run", "fedasync").model)


def test_a_paused_deployment_sends_no_jobs_and_lets_in_what_is_out(tmp_path):
    grid = grid_of()
    asking = Asking(tmp_path / "run", {4: ["pause"]})
    sent = []

    def look(pull):
        trace = of_kind(trace_of(tmp_path / "run"), "control")
        if [record["command"] for record in trace] == ["pause"]:
            sent.append(len(grid.sent))
            if len(sent) == 30:
                asking.slips.append(ControlSlip(tmp_path / "run", ["resume"]))

    grid.on_pull = look
    # A paused server with nothing in flight no longer pulls: the look is then at its sleep.
    slept = Policy(**{**vars(QUICK), "wait_seconds": 1e-3})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncmanifold.flower.deployment.time.sleep", lambda seconds: look(0))
        start(grid, "fedasync", out=tmp_path / "run", observer=asking, policy=slept)
    assert len(set(sent)) == 1
    assert asking.answers == [(True, "paused after update 4"), (True, "resumed after update 7")]


def test_the_command_talks_to_a_run(tmp_path, capsys):
    out = tmp_path / "run"
    thread = threading.Thread(
        target=simulated, args=(out, lambda record: time.sleep(0.01)), kwargs={"run": make_run(5000)}
    )
    thread.start()
    try:
        while not (out / "control").exists():
            time.sleep(0.01)
        assert main(["control", str(out), "pause"]) == 0
        assert capsys.readouterr().out.startswith("paused after update")
        assert main(["control", str(out), "pause"]) == 2
        assert capsys.readouterr().err == f"asyncmanifold: {out}: the run is paused already\n"
        assert main(["control", str(out), "set", "policy.patience=4"]) == 2
        assert "a simulation has no policy" in capsys.readouterr().err
        assert main(["control", str(out), "resume"]) == 0
        assert main(["control", str(out), "exclude", "7"]) == 2
        assert "must be a number from 0 to 4" in capsys.readouterr().err
        assert main(["control", str(out), "stop"]) == 0
    finally:
        thread.join()
    capsys.readouterr()
    assert main(["control", str(out), "stop"]) == 2
    assert capsys.readouterr().err == f"asyncmanifold: {out}: no run is going on there\n"


def test_a_request_that_nobody_takes_is_withdrawn(tmp_path, capsys, monkeypatch):
    (tmp_path / "control").mkdir()
    monkeypatch.setattr("asyncmanifold.session.locks.is_locked", lambda path: True)
    assert main(["control", str(tmp_path), "pause", "--seconds", "1"]) == 2
    assert "no answer in 1 s, the request is withdrawn" in capsys.readouterr().err
    assert list((tmp_path / "control").iterdir()) == []
    (tmp_path / "control").rmdir()
    assert main(["control", str(tmp_path), "pause"]) == 2
    assert "takes no requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "nothing: must be one of pause, resume, stop, updates, exclude, readmit, set"),
        (["jump"], "jump: must be one of pause"),
        (["pause", "now"], "pause now: must be pause alone"),
        (["exclude"], "exclude: must be exclude NODE"),
        (["set", "deadline"], "set deadline: must be set policy.KEY=VALUE"),
    ],
)
def test_what_is_no_request_is_one_line(words, line):
    with pytest.raises(InputError, match=line):
        check_words(words)


def test_odd_files_at_the_desk_do_no_harm(tmp_path):
    desk = ControlDesk(tmp_path)
    for name, text in (
        ("request-1.json", "["),
        ("request-2.json", '{"words": 5}'),
        ("other", ""),
        ("request-x", ""),
    ):
        (tmp_path / "control" / name).write_text(text)
    taken = desk.take()
    assert [(request.id, request.words) for request in taken] == [("1", ()), ("2", ())]
    desk.answer(taken[0], is_done=False, line="odd")
    assert [request.id for request in desk.take()] == ["2"]


def test_the_desk_is_opened_seldom(tmp_path, monkeypatch):
    monkeypatch.setattr(control_desk, "INTERVAL", 60.0)
    desk = ControlDesk(tmp_path)
    assert desk.is_due
    desk.take()
    assert not desk.is_due
    assert not ControlDesk(None).is_due


def test_the_supervisor_obeys_a_stop_and_goes_on_when_started_again(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    ends = iter(['{"ended": "stopped"}', '{"ended": "updates"}'])
    monkeypatch.setattr(SupervisedRun, "_attempt", lambda self: (out / "summary.json").write_text(next(ends)))
    run = SupervisedRun("app", "link", out)
    assert run.supervise() == 0
    assert run.is_stopped
    assert run.supervise() == 0
    assert not run.is_stopped
    assert run.supervise() == 0


def test_every_command_is_read():
    for command in control.COMMANDS:
        assert callable(getattr(Steward, f"_read_{command}"))
