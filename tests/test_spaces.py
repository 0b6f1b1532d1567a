"""Curved parameter spaces: laws over every manifold, curves and their gradients, and runs of every method."""

from dataclasses import replace
from functools import partial

import geoopt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from asyncmanifold import METHODS, Averaging, Bezier, LocalTraining, Method, Run, simulate
from asyncmanifold.client.curved import CurvedControls, geodesic, plain_gradient
from asyncmanifold.errors import InputError
from asyncmanifold.geometry import spaces
from asyncmanifold.geometry.bezier import de_casteljau
from asyncmanifold.geometry.maps import StiefelMaps, maps_of
from asyncmanifold.geometry.spaces import FLAT, Piece, Space, karcher_mean, space_of
from asyncmanifold.vectors import FlatModel
from tiny import TRAINING, make_task

MANIFOLDS = {
    "sphere": (geoopt.Sphere, (3, 4)),
    "exact sphere": (geoopt.SphereExact, (3, 4)),
    "Poincaré ball": (geoopt.PoincareBall, (3, 4)),
    "strong Poincaré ball": (lambda: geoopt.PoincareBall(c=2.0), (3, 4)),
    "hyperboloid": (geoopt.Lorentz, (3, 4)),
    "stereographic": (geoopt.Stereographic, (3, 4)),
    "positive definite": (geoopt.SymmetricPositiveDefinite, (2, 3, 3)),
    "scaled sphere": (lambda: geoopt.Scaled(geoopt.Sphere(), 2.0), (3, 4)),
    "Stiefel": (geoopt.EuclideanStiefel, (2, 5, 3)),
    "canonical Stiefel": (geoopt.CanonicalStiefel, (5, 3)),
}
RETRACTED = ("Stiefel", "canonical Stiefel")
"""Where a retraction stands for exp: its lengths are its own."""
ISOMETRIC = tuple(name for name in MANIFOLDS if name not in (*RETRACTED, "scaled sphere"))

every_manifold = pytest.mark.parametrize("name", MANIFOLDS)
few = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**31 - 1)

RUNNING_ON_MANIFOLDS = [
    name
    for name, method in METHODS.items()
    if not method.embedding.follows_shape and not any(part.flat_only for part in method.stages.values())
]
"""Surfaces are refused there (tests/test_surfaces.py)."""


