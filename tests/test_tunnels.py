"""Tunnels: room around a learned curve."""

from dataclasses import replace

import geoopt
import pytest
import torch

from asyncmanifold import Bezier, Job, LocalTraining, Method, Run, Tunnel, simulate
from asyncmanifold.client.controls import FlatControls
from asyncmanifold.client.curved import CurvedControls
from asyncmanifold.vectors import FlatModel
from test_spaces import Case, Prototypes
from tiny import TRAINING, make_model, make_task

S = 0.3


def flat_controls():
    model = FlatModel(make_model())
    controls = FlatControls(model, Tunnel(2), LocalTraining())
    offsets = torch.zeros(2, model.size)
    controls.begin(model.vector.clone(), offsets)
    controls.start_curve()
    offsets.normal_(generator=torch.Generator().manual_seed(3))
    return model, controls, offsets


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_slopes_are_the_derivatives_of_the_weights(degree, t):
    embedding, step = Bezier(degree), 1e-6
    ahead, behind = embedding.weights(t + step), embedding.weights(t - step)
    for slope, a, b in zip(embedding.slopes(t), ahead, behind, strict=True):
        assert slope == pytest.approx((a - b) / (2 * step), abs=1e-6)


def test_the_model_moves_by_the_radius_and_across_the_curve():
    model, controls, offsets = flat_controls()
    controls.place(S)
    before = model.vector.clone()
    controls.shift(torch.randn(model.size), 0.25)
    moved = model.vector - before
    tangent = 2 * (1 - 2 * S) * offsets[0] + 2 * S * offsets[1]
    assert float(moved.norm()) == pytest.approx(0.25, rel=1e-4)
    assert abs(float(torch.nn.functional.cosine_similarity(moved, tangent, dim=0))) < 1e-4


def test_no_direction_leads_nowhere():
    model, controls, _ = flat_controls()
    controls.place(S)
    before = model.vector.clone()
    controls.shift(torch.zeros(model.size), 0.25)
    assert torch.equal(model.vector, before)


def test_on_a_sphere_the_model_moves_along_a_geodesic_across_the_curve():
    case = Case("sphere", 4)
    model = FlatModel(Prototypes(geoopt.Sphere(), case.x))
    controls = CurvedControls(model, Tunnel(2), LocalTraining(local_lr=0.1))
    controls.begin(model.vector.clone(), torch.zeros(2, model.size))
    for place in (1.0, 0.4, 0.6):
        if place == 0.4:
            controls.start_curve()
        controls.place(place)
        for parameter in model.module.parameters():
            parameter.grad = torch.randn_like(parameter)
        controls.learn()
    controls.place(S)
    before = model.vector.clone()
    controls.shift(torch.randn(model.size), 0.2)
    assert model.space.distance(before, model.vector) == pytest.approx(0.2, rel=1e-3)
    way = model.space.log(before, model.vector)
    along = model.space.log(
        before, Tunnel(2).at([controls._theta, *controls._points()], S + 1e-3, model.space.geodesic)
    )
    cosine = model.space.inner(before, way, along) / (0.2 * model.space.norm(before, along))
    assert abs(cosine) < 1e-2
    torch.testing.assert_close(model.space.repaired(model.vector), model.vector)


def model_of(embedding, seed=0):
    method = Method(embedding=embedding)
    result = simulate(make_task(), method, training=TRAINING, run=Run(updates=10, seed=seed))
    return torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])


def test_a_tunnel_without_room_is_a_curve():
    assert torch.equal(model_of(Tunnel(2, radius=0.0)), model_of(Bezier(2)))


@pytest.mark.parametrize("sharpness_aware", [False, True])
def test_a_tunnel_changes_what_is_learned_and_repeats_exactly(sharpness_aware):
    tunnel = Tunnel(2, radius=0.5, sharpness_aware=sharpness_aware)
    first = model_of(tunnel)
    assert torch.equal(first, model_of(tunnel))
    assert not torch.equal(first, model_of(Bezier(2)))
    assert not torch.equal(first, model_of(replace(tunnel, sharpness_aware=not sharpness_aware)))


def test_the_sharpness_aware_direction_is_the_gradients():
    """For ℓ(w) = a · w the loss rises along a; γ is orthogonal to it, so the whole radius goes there."""
    model, controls, offsets = flat_controls()
    offsets.zero_()
    offsets[:, 0] = 1.0
    gradient = torch.zeros(model.size)
    gradient[1] = 2.0
    controls.place(S)
    before = model.vector.clone()
    controls.shift(gradient, 0.5)
    expected = torch.zeros(model.size)
    expected[1] = 0.5
    torch.testing.assert_close(model.vector - before, expected, rtol=1e-6, atol=1e-6)


def test_wrong_radii_are_refused():
    with pytest.raises(ValueError, match=r"Tunnel\(radius=-1.0\) must be at least 0 and finite"):
        Tunnel(2, radius=-1.0)


def test_the_sharpness_aware_step_goes_where_the_loss_rises(monkeypatch):
    """In training itself: the loss beside the curve, which is learned from, is above that on the curve."""
    from asyncmanifold.client import Trainer

    losses, task = [], make_task()
    trainer = Trainer(make_model(), task.loss, Tunnel(2, radius=0.05, sharpness_aware=True), TRAINING, seed=0)
    passed = trainer._backpropagate

    def watched():
        losses.append(passed())
        return losses[-1]

    monkeypatch.setattr(trainer, "_backpropagate", watched)
    flat = FlatModel(make_model())
    flat.module[3].p = 0.0
    trainer._model.module[3].p = 0.0  # dropout would draw anew for the second pass
    job = Job(0, 0, 0, flat.vector.clone(), flat.read_statistics(), point_epochs=1, curve_epochs=2)
    trainer.train(job, task.clients[4])
    first = 6  # batches of 44 examples, at the end point
    pairs = list(zip(losses[first::2], losses[first + 1 :: 2], strict=True))
    assert len(pairs) == 12
    assert all(beside > on_curve for on_curve, beside in pairs)
