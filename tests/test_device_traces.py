"""Devices: who is there when, how long jobs take, files and their converter; all by hand."""

import json
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from asyncmanifold import DeviceTraces, InputError, RunError, Schedule, SyntheticDevices, Task, simulate
from asyncmanifold.commands.cli import main
from asyncmanifold.configuration.config import load_config
from asyncmanifold.simulation.availability import Availability
from asyncmanifold.simulation.device_traces import DAY, read_devices
from asyncmanifold.sources import prepare
from tiny import TRAINING, make_run, make_task, of_kind, simulated, trace_of

# --- availability -----------------------------------------------------------------------------------------


def changes_of(availability, count, time=0.0):
    found = []
    while len(found) < count and (change := availability.next_change(time)) is not None:
        found.append(change)
        time = change[0]
    return found


def test_intervals_once():
    hours = Availability.of([(5, 8), (1, 2)])
    assert [hours.includes(time) for time in (0, 1, 1.5, 2, 5, 8, 100)] == [
        False,
        True,
        True,
        False,
        True,
        *[False] * 2,
    ]
    assert changes_of(hours, 9) == [(1, "joined"), (2, "left"), (5, "joined"), (8, "left")]


def test_intervals_that_repeat():
    hours = Availability.of([(2, 5)], period=10)
    assert changes_of(hours, 5) == [(2, "joined"), (5, "left"), (12, "joined"), (15, "left"), (22, "joined")]
    assert hours.includes(1_000_003)
    assert changes_of(hours, 1, time=1_000_003) == [(1_000_005, "left")]


def test_intervals_that_go_on_over_the_seam():
    hours = Availability.of([(0, 1), (8, 10)], period=10)
    assert hours.includes(0)
    assert changes_of(hours, 4) == [(1, "left"), (8, "joined"), (11, "left"), (18, "joined")]
    assert changes_of(Availability.of([(0, 10)], period=10), 3) == []
    assert changes_of(Availability.of([]), 3) == []


def test_intervals_that_touch_are_one():
    assert Availability.of([(3, 4), (1, 3), (3.5, 6), (5, 5.5)]).intervals == ((1, 6),)


@pytest.mark.parametrize("seed", range(5))
def test_changes_agree_with_looking_at_every_moment(seed):
    random = np.random.default_rng(seed)
    starts = random.integers(0, 30, 4)
    intervals = [
        (int(start), int(min(32, start + length)))
        for start, length in zip(starts, random.integers(1, 9, 4), strict=True)
    ]
    hours = Availability.of(intervals, period=32)
    seen = []
    for time in range(1, 200):
        now, before = (any(a <= t % 32 < b for a, b in intervals) for t in (time, time - 1))
        if now != before:
            seen.append((time, "joined" if now else "left"))
    assert [change for change in changes_of(hours, len(seen) + 1) if change[0] < 200] == seen


@pytest.mark.parametrize(
    ("intervals", "period", "problem"),
    [
        ([(2, 2)], None, "must start at 0 or later and end after that"),
        ([(-1, 2)], None, "must start at 0"),
        ([(0, float("inf"))], None, "must start at 0"),
        ([(0, 11)], 10, "after the period of 10"),
        ([(0, 1)], 0, "period is 0, must be above 0"),
    ],
)
def test_impossible_intervals_are_refused(intervals, period, problem):
    with pytest.raises(InputError, match=problem):
        Availability.of(intervals, period)


# --- files ------------------------------------------------------------------------------------------------


def write(path, *devices):
    path.write_text("".join(json.dumps(device) + "\n" for device in devices))
    return str(path)


def task_of(*sizes):
    made = make_task(sizes=sizes)
    return Task(nn.Linear(6, 3), made.loss, made.clients, made.test)