class Case:
    """A point and tangent vectors of moderate length on a manifold."""

    def __init__(self, name: str, seed: int) -> None:
        make, self.shape = MANIFOLDS[name]
        manifold = make()
        self.random = torch.Generator().manual_seed(seed)
        self.x = manifold.projx(self._around(self._centre(name)))
        self.maps = maps_of(manifold, self.x)

    def _centre(self, name: str) -> torch.Tensor:
        if name == "positive definite":
            return torch.eye(3).expand(self.shape).double()
        return torch.zeros(self.shape).double()

    def _around(self, centre: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(self.shape, generator=self.random, dtype=torch.float64)
        return centre + (0.2 * (noise + noise.mT) if centre.any() else 0.15 * noise)

    def tangent(self, length: float = 0.4) -> torch.Tensor:
        raw = torch.randn(self.shape, generator=self.random, dtype=torch.float64)
        v = self.maps.project(self.x, raw)
        return v * (length / float(self.maps.inner(self.x, v, v)) ** 0.5)


@every_manifold
@few
@given(seed=seeds)
def test_log_undoes_exp(name, seed):
    case = Case(name, seed)
    v = case.tangent()
    torch.testing.assert_close(case.maps.log(case.x, case.maps.exp(case.x, v)), v, rtol=1e-5, atol=1e-6)


@every_manifold
@few
@given(seed=seeds)
def test_exp_undoes_log_and_stays_on_the_manifold(name, seed):
    case = Case(name, seed)
    y = case.maps.exp(case.x, case.tangent())
    torch.testing.assert_close(case.maps.repair(y), y, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(case.maps.exp(case.x, case.maps.log(case.x, y)), y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ISOMETRIC)
@few
@given(seed=seeds)
def test_transport_keeps_lengths_and_angles(name, seed):
    case = Case(name, seed)
    y = case.maps.exp(case.x, case.tangent())
    u, v = case.tangent(), case.tangent()
    there = [case.maps.transport(case.x, y, w) for w in (u, v)]
    for a, b in ((0, 0), (0, 1), (1, 1)):
        pair = (u, v)[a], (u, v)[b]
        expected = float(case.maps.inner(case.x, *pair))
        assert float(case.maps.inner(y, there[a], there[b])) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@every_manifold
@few
@given(seed=seeds)
def test_transport_gives_tangent_vectors(name, seed):
    case = Case(name, seed)
    y = case.maps.exp(case.x, case.tangent())
    v = case.maps.transport(case.x, y, case.tangent())
    torch.testing.assert_close(case.maps.project(y, v), v, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in MANIFOLDS if name not in RETRACTED])
@few
@given(seed=seeds)
def test_the_distance_is_the_length_of_the_log(name, seed):
    case = Case(name, seed)
    v = case.tangent()
    y = case.maps.exp(case.x, v)
    distances = case.maps.manifold.dist(case.x, y).double()
    expected = float((distances**2).sum()) ** 0.5
    found = float(case.maps.inner(case.x, case.maps.log(case.x, y), case.maps.log(case.x, y))) ** 0.5
    assert found == pytest.approx(expected, rel=1e-4)
    assert found == pytest.approx(0.4, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("angle", [1e-1, 1e-2, 1e-3, 1e-4])
def test_near_points_on_the_sphere_have_their_true_distance(angle, dtype):
    x, v = torch.tensor([1.0, 0.0, 0.0], dtype=dtype), torch.tensor([0.0, angle, 0.0], dtype=dtype)
    y = CIRCLE.exp(x, v)
    assert y.tolist() == pytest.approx([np.cos(angle), np.sin(angle), 0.0], rel=1e-6)
    torch.testing.assert_close(CIRCLE.log(x, y), v, rtol=1e-5, atol=1e-9)


def test_the_sphere_has_derivatives_where_points_coincide():
    """At v = 0 exp moves as v does; at y = x the log moves as the tangent part of y does."""
    x = torch.tensor([1.0, 0.0, 0.0])
    by_tangent = torch.autograd.functional.jacobian(lambda v: CIRCLE.exp(x, v), torch.zeros(3))
    torch.testing.assert_close(by_tangent, torch.eye(3))
    by_point = torch.autograd.functional.jacobian(lambda y: CIRCLE.log(x, y), x)
    torch.testing.assert_close(by_point, torch.diag(torch.tensor([0.0, 1.0, 1.0])))


def test_the_polar_retraction_by_hand():
    """On the circle of 2×1 matrices, X = (1, 0) and V = (0, 1) lead to (1, 1)/√2, and back."""
    maps = StiefelMaps(geoopt.EuclideanStiefel())
    x, v = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])
    y = maps.exp(x, v)
    assert y.flatten().tolist() == pytest.approx([0.5**0.5, 0.5**0.5])
    assert maps.log(x, y).flatten().tolist() == pytest.approx([0.0, 1.0], abs=1e-6)


def test_manifolds_without_a_map_are_refused_by_name():
    with pytest.raises(ValueError, match="parameters on UpperHalf cannot be trained: geoopt has no"):
        maps_of(geoopt.UpperHalf(), torch.eye(2).cfloat() * 1j)


# --- spaces -------------------------------------------------------------------------------------------


CIRCLE = maps_of(geoopt.Sphere(), torch.tensor([1.0, 0.0]))


def sphere_space():
    """Two flat numbers, a point of the circle, one flat number."""
    return Space([Piece(2, 4, (2,), CIRCLE)])


def test_a_product_by_hand():
    """A quarter turn on the circle beside a move of (1, 2, 2): the distance is √((π/2)² + 9)."""
    space = sphere_space()
    start, end = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 0.0, 1.0, 2.0])
    way = space.log(start, end)
    assert way.tolist() == pytest.approx([1.0, 2.0, 0.0, np.pi / 2, 2.0], abs=1e-6)
    assert space.distance(start, end) == pytest.approx((np.pi**2 / 4 + 9) ** 0.5, rel=1e-6)
    half = 0.5**0.5
    assert space.geodesic(start, end, 0.5).tolist() == pytest.approx([0.5, 1.0, half, half, 1.0], abs=1e-6)
    turned = space.transport(start, end, torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]))
    assert turned.tolist() == pytest.approx([1.0, 0.0, -1.0, 0.0, 0.0], abs=1e-6)


def test_a_curve_on_the_circle_by_hand():
    """Control points at 0°, 60° and 120° lie evenly on a great circle: γ(t) is at 120° · t."""
    space = Space([Piece(0, 2, (2,), CIRCLE)])
    angles = torch.tensor([0.0, np.pi / 3, 2 * np.pi / 3])
    controls = list(torch.stack([angles.cos(), angles.sin()], dim=1).float())
    for t in (0.0, 0.25, 0.5, 1.0):
        angle = t * 2 * np.pi / 3
        assert Bezier(2).at(controls, t, space.geodesic).tolist() == pytest.approx(
            [np.cos(angle), np.sin(angle)], abs=1e-6
        )
    assert Bezier(2).place(space, controls, 0.3) == pytest.approx(0.3, abs=1e-6)


