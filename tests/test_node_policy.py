"""What follows from a node's measured times, by hand; and the device and threads that a node chooses."""

from dataclasses import replace
from math import inf

import pytest
import torch
from flwr.app import Context, RecordDict

from asyncmanifold import InputError
from asyncmanifold.client.training import Trainer
from asyncmanifold.flower import Policy, train_reply
from asyncmanifold.flower.job_deadlines import GRACE_SECONDS, JobDeadlines
from asyncmanifold.flower.measured_times import MeasuredTimes
from asyncmanifold.flower.nodes import Nodes
from asyncmanifold.flower.replies import device_of, threads_of
from grid import LocalGrid
from test_flower import QUICK, grid_of, start
from tiny import make_task, of_kind, trace_of


def measured(*jobs, was_free=True):
    times = MeasuredTimes()
    for round_trip, training in jobs:
        times.add(round_trip, training, was_free=was_free)
    return times


@pytest.mark.parametrize(
    ("jobs", "deadline"),
    [
        ([], None),
        ([(50.0, 40.0)], None),  # one job is no measurement
        ([(50.0, 40.0), (20.0, 10.0)], 600.0),  # 10 × 50 is below the least
        ([(50.0, 40.0), (100.0, 10.0)], 1000.0),
        ([(9000.0, 10.0)] * 2, 43_200.0),
        ([(900.0, 10.0), *[(100.0, 10.0)] * 8], 1000.0),  # only the last eight count
    ],
)
def test_a_deadline_is_a_bounded_multiple_of_the_longest_of_the_last_jobs(jobs, deadline):
    assert measured(*jobs).deadline == deadline


@pytest.mark.parametrize(
    ("jobs", "was_free", "depth"),
    [
        ([], True, 1),
        ([(8.0, 1.0)], True, 1),
        ([(8.0, 1.0)] * 2, True, 2),
        ([(8.0, 1.0)] * 2, False, 1),  # it waited behind another job: nothing is known of the cost
        ([(40.0, 30.0)] * 2, True, 2),  # 10 s of 30
        ([(39.0, 30.0)] * 2, True, 1),  # 9 s of 30
        ([(0.9, 0.0)] * 2, True, 1),  # less than a second is not worth a version
        ([(8.0, 99.0)] * 2, True, 1),  # what a node says about its training is at most the whole time
        ([(8.0, -5.0)] * 2, True, 2),
    ],
)
def test_a_second_job_is_sent_where_a_round_trip_costs_much_besides_training(jobs, was_free, depth):
    assert measured(*jobs, was_free=was_free).queue_depth == depth


def test_times_come_back_from_a_checkpoint():
    times = measured((8.0, 1.0), (90.0, 2.0))
    again = MeasuredTimes(times.pack())
    assert (again.pack(), again.deadline, again.queue_depth) == (times.pack(), 900.0, 2)


def test_a_node_gets_its_second_job_when_its_times_say_so_and_explicit_settings_win():
    nodes = Nodes(patience=3, rest_seconds=60.0)
    nodes.follow(Policy(), is_synchronous=False)
    ((node,), _) = nodes.update_present({7: ""})

    def jobs_given():
        given = 0
        while nodes.next(0.0, lambda waiting: 0) is not None:
            given += 1
        for _ in range(given):
            nodes.take_back(node)
        return given

    assert jobs_given() == 1
    for _ in range(2):
        nodes.measure(node, 8.0, 1.0, was_free=True)
    assert jobs_given() == 2
    nodes.follow(Policy(queue_depth=1), is_synchronous=False)
    assert jobs_given() == 1
    nodes.follow(Policy(), is_synchronous=True)
    assert jobs_given() == 1
    nodes.follow(Policy(queue_depth=2), is_synchronous=False)
    nodes.exclude({0})
    assert jobs_given() == 0
    nodes.update_present({})
    nodes.update_present({7: ""})
    assert jobs_given() == 0
    nodes.exclude(())
    assert jobs_given() == 2