def test_jobs_on_devices_by_hand(tmp_path):
    """84 bytes each way. Client 0: 84/42 + 10/2 + 84/21 = 11 s. Client 1: 10 s, but it is there from 5 to 25
    of every 40 s: its job of 5 to 15 arrives, that of 15 to 25 is lost as it goes, and the next begins at 45.
    """
    path = write(
        tmp_path / "devices.jsonl",
        {"client": "a", "speed": 2.0, "down": 42, "up": 21},
        {"client": "b", "available": [[5, 25]], "period": 40},
    )
    schedule = Schedule("clock", latency=DeviceTraces(path, epoch_seconds=10.0))
    made = simulate(task_of(10, 10), "fedasync", training=TRAINING, schedule=schedule, run=make_run(7))
    assert made.summary["lost"] == 1
    events = [
        (r["kind"], r["client"], r["time"], r.get("dispatched"), r.get("job"))
        for r in made.trace
        if r["kind"] != "evaluation"
    ]
    assert events == [
        ("joined", 1, 5.0, None, None),
        ("update", 0, 11.0, 0.0, 0),
        ("update", 1, 15.0, 5.0, 1),
        ("update", 0, 22.0, 11.0, 2),
        ("left", 1, 25.0, None, 3),
        ("update", 0, 33.0, 22.0, 4),
        ("update", 0, 44.0, 33.0, 5),
        ("joined", 1, 45.0, None, None),
        ("update", 0, 55.0, 44.0, 6),
        ("update", 1, 55.0, 45.0, 7),
    ]


def test_clients_beyond_the_file_start_over(tmp_path):
    phones = DeviceTraces(write(tmp_path / "d.jsonl", {"speed": 2.0}, {"speed": 4.0}), epoch_seconds=8.0)
    assert [phones.expected(1.0, client, seed=0) for client in range(4)] == [4.0, 2.0, 4.0, 2.0]


def test_devices_come_and_go_to_the_same_bits_after_a_resume(tmp_path):
    devices = [{"speed": 1 + k / 4, "available": [[k, 14 + 3 * k]], "period": 40} for k in range(5)]
    schedule = Schedule(
        "clock", latency=DeviceTraces(write(tmp_path / "d.jsonl", *devices), epoch_seconds=5.0)
    )
    settings = {"training": TRAINING, "schedule": schedule, "run": make_run(25)}
    simulated(make_task(), "asyncbezier", out=tmp_path / "whole", **settings)
    for stop in (8, 17):

        def interrupt(record, stop=stop):
            if record.get("update") == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            simulated(
                make_task(),
                "asyncbezier",
                out=tmp_path / "parts",
                resume=True,
                observer=interrupt,
                **settings,
            )
    simulated(make_task(), "asyncbezier", out=tmp_path / "parts", resume=True, **settings)
    whole, parts = trace_of(tmp_path / "whole"), trace_of(tmp_path / "parts")
    assert whole == parts
    assert len(of_kind(whole, "left")) > 5
    assert any("job" in record for record in of_kind(whole, "left"))
    hours = [Availability.of(d["available"], d["period"]) for d in devices]
    for record in of_kind(whole, "update"):
        assert hours[record["client"]].includes(record["dispatched"])
        change = hours[record["client"]].next_change(record["dispatched"])
        assert record["time"] < change[0]


def test_a_synchronous_method_goes_on_without_those_who_left(tmp_path):
    path = write(tmp_path / "d.jsonl", {}, {}, {"available": [[0, 12]], "period": 50})
    schedule = Schedule("clock", latency=DeviceTraces(path, epoch_seconds=10.0))
    trace = simulate(
        task_of(10, 10, 10), "fedavg", training=TRAINING, schedule=schedule, run=make_run(7)
    ).trace
    clients = [record["client"] for record in of_kind(trace, "update")]
    assert sorted(clients[:3]) == [0, 1, 2]
    assert set(clients[3:]) == {0, 1}