def test_the_smallest_place_is_found_on_a_curve_that_turns_back():
    """In flat space the general search finds what the polynomial's roots give."""
    controls = [torch.tensor([0.0, 0.0]), torch.tensor([4.0, 0.0]), torch.tensor([0.0, 1.0])]
    offsets = torch.stack(controls[1:]).double().numpy()
    expected = Bezier(2).parameter(offsets @ offsets.T, 0.7)
    assert Bezier(2).place(FLAT, controls, 0.7) == pytest.approx(expected, abs=1e-6)


@every_manifold
def test_the_mean_of_points_around_one_is_that_one(name):
    case = Case(name, 5)
    ways = [case.tangent() for _ in range(3)]
    points = [case.maps.exp(case.x, s * v) for v in ways for s in (1.0, -1.0)]
    mean = karcher_mean(case.maps, torch.stack(points))
    total = torch.stack([case.maps.log(mean, point) for point in points]).mean(0)
    assert float(case.maps.inner(mean, total, total)) ** 0.5 < 1e-6


def test_the_mean_on_the_circle_by_hand():
    angles = torch.tensor([0.1, 0.4, 1.0]).double()
    mean = karcher_mean(CIRCLE, torch.stack([angles.cos(), angles.sin()], dim=1))
    assert mean.tolist() == pytest.approx([np.cos(0.5), np.sin(0.5)])


def test_plain_models_stay_flat():
    assert FlatModel(nn.Linear(2, 2)).space is FLAT
    euclidean = geoopt.ManifoldParameter(torch.zeros(3), manifold=geoopt.Euclidean(1))
    assert space_of([nn.Parameter(torch.zeros(2)), euclidean]) is FLAT


# --- local training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MANIFOLDS if name != "scaled sphere"])
@pytest.mark.parametrize("s", [0.3, 0.8])
def test_the_gradient_is_pulled_back_exactly(name, s):
    """∂⟨g, γ(s)⟩/∂p_k along a tangent vector, against a central difference.

    The scaled sphere's tangent vectors are not velocities, so there the two are not the same number.
    """
    case = Case(name, 11)
    base = case.x
    points = [case.maps.exp(base, case.tangent(0.5)).requires_grad_() for _ in range(2)]
    gradient = torch.randn(case.shape, generator=case.random, dtype=torch.float64)
    reached = de_casteljau([base, *points], s, partial(geodesic, case.maps))
    pulled = torch.autograd.grad(reached, points, gradient)
    for k, point in enumerate(points):
        here = point.detach()
        way = case.maps.project(here, torch.randn(case.shape, generator=case.random, dtype=torch.float64))
        values = []
        for step in (1e-5, -1e-5):
            moved = [p.detach() for p in points]
            moved[k] = case.maps.exp(here, step * way)
            values.append(
                float((gradient * de_casteljau([base, *moved], s, partial(geodesic, case.maps))).sum())
            )
        slope = (values[0] - values[1]) / 2e-5
        assert float((pulled[k] * way).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-5)


@every_manifold
def test_a_lowered_gradient_is_raised_again_by_geoopt(name):
    case = Case(name, 3)
    v = case.tangent()
    raised = case.maps.manifold.egrad2rgrad(case.x, plain_gradient(case.maps, case.x, v))
    torch.testing.assert_close(raised, v, rtol=1e-5, atol=1e-6)


class Prototypes(nn.Module):
    """A linear layer, and a prototype for each class on a manifold."""

    def __init__(self, manifold, start):
        super().__init__()
        self.body = nn.Linear(6, start.shape[-1])
        self.prototypes = geoopt.ManifoldParameter(start.float(), manifold=manifold)

    def forward(self, inputs):
        points = self.prototypes.reshape(3, -1)
        features = torch.tanh(self.body(inputs))[:, None, : points.shape[1]]
        return -((features - points[None, :, : features.shape[-1]]) ** 2).sum(-1)


def prototype_task(name):
    def model():
        case = Case(name, int(torch.randint(1 << 30, ())))
        shape = MANIFOLDS[name][1]
        start = case.x if shape[0] == 3 else case.x.new_tensor(case.x)
        return Prototypes(MANIFOLDS[name][0](), start)

    return replace(make_task((8, 12, 16)), model=model)


CLASSED = [name for name, (_, shape) in MANIFOLDS.items() if shape[0] == 3]


@pytest.mark.parametrize("method", RUNNING_ON_MANIFOLDS)
@pytest.mark.parametrize("name", ["sphere", "Poincaré ball"])
def test_every_method_runs_and_stays_on_the_manifold(name, method):
    result = simulate(prototype_task(name), method, training=TRAINING, run=Run(updates=60, evaluate_every=20))
    parameter = result.model.prototypes
    point = parameter.detach().double()
    torch.testing.assert_close(parameter.manifold.projx(point), point, rtol=1e-6, atol=1e-6)
    assert result.summary["final"] > 0.5


