"""The tasks whose models live in curved space."""

from collections import Counter
from dataclasses import replace

import geoopt
import pytest
import torch

from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.flower.codec import array_record
from asyncmanifold.tasks.prototypes import PrototypeNet, Prototypes
from asyncmanifold.tasks.tree import NodeEmbedding, TreeTask, ancestor_pairs, parents_of
from asyncmanifold.vectors import FlatModel
from grid import LocalGrid, honest
from tiny import TRAINING as SMALL_BATCHES
from tiny import make_run, simulated, trace_of

TREE = TreeTask(clients=4, branching=2, depth=3)
TASKS = {"sphere": Prototypes(clients=3), "hyperbolic": TREE}
TRAINING = replace(SMALL_BATCHES, batch_size=32)  # a step on a manifold takes a millisecond


def ancestors(node, branching):
    """Return a node's ancestors, climbing one at a time."""
    found = []
    while node:
        node = (node - 1) // branching
        found.append(node)
    return found


def test_a_small_tree_by_hand():
    parents = parents_of(2, 2)
    assert parents.tolist() == [0, 0, 0, 1, 1, 2, 2]
    pairs = {(1, 0), (2, 0), (3, 1), (3, 0), (4, 1), (4, 0), (5, 2), (5, 0), (6, 2), (6, 0)}
    assert set(map(tuple, ancestor_pairs(parents).tolist())) == pairs


def examples_of(data):
    """Return (node, candidates, place of the right one) for every example."""
    inputs, places = data.batch(torch.arange(len(data)))
    return [
        (node, tuple(c), place) for (node, *c), place in zip(inputs.tolist(), places.tolist(), strict=True)
    ]


def test_the_right_answer_is_an_ancestor_and_no_other_is_related():
    task = TREE.build(0)
    for node, candidates, place in (e for data in (*task.clients, task.test) for e in examples_of(data)):
        for index, candidate in enumerate(candidates):
            if index == place:
                assert candidate in ancestors(node, 2)
            else:
                assert candidate != node
                assert candidate not in ancestors(node, 2)
                assert node not in ancestors(candidate, 2)


def test_every_pair_is_asked_for_as_often_as_said():
    task = TREE.build(3)
    asked = Counter(
        (node, candidates[place])
        for data in (*task.clients, *task.validation, task.test)
        for node, candidates, place in examples_of(data)
    )
    pairs = map(tuple, ancestor_pairs(parents_of(2, 3)).tolist())
    assert asked == dict.fromkeys(pairs, TREE.repeats)


def test_branches_are_whole():
    task = TREE.build(3)
    second_level = range(3, 7)
    for client, (trained, held_out) in enumerate(zip(task.clients, task.validation, strict=True)):
        for node, _, _ in [*examples_of(trained), *examples_of(held_out)]:
            branch = [above for above in (node, *ancestors(node, 2)) if above in second_level]
            assert not branch or (branch[0] - 3) % TREE.clients == client


def test_the_same_seed_gives_the_same_examples():
    one, same, other = (TREE.build(seed) for seed in (1, 1, 2))
    assert [examples_of(d) for d in one.clients] == [examples_of(d) for d in same.clients]
    assert examples_of(one.test) != examples_of(other.test)


@pytest.mark.parametrize("space", ["hyperbolic", "flat"])
def test_candidates_are_scored_by_distance(space):
    torch.manual_seed(0)
    model = NodeEmbedding(7, 2, space)
    with torch.no_grad():
        model.points.mul_(4.0)
    rows = torch.tensor([[3, 1, 6], [4, 0, 5]])
    points = model.points.detach()
    distance = geoopt.PoincareBall().dist if space == "hyperbolic" else lambda a, b: (a - b).norm(dim=-1)
    for row, scores in zip(rows, model(rows), strict=True):
        expected = [-2.0 * float(distance(points[row[0]], points[other])) for other in row[1:]]
        assert scores.tolist() == pytest.approx(expected, rel=1e-3)


