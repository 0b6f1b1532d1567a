"""Latency models and schedules on the virtual clock."""

import numpy as np
import pytest

from asyncmanifold import ClassesLatency, ConstantLatency, LogNormalLatency, RecordedLatency, Schedule

LENGTHS = (0.5, 1.0, 2.0, 4.0)


def test_the_queue_draws_by_waiting_time_over_length():
    """Compare with the paper's rule, drawn step by step: P(i) ∝ waiting_i / length_i at each arrival."""
    schedule, arrivals, started = Schedule("queue"), [], [0.0] * 4
    for client in range(4):
        arrivals.append(schedule.duration(LENGTHS[client], 1.5, client, client, seed=1))
    expected, observed = np.zeros(4), np.zeros(4)
    for number in range(4, 20_004):
        client = int(np.argmin(arrivals))
        now = arrivals[client]
        chances = np.array([(now - started[k]) / LENGTHS[k] for k in range(4)])
        expected += chances / chances.sum()
        observed[client] += 1
        started[client] = now
        arrivals[client] = now + schedule.duration(LENGTHS[client], 1.5, client, number, seed=1)
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 11.3  # 99 % of a χ² with 3 degrees of freedom
    assert observed[0] > 1.5 * observed[3]


def test_a_mean_client_waits_its_length_on_average_in_the_queue():
    schedule = Schedule("queue")
    waits = [schedule.duration(3.0, 3.0, 0, number, seed=0) for number in range(20_000)]
    assert np.mean(waits) == pytest.approx(3.0, rel=0.02)


def test_constant_latency_is_the_length():
    assert Schedule("clock", latency=ConstantLatency()).duration(1.7, 1.0, 4, 9, seed=0) == 1.7


def test_lognormal_clients_keep_their_speed_and_jobs_vary():
    latency = LogNormalLatency(spread=0.8, jitter=0.0)
    first = [latency.duration(1.0, client, 0, seed=0) for client in range(4000)]
    assert first == [latency.duration(1.0, client, 99, seed=0) for client in range(4000)]
    assert np.std(np.log(first)) == pytest.approx(0.8, rel=0.05)
    jittery = LogNormalLatency(spread=0.0, jitter=0.3)
    jobs = [jittery.duration(1.0, 0, number, seed=0) for number in range(4000)]
    assert np.std(np.log(jobs)) == pytest.approx(0.3, rel=0.05)


def test_classes_make_a_fraction_of_clients_slow():
    latency = ClassesLatency(slow_fraction=0.25, slow_factor=8.0)
    durations = [latency.duration(1.0, client, 0, seed=0) for client in range(4000)]
    assert set(durations) == {1.0, 8.0}
    assert np.mean(np.array(durations) == 8.0) == pytest.approx(0.25, abs=0.03)


def test_recorded_durations_are_drawn_for_their_client(tmp_path):
    path = tmp_path / "durations.csv"
    path.write_text("client,duration\na,1.5\na,2.5\nb,7\n")
    latency = RecordedLatency(str(path))
    assert {latency.duration(1.0, 0, number, seed=0) for number in range(50)} == {1.5, 2.5}
    assert {latency.duration(1.0, 1, number, seed=0) for number in range(50)} == {7.0}
    assert {latency.duration(1.0, 2, number, seed=0) for number in range(50)} == {1.5, 2.5}
    assert latency.expected(1.0, 0, seed=0) == 2.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("client,seconds\n0,1\n", "must have a column 'duration'"),
        ("client,duration\n", "must have at least one row"),
        ("client,duration\n0,-1\n", "must be above 0"),
        ("client,duration\n0,soon\n", "could not convert"),
    ],
)
def test_a_bad_recording_is_refused(tmp_path, text, problem):
    path = tmp_path / "durations.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=problem):
        RecordedLatency(str(path))


def test_a_missing_recording_is_refused(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        RecordedLatency(str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kind": "round"}, "'queue' or 'clock'"),
        ({"concurrency": 0}, r"Schedule\(concurrency=0\) must be at least 1"),
        ({"drop_probability": 1.0}, r"must be in \[0, 1\)"),
        ({"late_fraction": 2.0}, "must be between 0 and 1"),
        ({"late_fraction": 0.5}, "late_by=0.0"),
        ({"leave_fraction": 0.5}, "leave_by=0.0"),
    ],
)
def test_impossible_schedules_are_refused(settings, problem):
    with pytest.raises(ValueError, match=problem):
        Schedule(**settings)


def test_membership_is_the_same_under_the_same_seed_and_differs_otherwise():
    schedule = Schedule(late_fraction=0.5, late_by=1.0, leave_fraction=0.3, leave_by=2.0)
    assert schedule.membership(50, seed=1) == schedule.membership(50, seed=1)
    assert schedule.membership(50, seed=1) != schedule.membership(50, seed=2)
    present, changes = schedule.membership(50, seed=1)
    joined = {client for _, kind, client in changes if kind == "joined"}
    assert joined.isdisjoint(present)
    assert len(joined) + len(present) == 50
    assert changes == sorted(changes)