def test_deadlines_are_due_in_their_order_and_once_more_after_the_grace():
    deadlines = JobDeadlines()
    for name, due in (("late", 50.0), ("soon", 5.0), ("back", 6.0), ("never", None), ("never", inf)):
        deadlines.expect(name, due)
    out = {"late", "soon", "never"}
    assert list(deadlines.pop(4.9, out)) == []
    assert list(deadlines.pop(5.0, out)) == [("soon", False)]
    assert list(deadlines.pop(50.0, out)) == [("late", False)]
    assert list(deadlines.pop(5.0 + GRACE_SECONDS, out)) == [("soon", True)]
    assert list(deadlines.pop(1e9, {"never"})) == []


def test_deadlines_of_answered_messages_are_forgotten(monkeypatch):
    monkeypatch.setattr("asyncmanifold.flower.job_deadlines.MOST_OLD", 5)
    deadlines = JobDeadlines()
    for number in range(100):
        deadlines.expect(str(number), 50.0)
        assert list(deadlines.pop(1.0, {"3"})) == []
        assert len(deadlines._due) <= 8
    assert list(deadlines.pop(50.0, {"3"})) == [("3", False)]


def test_messages_carry_the_nodes_own_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncmanifold.flower.measured_times.SHORTEST_DEADLINE", 77.0)
    grid = grid_of()
    start(grid, "fedasync", out=tmp_path / "run")
    training = [message.metadata for message in grid.sent if message.metadata.message_type == "train"]
    first = [m.ttl for m in training if m.dst_node_id == 100]
    assert first[:2] != [77.0] * 2
    assert first[-1] == 77.0
    assert of_kind(trace_of(tmp_path / "run"), "failed") == []
    for deadline, ttl in ((9.0, 9.0), (inf, first[0])):
        grid = grid_of()
        start(grid, "fedasync", policy=replace(QUICK, deadline=deadline))
        sent = [m.metadata.ttl for m in grid.sent if m.metadata.message_type == "train"]
        assert sent == pytest.approx([ttl] * len(sent), rel=1e-6)


PLAIN = torch.nn.Linear(2, 2)


def node(**config):
    return Context(1, 0, config, RecordDict(), {})


def test_a_node_chooses_its_device(monkeypatch):
    assert device_of(node(), None, PLAIN).type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of(node(), None, PLAIN) == torch.device("cuda")
    assert device_of(node(device="cuda:1"), None, PLAIN) == torch.device("cuda:1")
    assert device_of(node(device="cuda:1"), "cpu", PLAIN) == torch.device("cpu")
    with pytest.raises(InputError, match="'cuda:5' is not available: there are 2"):
        device_of(node(device="cuda:5"), None, PLAIN)
    curved = torch.nn.Linear(2, 2)
    curved.weight.manifold = "sphere"
    assert device_of(node(), None, curved).type == "cpu"
    monkeypatch.setattr("asyncmanifold.flower.replies.is_portable", lambda: True)
    assert device_of(node(), None, PLAIN).type == "cpu"


def test_a_job_is_trained_with_the_nodes_threads_on_the_nodes_device(monkeypatch):
    """Seen from within training, in a grid of one node with another number of threads than this process."""
    seen = []

    class Watched(Trainer):
        def __init__(self, model, loss, embedding, training, seed, device):
            super().__init__(model, loss, embedding, training, seed, device)
            self.place = device

        def train(self, job, data):
            seen.append((torch.get_num_threads(), self.place))
            return super().train(job, data)

    monkeypatch.setattr("asyncmanifold.flower.replies.Trainer", Watched)
    before, task = torch.get_num_threads(), make_task()
    for config, expected in (({}, 1), ({"threads": before + 2}, before + 2)):
        seen.clear()

        def handle(message, config=config):
            return train_reply(message, node(**config), task.build_model(0), task.loss, task.clients[0])

        start(LocalGrid({7: handle}), "fedasync", updates=1, policy=replace(QUICK, evaluate_clients=False))
        assert set(seen) == {(expected, torch.device("cpu"))}
        assert torch.get_num_threads() == before


def test_a_node_chooses_its_threads():
    assert threads_of(node(), None) == 1
    assert threads_of(node(threads=3), None) == 3
    assert threads_of(node(threads=3), 2) == 2
    for wrong in (0, "many", True, 1.5):
        with pytest.raises(InputError, match="must be a whole number, at least 1"):
            threads_of(node(threads=wrong), None)