@pytest.mark.parametrize("name", CLASSED)
def test_curves_are_learned_on_every_manifold(name):
    training = replace(TRAINING, optimizer="sgd", local_lr=0.05)
    method = Method(embedding=Bezier(3, interior_start="chord"), averaging=Averaging(5))
    result = simulate(prototype_task(name), method, training=training, run=Run(updates=20))
    parameter = result.model.prototypes
    point = parameter.detach().double()
    torch.testing.assert_close(parameter.manifold.projx(point), point, rtol=1e-6, atol=1e-6)


def test_a_trajectory_on_a_manifold_is_refused_with_the_way_out():
    method = Method(embedding=Bezier(2, interior_start="trajectory"))
    with pytest.raises(InputError, match="is not for parameters on manifolds: use 'base' or 'chord'"):
        simulate(prototype_task("sphere"), method, training=TRAINING, run=Run(updates=5))


@pytest.mark.parametrize("method", RUNNING_ON_MANIFOLDS)
def test_the_general_path_on_flat_space_equals_the_fast_one(method, monkeypatch):
    monkeypatch.setattr(spaces, "_is_plain", lambda manifold: False)

    def model_of(curved):
        model = nn.Linear(6, 3)
        if curved:
            model.weight = geoopt.ManifoldParameter(model.weight.detach(), manifold=geoopt.Euclidean(1))
        return model

    vectors = []
    for curved in (False, True):
        task = replace(make_task(), model=lambda curved=curved: model_of(curved))
        result = simulate(task, method, training=TRAINING, run=Run(updates=50, evaluate_every=50))
        vectors.append(torch.cat([p.detach().reshape(-1) for p in result.model.parameters()]))
    fast, general = vectors
    assert float((fast - general).abs().max() / fast.abs().max()) < 1e-6


def test_frozen_ends_and_inactive_points_stay_where_they_are():
    model = FlatModel(Prototypes(geoopt.Sphere(), Case("sphere", 1).x))
    embedding = Bezier(2, freeze_end=True)
    controls = CurvedControls(model, embedding, LocalTraining())
    offsets = torch.zeros(2, model.size)
    controls.begin(model.vector.clone(), offsets)
    for parameter in model.module.parameters():
        parameter.grad = torch.randn_like(parameter)
    controls.place(1.0)
    controls.learn()
    controls.finish()
    end = offsets[-1].clone()
    assert not offsets[0].any()
    assert end.any()
    controls.start_curve()
    controls.place(0.5)
    controls.learn()
    controls.finish()
    assert offsets[0].any()
    torch.testing.assert_close(offsets[-1], end, rtol=0.0, atol=1e-7)


@every_manifold
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_right_where_control_points_coincide(name, seed):
    """As when the curve phase starts: B = Θ^t, models in single precision, one step of a job.

    Against central differences in double precision, along tangent vectors of B.
    """
    case, s = Case(name, seed), 0.4
    start = case.x.float()
    model = FlatModel(Prototypes(MANIFOLDS[name][0](), start))
    controls = CurvedControls(model, Bezier(2), LocalTraining(local_lr=0.1, proximal=0.0))
    offsets = torch.zeros(2, model.size)
    controls.begin(model.vector.clone(), offsets)
    piece, maps = model.space.pieces[0], model.space.pieces[0].maps
    base = piece.of(model.vector).double().clone()
    case.x = base
    end = maps.exp(base, case.tangent(0.5))
    with torch.no_grad():
        controls._curved[0][-1].copy_(end)
        end = controls._curved[0][-1].double()
    gradient = torch.randn(case.shape, generator=case.random, dtype=torch.float64).float()
    controls.start_curve()
    controls.place(s)
    for parameter in model.module.parameters():
        parameter.grad = torch.zeros_like(parameter)
        if parameter.shape == gradient.shape:
            parameter.grad.copy_(gradient)
    controls._optimizer.step = lambda: None
    controls.learn()
    found = controls._curved[0][0].grad.double()
    for _ in range(4):
        moved = [maps.exp(base, step * case.tangent(1.0)) for step in (1e-3,)]
        moved.append(maps.exp(base, -maps.log(base, moved[0])))
        curves = [de_casteljau([base, point, end], s, partial(geodesic, maps)) for point in moved]
        slope = float((gradient.double() * (curves[0] - curves[1])).sum())
        assert float((found * (moved[0] - moved[1])).sum()) == pytest.approx(slope, rel=2e-3, abs=2e-6)