def test_a_run_whose_devices_never_stay_ends(tmp_path):
    path = write(tmp_path / "d.jsonl", {"available": [[0, 5]], "period": 10})
    schedule = Schedule("clock", latency=DeviceTraces(path))
    with pytest.raises(RunError, match="jobs in a row were lost"):
        simulate(task_of(10, 10), "fedasync", training=TRAINING, schedule=schedule, run=make_run(2))
    never = replace(schedule, latency=DeviceTraces(write(tmp_path / "n.jsonl", {"available": []})))
    with pytest.raises(RunError, match="no client is left"):
        simulate(task_of(10, 10), "fedasync", training=TRAINING, schedule=never, run=make_run(2))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "line 1: Expecting value"),
        ("[]", "line 1: must be an object"),
        ('{"speed": 0}', "speed is 0, must be a number above 0"),
        ('{"up": "fast"}', "up is 'fast', must be a number"),
        ('{"down": true}', "down is True, must be a number"),
        ('{"bandwidth": 5}', r"unknown key 'bandwidth' \(allowed: speed, up"),
        ('{"available": [5, 6]}', "line 1: "),
        ('{"available": 5}', "line 1: "),
        ('{"available": [[0, 5]], "period": 4}', "after the period of 4"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, problem):
    path = tmp_path / "devices.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=problem) as refused:
        DeviceTraces(str(path))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        DeviceTraces(str(tmp_path / "none"))
    (tmp_path / "empty").write_text("")
    with pytest.raises(InputError, match="has no device"):
        DeviceTraces(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kind": "queue"}, "must be 'clock': devices take seconds"),
        ({"late_fraction": 0.5, "late_by": 1.0}, r"late_fraction=0.5\): devices have their own"),
        ({"bandwidth_up": 5.0}, r"bandwidth_up=5.0\): devices have their own"),
    ],
)
def test_devices_have_hours_and_bandwidths_of_their_own(settings, problem):
    with pytest.raises(InputError, match=problem):
        Schedule(**{"kind": "clock", "latency": SyntheticDevices(), **settings})


# --- drawn ------------------------------------------------------------------------------------------------


def test_drawn_devices_have_the_stated_statistics():
    """Half of the sessions last at most 5 minutes, 70 % at most 10; four times as many begin at night."""
    drawn = SyntheticDevices(sessions_per_day=2.0)  # few, so that hardly any overlap
    devices = [drawn.device(client, seed=3) for client in range(1500)]
    assert np.std(np.log([d.speed for d in devices])) == pytest.approx(0.6, rel=0.06)
    assert np.median([d.up for d in devices]) == pytest.approx(625_000, rel=0.1)
    sessions = np.array([span for d in devices for span in d.availability.intervals])
    lengths, starts = sessions[:, 1] - sessions[:, 0], sessions[:, 0]
    assert len(sessions) == pytest.approx(1500 * 14, rel=0.03)
    assert np.mean(lengths <= 300) == pytest.approx(0.5, abs=0.02)
    assert np.mean(lengths <= 600) == pytest.approx(0.7, abs=0.02)
    hour = starts / 3600 % 24
    night, day = np.sum((hour >= 1) & (hour < 3)), np.sum((hour >= 13) & (hour < 15))
    assert night / day == pytest.approx(4.0, rel=0.15)
    assert {d.availability.period for d in devices} == {7 * DAY}


def test_drawn_devices_are_those_of_the_seed():
    first, again = SyntheticDevices(), SyntheticDevices()
    assert first.device(3, seed=1) == again.device(3, seed=1)
    assert first.device(3, seed=1) != first.device(3, seed=2)
    assert first.device(3, seed=1) != first.device(4, seed=1)
    assert SyntheticDevices(sessions_per_day=0.0).device(0, seed=0).availability is None


def test_the_scenario_of_phones_needs_no_download(tmp_path, capsys):
    config = load_config("digits-devices", "fedasync")
    assert isinstance(config.schedule.latency, SyntheticDevices)
    settings = ["--set", "updates=20", "--method", "asyncsgd", "--out", str(tmp_path / "run"), "--json"]
    assert main(["run", "digits-devices", *settings]) == 0
    trace = trace_of(tmp_path / "run")
    summary = json.loads(capsys.readouterr().out)
    assert summary["upload_bytes"] == sum(r["upload_bytes"] for r in of_kind(trace, "update"))
    assert of_kind(trace, "joined")
    assert of_kind(trace, "left")


