"""Very many clients and very large models cost what they must, and no more."""

import pickle
import platform
import resource
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from asyncmanifold import Schedule, Shares, Task
from asyncmanifold.errors import InputError
from asyncmanifold.execution.executors import InlineExecutor
from asyncmanifold.execution.training_worker import Recipe
from asyncmanifold.geometry.embeddings import Point
from asyncmanifold.server.protocol import Job
from asyncmanifold.session.idle import IdleClients
from asyncmanifold.tasks.data import TensorData
from asyncmanifold.vectors import FlatModel
from tiny import TRAINING, make_run, make_task, simulated, without_wall_times

INPUTS = torch.arange(12.0).view(6, 2)
TARGETS = torch.arange(6)


def doubled(inputs):
    return 2 * inputs


def test_shares_are_rows_of_the_same_examples():
    shares = Shares(INPUTS, TARGETS, [[5, 0], np.array([], dtype=np.int64), torch.tensor([1, 2, 3])], doubled)
    assert len(shares) == 3
    assert shares.sizes == [2, 0, 3] == [len(share) for share in shares]
    inputs, targets = shares[0].batch(torch.tensor([1, 0]))
    assert inputs.tolist() == [[0.0, 2.0], [20.0, 22.0]]
    assert targets.tolist() == [0, 5]
    assert shares[-1].batch(torch.tensor([2]))[1].tolist() == [3]
    assert [len(share) for share in shares[1:]] == [0, 3]
    with pytest.raises(IndexError):
        _ = shares[3]


@pytest.mark.parametrize("part", [[6], [0, -1]])
def test_a_share_of_examples_that_are_not_there_is_refused(part):
    with pytest.raises(ValueError, match=r"Shares\(parts=…\) has indices .* must be in \[0, 6\)"):
        Shares(INPUTS, TARGETS, [[0], part])


def test_a_client_without_examples_is_named():
    clients = Shares(INPUTS, TARGETS, [[0], []])
    with pytest.raises(ValueError, match="client 1 has no training data"):
        Task(nn.Linear(2, 6), nn.functional.cross_entropy, clients, (INPUTS, TARGETS))


def as_shares(task: Task) -> Task:
    """Return the same task with all clients' examples in one pair of tensors."""
    whole = [data.batch(torch.arange(len(data))) for data in task.clients]
    ends = np.cumsum([len(data) for data in task.clients])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    return replace(task, clients=Shares(*(torch.cat(each) for each in zip(*whole, strict=True)), parts))


def test_a_run_on_shares_is_that_on_tensors():
    one, other = (simulated(task, run=make_run(12)) for task in (make_task(), as_shares(make_task())))
    assert without_wall_times(one.trace) == without_wall_times(other.trace)


def test_shares_go_to_a_worker_as_two_index_arrays():
    clients, examples = 10_000, 20_000
    inputs, targets = torch.zeros(examples, 4), torch.zeros(examples, dtype=torch.int64)
    shares = Shares(inputs, targets, np.arange(examples).reshape(clients, 2))
    data, indices = examples * (4 * 4 + 8), 8 * (examples + clients)
    assert len(pickle.dumps(shares)) < data + indices + 10_000


def test_a_client_is_looked_at_when_it_trains_and_not_before():
    looked_at = []

    class Watched(Shares):
        def __getitem__(self, client):
            looked_at.append(client)
            return super().__getitem__(client)

    clients = 100_000
    task = Task(
        model=nn.Linear(2, 6),
        loss=nn.functional.cross_entropy,
        clients=Watched(INPUTS, TARGETS, np.arange(clients).reshape(-1, 1) % 6),
        test=(INPUTS, TARGETS),
    )
    result = simulated(task, "fedasync", schedule=Schedule("clock", concurrency=8), run=make_run(20))
    assert looked_at == [record["client"] for record in result.trace if record["kind"] == "update"]
    assert max(looked_at) > 10_000


def test_more_tensors_than_open_files_are_one_line_and_shares_are_none_of_them():
    examples = 600
    inputs, targets = torch.zeros(examples, 2), torch.zeros(examples, dtype=torch.int64)
    parts = [torch.tensor([row]) for row in range(examples)]
    task = Task(
        model=nn.Linear(2, 6),
        loss=nn.functional.cross_entropy,
        clients=[TensorData(inputs, targets, part) for part in parts],
        test=(INPUTS, TARGETS),
    )
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        shared = replace(task, clients=Shares(inputs, targets, parts))
        assert simulated(shared, "fedasync", run=make_run(3), executor="process").summary["updates"] == 3
        with pytest.raises(InputError, match=r"more tensors than files may be open.*clients Shares"):
            simulated(task, "fedasync", run=make_run(3), executor="process")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class SlowIdleClients:
    """What ``IdleClients`` does, by looking."""

    def __init__(self, clients):
        self.clients = list(clients)

    def add(self, client):
        self.clients.append(client)

    def take(self, place):
        self.clients[place], self.clients[-1] = self.clients[-1], self.clients[place]
        return self.clients.pop()

    def remove(self, client):
        self.take(self.clients.index(client))


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "remove"]), st.integers(0, 10**6)), max_size=60))
def test_idle_clients_come_and_go_as_in_a_list(actions):
    idle, slow = IdleClients(range(5)), SlowIdleClients(range(5))
    for new, (action, number) in enumerate(actions, start=5):
        if action == "add":
            idle.add(new)
            slow.add(new)
        elif slow.clients and action == "take":
            place = number % len(slow.clients)
            assert idle.take(place) == slow.take(place)
        elif slow.clients:
            client = slow.clients[number % len(slow.clients)]
            idle.remove(client)
            slow.remove(client)
        assert list(idle) == slow.clients
        assert len(idle) == len(slow.clients)


def test_a_model_that_only_evaluates_has_no_gradient():
    module = nn.Linear(2, 1)
    flat = FlatModel(module)
    module(torch.ones(1, 2))
    assert module.weight.grad is None
    assert torch.equal(flat.take_gradient(), torch.zeros(3))
    module(torch.tensor([[3.0, 4.0]])).sum().backward()
    assert flat.take_gradient().tolist() == [3.0, 4.0, 1.0]


def test_jobs_in_this_process_use_the_same_memory_one_after_another():
    task = make_task()
    model = FlatModel(task.build_model(0))
    executor = InlineExecutor(Recipe(task, Point(), (), TRAINING, seed=0))
    places, norms = set(), set()
    for number in range(3):
        job = Job(number, number, 0, model.vector, model.read_statistics(), point_epochs=1, curve_epochs=0)
        executor.submit(job, 0.0)
        offsets = executor.result(job, remaining=1).tensors["offsets"]
        executor.release(job)
        places.add(offsets.data_ptr())
        norms.add(float(offsets.norm()))
    assert len(places) == 1
    assert len(norms) == 3


LARGE_VECTORS = """
import ctypes, resource
from asyncmanifold.execution.allocator import keep_freed_memory
keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    vector = library.malloc(40 << 20)
    ctypes.memset(vector, 1, 40 << 20)
    library.free(vector)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_vectors_of_ten_million_parameters_use_the_same_memory_one_after_another():
    faults = subprocess.run([sys.executable, "-c", LARGE_VECTORS], capture_output=True, text=True, check=True)
    assert int(faults.stdout) < 2 * (40 << 20) // resource.getpagesize()  # ten times as many if all are fresh