def test_scores_have_gradients_where_points_coincide():
    for space in ("hyperbolic", "flat"):
        model = NodeEmbedding(3, 2, space)
        with torch.no_grad():
            model.points.zero_()
        model(torch.tensor([[0, 1, 2]])).sum().backward()
        assert bool(model.points.grad.isfinite().all())


@pytest.mark.parametrize("space", ["sphere", "flat"])
def test_prototypes_score_by_the_cosine(space):
    torch.manual_seed(0)
    model = PrototypeNet(4, space)
    assert torch.allclose(model.prototypes.norm(dim=1), torch.ones(10))
    images = torch.rand(3, 1, 8, 8)
    cosines = torch.nn.functional.cosine_similarity(model.body(images)[:, None], model.prototypes, dim=-1)
    assert torch.allclose(model(images), 10.0 * cosines, atol=1e-5)
    assert FlatModel(model).space.is_flat == (space == "flat")


def test_both_spaces_have_the_same_start_and_data():
    curved, flat = Prototypes().build(5), Prototypes(space="flat").build(5)
    inputs = [task.test.batch(torch.arange(len(task.test)))[0] for task in (curved, flat)]
    assert torch.equal(*inputs)
    states = [task.build_model(5).state_dict() for task in (curved, flat)]
    assert all(torch.allclose(a, b) for a, b in zip(*(s.values() for s in states), strict=True))


@pytest.mark.parametrize(
    ("task", "settings", "says"),
    [
        (TreeTask, {"space": "round"}, "must be 'hyperbolic' or 'flat'"),
        (TreeTask, {"branching": 1}, "branching=1) must be at least 2"),
        (TreeTask, {"depth": 1}, "depth=1) must be at least 2"),
        (TreeTask, {"dimension": 0}, "dimension=0) must be at least 1"),
        (TreeTask, {"clients": 10}, "clients=10) must be at most 9"),
        (TreeTask, {"negatives": 0}, "negatives=0) must be at least 1"),
        (TreeTask, {"test_fraction": 1.0}, "test_fraction=1.0) must be above 0 and below 1"),
        (Prototypes, {"space": "round"}, "must be 'sphere' or 'flat'"),
        (Prototypes, {"dimension": 1}, "dimension=1) must be at least 2"),
        (Prototypes, {"clients": 0}, "clients=0) must be at least 1"),
    ],
)
def test_wrong_settings_are_one_line(task, settings, says):
    with pytest.raises(ValueError, match="must be") as caught:
        task(**settings)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", TASKS)
def test_workers_and_resuming_give_the_same_bits(name, tmp_path):
    task = TASKS[name].build(0)

    def run(out, **more):
        options = {"training": TRAINING, "run": make_run(6, checkpoint_seconds=0.0)} | more
        return simulated(task, "asyncbezier", out=tmp_path / out, **options)

    def interrupt(record):
        if record.get("update") == 4:
            raise KeyboardInterrupt

    models = [run("whole").model, run("workers", workers=2).model]
    with pytest.raises(KeyboardInterrupt):
        run("parts", observer=interrupt)
    models.append(run("parts", resume=True).model)
    first, *others = (model.state_dict() for model in models)
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)
    assert trace_of(tmp_path / "whole") == trace_of(tmp_path / "workers")


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("method", ["fedasync", "fedbuff", "asyncbezier"])
def test_a_deployment_on_flower_is_the_same_run(name, method, tmp_path):
    task = TASKS[name].build(0)
    grid = LocalGrid({part: honest(task, part) for part in range(3)}, {0: 1, 1: 3, 2: 5})
    model = task.build_model(0)
    policy = Policy(poll_seconds=1e-4, meet_seconds=1e-4)
    server = AsyncServer(model, method, training=TRAINING, policy=policy)
    result = server.start(grid, array_record(model.state_dict()), 12, out=tmp_path / "run")
    again = simulated(task, method, training=TRAINING, replay=trace_of(tmp_path / "run")).model
    for key, tensor in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(tensor, again.state_dict()[key], rtol=1e-6, atol=1e-7)