# --- FedScale's traces --------------------------------------------------------------------------------------

CAPACITY = {
    7: {"computation": 100.0, "communication": 8.0},
    8: {"computation": 50.0, "communication": 1600.0},
    9: {"computation": 200.0, "communication": 80.0},
}
BEHAVIOUR = {
    1: {"duration": 5, "active": [0, 50], "inactive": [10, 80], "finish_time": 100, "model": "phone"},
    2: {
        "duration": 5,
        "active": [20, 90, 30],
        "inactive": [30, 130, 30],
        "finish_time": 100,
        "model": "other",
    },
}


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_fedscale_by_hand(tmp_path, form):
    """The median device takes 100 ms; 8 kilobits are 1,000 bytes."""
    for name, content in (("client_device_capacity", CAPACITY), ("client_behave_trace", BEHAVIOUR)):
        if form == "pickle":
            (tmp_path / name).write_bytes(pickle.dumps(content))
        else:
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
    out = tmp_path / "devices.jsonl"
    assert prepare("devices", str(tmp_path), out) == "2 devices, with times of availability"
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == [
        {"speed": 1.0, "up": 1e3, "down": 1e3, "available": [[0, 10], [50, 80]], "period": 100},
        {"speed": 2.0, "up": 2e5, "down": 2e5, "available": [[20, 30], [90, 100]], "period": 100},
    ]
    assert next(read_devices(out)).availability.includes(155)
    os.remove(tmp_path / ("client_behave_trace" + (".json" if form == "json" else "")))
    assert prepare("devices", str(tmp_path), out) == "3 devices, without times of availability"
    assert json.loads(out.read_text().splitlines()[2])["speed"] == 0.5


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path, protocol):
    canary = tmp_path / "canary"
    evil = pickle.dumps({1: {"computation": Malicious(canary), "communication": 1.0}}, protocol)
    (tmp_path / "client_device_capacity").write_bytes(evil)
    with pytest.raises(InputError, match=r"holds (posix|os|nt)\.mkdir, and objects are never loaded"):
        prepare("devices", str(tmp_path), tmp_path / "out.jsonl")
    assert not canary.exists()
    assert not (tmp_path / "out.jsonl").exists()
    pickle.loads(evil)
    assert canary.exists()  # it would have


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a pickle of plain values"),
        (b"c__builtin__\neval\n(Vprint(1)\ntR.", "holds builtins.eval|holds __builtin__.eval"),
        (b"\x80\x04\x95", "not a pickle of plain values"),
        (b"P0\n.", "not a pickle of plain values"),
        (pickle.dumps(np.float64(3.0)), "holds numpy"),
        (pickle.dumps([1, 2]), "must be a dictionary by client"),
        (pickle.dumps({0: 5}), "client 0: must be a dictionary"),
        (pickle.dumps({0: {"computation": -1.0, "communication": 1.0}}), "computation is -1.0, must be"),
        (pickle.dumps({0: {"computation": 1.0}}), "communication is None, must be a number"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, problem):
    (tmp_path / "client_device_capacity").write_bytes(content)
    with pytest.raises(InputError, match=problem) as refused:
        prepare("devices", str(tmp_path), tmp_path / "out.jsonl")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"active": [1, 2]}, "2 times in active, 1 in inactive"),
        ({"active": ["now"]}, "active must be a list of seconds"),
        ({"inactive": 5}, "inactive must be a list of seconds"),
        ({"finish_time": 0}, "finish_time is 0, must be a number above 0"),
    ],
)
def test_wrong_behaviour_is_refused(tmp_path, change, problem):
    entry = {"active": [0], "inactive": [5], "finish_time": 10} | change
    (tmp_path / "client_behave_trace").write_bytes(pickle.dumps({4: entry}))
    with pytest.raises(InputError, match=problem):
        prepare("devices", str(tmp_path), tmp_path / "out.jsonl")


def test_a_folder_without_traces(tmp_path):
    with pytest.raises(InputError, match="expected a folder with FedScale's"):
        prepare("devices", str(tmp_path), tmp_path / "out.jsonl")
