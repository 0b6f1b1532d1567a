"""Surfaces: polynomials on domains of any dimension, their geodesics, their training and their steps."""

from dataclasses import replace
from math import asinh, sqrt

import geoopt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from asyncmanifold import (
    METHODS,
    Averaging,
    Bezier,
    Buffer,
    Disc,
    InputError,
    Job,
    LocalTraining,
    Method,
    OrthoDC,
    Patch,
    Point,
    Run,
    ServerState,
    Update,
    absorb,
    simulate,
)
from asyncmanifold.client import Trainer
from asyncmanifold.client.controls import FlatControls
from asyncmanifold.configuration.tables import build_part, to_tree
from asyncmanifold.geometry.bezier import bernstein
from asyncmanifold.geometry.domains import ball, cube
from asyncmanifold.geometry.geodesics import SurfaceMetric
from asyncmanifold.geometry.paths import MeasuredPath, SurfacePath
from asyncmanifold.vectors import FlatModel
from reference import curve_point, first_crossing, length, named_slices
from test_spaces import Case, Prototypes
from tiny import TRAINING, make_model, make_task

SURFACES = [
    Disc(1),
    Disc(2),
    Disc(3),
    Disc(2, surface_dimension=3),
    Patch(1),
    Patch(2),
    Patch(1, surface_dimension=3),
]
every_surface = pytest.mark.parametrize("surface", SURFACES, ids=lambda s: f"{type(s).__name__}{s.points}")
seeds = st.integers(0, 2**32 - 1)


def places_in(domain, count=200, seed=0):
    """Points of the cube around a domain that are inside it, one per column."""
    points = np.random.default_rng(seed).uniform(-1.0, 1.0, (domain.dimension, count))
    return np.stack([point for point in points.T if domain.depth(point[:, None]) >= 0.0], axis=1)


def control_points(surface, function):
    """Return the offsets with which a surface equals a function that is 0 at the start, by least squares."""
    places = places_in(surface.domain)
    values = np.stack([function(place) for place in places.T])
    offsets, *_ = np.linalg.lstsq(surface.domain.weights(places).T, values, rcond=None)
    np.testing.assert_allclose(surface.domain.weights(places).T @ offsets, values, atol=1e-9)
    return offsets


def stopped(surface, offsets, fraction):
    """Return t* and the model there, relative to the base."""
    t, spot = surface.stop(offsets @ offsets.T, fraction)
    return t, np.array(surface.weights(spot)) @ offsets


# --- domains ------------------------------------------------------------------------------------------------


@every_surface
def test_a_surface_starts_at_the_base_and_ends_at_the_local_model(surface):
    count = surface.points
    assert surface.weights(tuple(surface.domain.start)) == [0.0] * count
    assert surface.weights(surface.end) == [0.0] * (count - 1) + [1.0]
    assert surface.end == tuple(surface.domain.end)


def test_the_number_of_control_points():
    assert [surface.points for surface in SURFACES] == [2, 5, 9, 9, 3, 8, 7]


@pytest.mark.parametrize("kind", [Disc, Patch])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_in_one_dimension_a_surface_is_a_bezier_curve(kind, degree):
    surface = kind(degree, surface_dimension=1)
    start, end = surface.domain.start, surface.domain.end
    for t in (0.0, 0.2, 0.7, 1.0):
        place = tuple(start + t * (end - start))
        assert surface.weights(place) == pytest.approx(bernstein(degree, t)[1:], abs=1e-15)


@every_surface
def test_the_base_has_the_rest_of_the_weight(surface):
    """Its own weight is λ_0^n or Π (1 − x_i)^n."""
    for place in places_in(surface.domain, 20).T:
        rest = 1.0 - sum(surface.weights(tuple(place)))
        if isinstance(surface, Disc):
            expected = ((1.0 - place.sum()) / 2.0) ** surface.degree
        else:
            expected = np.prod((1.0 - place) ** surface.degree)
        assert rest == pytest.approx(expected, abs=1e-12)


@every_surface
def test_tangents_and_bends_are_derivatives(surface):
    domain, step = surface.domain, 1e-5
    place = places_in(domain, 40)[:, 3] * 0.5
    found = np.array(surface.tangents(tuple(place)))
    monomials, coefficients = domain.hessians
    bends = (coefficients @ domain.monomials(monomials, place)).reshape(
        -1, domain.dimension, domain.dimension
    )
    for axis, direction in enumerate(np.eye(domain.dimension)):
        ahead, behind = (
            np.array(surface.weights(tuple(place + sign * step * direction))) for sign in (1, -1)
        )
        np.testing.assert_allclose(found[axis], (ahead - behind) / (2 * step), atol=1e-8)
        ahead, behind = (
            np.array(surface.tangents(tuple(place + sign * step * direction))) for sign in (1, -1)
        )
        np.testing.assert_allclose(bends[:, :, axis].T, (ahead - behind) / (2 * step), atol=1e-8)


def test_the_room_to_the_boundary_by_hand():
    assert ball(2, 2).room(np.array([0.6, 0.0]), np.array([0.0, 1.0])) == pytest.approx(0.8)
    assert ball(2, 2).room(np.array([0.6, 0.0]), np.array([-1.0, 0.0])) == pytest.approx(1.6)
    assert cube(1, 2).room(np.array([0.25, 0.5]), np.array([0.6, 0.8])) == pytest.approx(0.625)
    assert cube(1, 2).room(np.array([0.25, 0.5]), np.array([-1.0, 0.0])) == pytest.approx(0.25)


# --- geodesics ----------------------------------------------------------------------------------------------


def test_the_metric_is_that_of_parameter_space():
    """g_ab = Σ_jk ∂_a b_j ∂_b b_k ⟨v_j, v_k⟩, in units of the longest offset."""
    surface, offsets = Disc(2), np.random.default_rng(1).standard_normal((5, 9))
    gram = offsets @ offsets.T
    place = np.array([0.2, -0.3])
    slopes = np.array(surface.tangents(tuple(place)))
    expected = slopes @ gram @ slopes.T / np.diag(gram).max()
    found = SurfaceMetric(surface.domain, gram, roughness=0.0).metric(place[:, None])[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def parabolic_cylinder(place):
    """A sheet bent along x + y only: w = x + y goes to (w, w²), and x − y stays straight."""
    w = place[0] + place[1]
    return np.array([w, w**2, place[0] - place[1]]) - np.array([-1.0, 1.0, -1.0])


def test_on_a_bent_sheet_the_geodesic_is_straight_when_it_is_unrolled():
    """From w = −1 to 1 and x − y = −1 to 1: x − y = s(w)/s(1) with the parabola's length s."""

    def unrolled(w):
        return (w * np.sqrt(1.0 + 4.0 * w**2) + np.arcsinh(2.0 * w) / 2.0) / 2.0

    offsets = control_points(Disc(2), parabolic_cylinder)
    curve = SurfaceMetric(ball(2, 2), offsets @ offsets.T, roughness=0.0).connect(tolerance=1e-7, nodes=5000)
    x, y = curve(np.linspace(0.0, 1.0, 41))
    assert np.abs(y).max() > 0.04  # not the straight way
    np.testing.assert_allclose(x - y, unrolled(x + y) / unrolled(1.0), atol=1e-5)
    assert unrolled(1.0) == pytest.approx((sqrt(5.0) + asinh(2.0) / 2.0) / 2.0)


def hill(place):
    """A hill beside the way, which a geodesic avoids."""
    return np.array([place[0] + 1.0, place[1], 0.0]) + np.array([0.0, 0.0, 0.7]) * (
        1.0 - place[0] ** 2 + 0.8 * place[0] * place[1] + place[1]
    )


def test_a_geodesic_is_the_shortest_polyline_that_a_plain_search_finds():
    offsets = control_points(Disc(2), hill)
    count = 24

    def whole_length(inner):
        xs = np.concatenate([[[-1.0, 0.0]], inner.reshape(-1, 2), [[1.0, 0.0]]])
        points = np.stack([hill(x) for x in xs])
        return count * float((np.diff(points, axis=0) ** 2).sum())

    straight = np.stack([np.linspace(-1.0, 1.0, count + 1), np.zeros(count + 1)], axis=1)
    searched = minimize(whole_length, straight[1:-1].ravel(), method="BFGS", options={"maxiter": 300}).x
    reference = np.concatenate([[[-1.0, 0.0]], searched.reshape(-1, 2), [[1.0, 0.0]]])
    assert np.abs(reference[:, 1]).max() > 0.05
    for path in ("connect", "shortened"):
        curve = getattr(SurfaceMetric(ball(2, 2), offsets @ offsets.T, roughness=1e-4), path)()
        found = curve(np.linspace(0.0, 1.0, count + 1)).T
        np.testing.assert_allclose(found, reference, atol=8e-3)


@pytest.mark.parametrize("surface", [Disc(2), Patch(1), Disc(2, surface_dimension=3)])
def test_a_geodesic_has_constant_speed_and_is_the_exponential_map_of_its_direction(surface):
    domain, offsets = surface.domain, np.random.default_rng(5).standard_normal((surface.points, 30))
    shape = SurfaceMetric(domain, offsets @ offsets.T)
    curve, small = shape.connect(tolerance=1e-6, nodes=5000), 1e-5
    times = np.linspace(0.0, 1.0, 11)
    velocity = curve(np.array([0.0, small])) @ [-1.0, 1.0] / small
    reached = shape.exponential(domain.start, velocity, times, tolerance=1e-9)
    np.testing.assert_allclose(reached, curve(times), atol=2e-3)
    np.testing.assert_allclose(reached[:, -1], domain.end, atol=2e-3)
    inner = times[1:-1]
    speeds = (curve(inner + small) - curve(inner - small)) / (2 * small)
    energies = np.einsum("am,mab,bm->m", speeds, shape.metric(curve(inner)), speeds)
    np.testing.assert_allclose(energies, energies[0], rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([Disc(2), Disc(3), Patch(1), Patch(2)]),
    st.integers(1, 8),
    st.sampled_from([1.0, 1e-3, 0.0]),
    seeds,
)
def test_a_path_stays_in_its_domain_and_is_never_longer_than_the_straight_one(surface, size, inside, seed):
    """Also if control points coincide, and in so few dimensions that the surface is folded."""
    offsets = np.random.default_rng(seed).standard_normal((surface.points, size))
    offsets[:-1] *= inside
    shape = SurfaceMetric(surface.domain, offsets @ offsets.T)
    times = np.linspace(0.0, 1.0, 17)
    straight = np.outer(surface.domain.start, 1.0 - times) + np.outer(surface.domain.end, times)
    for curve in (shape.connect(), shape.shortened()):
        x = curve(times)
        assert surface.domain.depth(x) > -1e-5
        assert shape.energy(x) <= 1.01 * shape.energy(straight)
        np.testing.assert_allclose(x[:, [0, -1]], straight[:, [0, -1]], atol=1e-6)


# --- the server's step --------------------------------------------------------------------------------------


@every_surface
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.62, 1.0])
def test_a_flat_surface_gives_the_straight_line(surface, fraction):
    domain = surface.domain
    plane = np.random.default_rng(2).standard_normal((domain.dimension, 12))
    offsets = control_points(surface, lambda place: (place - domain.start) @ plane)
    t, reached = stopped(surface, offsets, fraction)
    np.testing.assert_allclose(reached, fraction * offsets[-1], atol=1e-5)
    assert t == pytest.approx(fraction, abs=1e-5)


@pytest.mark.parametrize(
    "surface", [Disc(2), Disc(3), Patch(2), Disc(2, surface_dimension=1), Patch(2, surface_dimension=1)]
)
@pytest.mark.parametrize("fraction", [0.05, 0.5, 1.0])
def test_a_surface_that_collapses_to_a_curve_gives_its_step(surface, fraction):
    """ι(x) = γ(m(x)) with a linear m: every way from start to end goes along γ."""
    curve, domain = np.random.default_rng(3).standard_normal((2, 12)), surface.domain
    chord = domain.end - domain.start

    def collapsed(place):
        return curve_point(curve, float((place - domain.start) @ chord / (chord @ chord)))

    _, reached = stopped(surface, control_points(surface, collapsed), fraction)
    expected = curve_point(curve, first_crossing(curve, fraction))
    np.testing.assert_allclose(reached, expected, atol=1e-5 * length(curve[-1]))


def test_a_bilinear_patch_by_hand():
    """Corners (0,0), (1,0), (0,1), (1,1) of a square: half of the diagonal is its middle."""
    t, reached = stopped(Patch(1), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), 0.5)
    assert t == pytest.approx(0.5)
    np.testing.assert_allclose(reached, [0.5, 0.5], atol=1e-6)


@every_surface
def test_the_chord_of_a_step_has_the_asked_length(surface):
    offsets = np.random.default_rng(4).standard_normal((surface.points, 50))
    _, reached = stopped(surface, offsets, 0.3)
    assert length(reached) == pytest.approx(0.3 * length(offsets[-1]), rel=1e-5)


def test_a_step_by_parameter_is_a_share_of_the_geodesics_length():
    surface = Disc(2, step="parameter")
    offsets = np.random.default_rng(4).standard_normal((5, 50))
    t, reached = stopped(surface, offsets, 0.3)
    path = surface.path(offsets @ offsets.T)
    ways = np.stack([np.array(surface.weights(path.at(k / 1000))) @ offsets for k in range(1001)])
    pieces = np.linalg.norm(np.diff(ways, axis=0), axis=1)
    assert t == 0.3
    assert pieces[:300].sum() == pytest.approx(0.3 * pieces.sum(), rel=1e-3)
    np.testing.assert_allclose(reached, ways[300], atol=1e-6)


def test_a_flat_disc_is_absorbed_like_a_point_and_orthodc_acts_on_each_control_point():
    random = np.random.default_rng(6)
    plane = random.standard_normal((2, 20)).astype(np.float32)
    offsets = control_points(Disc(2), lambda place: (place - ball(2, 2).start) @ plane)
    state = ServerState(torch.zeros(20), version=1)
    base = torch.from_numpy(random.standard_normal(20).astype(np.float32))
    models = []
    for embedding, rows in ((Disc(2), offsets), (Point(), offsets[-1:])):
        update = Update(0, 0, torch.from_numpy(rows.astype(np.float32)))
        method = Method(embedding=embedding, correction=OrthoDC(1.0))
        after, step = absorb(method, state, update, base=base, weight=0.4)
        models.append(after.theta)
        assert all(step.projected)
    torch.testing.assert_close(*models, rtol=0.0, atol=1e-5)


# --- where batches are trained ------------------------------------------------------------------------------


def test_a_curve_by_arc_length_by_hand():
    """With the interior at the base γ(t) = t² v: a share u of the length is at t = √u."""
    gram = np.zeros((2, 2))
    gram[-1, -1] = 4.0
    path = MeasuredPath(Bezier(2).weights, gram)

    class Fixed:
        def __init__(self, value):
            self.value = value

        def random(self):
            return self.value

    for share in (0.04, 0.25, 0.81):
        assert path.draw(Fixed(1.0 - share), 0.0) == pytest.approx(sqrt(share), abs=1e-4)
    assert path.at(0.3) == 0.3


def test_arc_lengths_are_uniform():
    offsets = np.random.default_rng(8).standard_normal((3, 10))
    random = np.random.default_rng(0)
    path = Bezier(3, measure="length").path(offsets @ offsets.T)
    drawn = sorted(path.draw(random, 0.0) for _ in range(4000))
    grid = np.linspace(0.0, 1.0, 2001)
    points = np.stack([curve_point(offsets, t) for t in grid])
    lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    shares = np.interp(drawn, grid, lengths / lengths[-1])
    assert np.abs(shares - np.arange(1, 4001) / 4000).max() < 0.03  # Kolmogorov–Smirnov, 5 % is 0.021


def test_batches_lie_beside_the_geodesic_and_ever_nearer():
    surface = Disc(2, sideways=0.4)
    path = surface.path(np.eye(5), exactly=False)
    assert isinstance(path, SurfacePath)
    way = np.array([path.at(t) for t in np.linspace(0.0, 1.0, 2001)])

    def farthest(progress):
        random = np.random.default_rng(1)
        spots = np.array([path.draw(random, progress) for _ in range(300)])
        assert (np.linalg.norm(spots, axis=1) <= 1.0 + 1e-12).all()
        return np.linalg.norm(spots[:, None] - way[None], axis=2).min(axis=1).max()

    wide, half, none = farthest(0.0), farthest(0.5), farthest(1.0)
    assert 0.2 < wide < 0.5
    assert half == pytest.approx(wide / 2, rel=0.1)
    assert none < 2e-3


# --- local training -----------------------------------------------------------------------------------------


def train_with(embedding, training, client=2, seed=3):
    torch.manual_seed(0)
    task, model = make_task(), FlatModel(make_model())
    job = Job(0, client, 0, model.vector.clone(), model.read_statistics(), point_epochs=1, curve_epochs=2)
    trainer = Trainer(make_model(), task.loss, embedding, training, seed=seed)
    return trainer.train(job, task.clients[client])


@pytest.mark.parametrize("surface", [Disc(2), Disc(2, interior_start="chord", freeze_end=True), Patch(1)])
def test_a_surface_learns_what_autograd_through_it_learns(surface, monkeypatch):
    """The control points as leaves in double precision, at the positions that training has drawn."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    task, client = make_task(), 2
    settings_ = LocalTraining(batch_size=7, optimizer="sgd", local_lr=0.1, proximal=0.01)
    steps = []
    place, step = FlatControls.place, Trainer._take_step
    monkeypatch.setattr(FlatControls, "place", lambda self, s: (steps.append(s), place(self, s))[1])
    batches = []
    monkeypatch.setattr(
        Trainer, "_take_step", lambda self, *which: (batches.append(*self._batches), step(self, *which))[1]
    )
    model = FlatModel(module)
    base = model.vector.clone()
    job = Job(0, client, 0, base.clone(), model.read_statistics(), point_epochs=1, curve_epochs=2)
    trainer = Trainer(module, task.loss, surface, settings_, seed=3)
    learned = trainer.train(job, task.clients[client]).offsets
    assert len(batches) == 12
    assert steps[:4] == [surface.end] * 4

    torch.manual_seed(0)
    twin = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
    free = [torch.zeros(len(base), dtype=torch.float64, requires_grad=True) for _ in range(surface.points)]
    optimiser = torch.optim.SGD(free, lr=0.1)
    for number, (spot, (x, y)) in enumerate(zip(steps, batches, strict=True)):
        if number == 4 and surface.interior_start == "chord":
            with torch.no_grad():
                for share, point in zip(surface.interior_shares(), free, strict=False):
                    point.copy_(share * free[-1])
        offset = sum(weight * point for weight, point in zip(surface.weights(spot), free, strict=True))
        outputs = torch.func.functional_call(twin, named_slices(twin, base.double() + offset), (x.double(),))
        value = task.loss(outputs, y) + 0.005 * offset.square().sum()
        optimiser.zero_grad()
        value.backward()
        if number >= 4 and surface.freeze_end:
            free[-1].grad = None
        optimiser.step()
    expected = torch.stack(free).detach()
    assert (expected.norm(dim=1) > 1e-3).all()
    torch.testing.assert_close(learned.double(), expected, rtol=1e-4, atol=1e-6)


def test_a_disc_in_one_dimension_without_room_is_a_curve_by_arc_length():
    """The same draws; the positions differ only by how finely lengths are measured."""
    curve = train_with(Bezier(2, measure="length"), TRAINING).offsets
    line = train_with(Disc(2, surface_dimension=1), TRAINING).offsets
    torch.testing.assert_close(line, curve, rtol=0.05, atol=5e-3)


def test_training_repeats_exactly_and_depends_on_the_room_beside_the_geodesic():
    first = train_with(Disc(2), TRAINING).offsets
    assert torch.equal(first, train_with(Disc(2), TRAINING).offsets)
    assert not torch.equal(first, train_with(Disc(2, sideways=0.0), TRAINING).offsets)


def test_a_tunnel_around_a_surface_is_orthogonal_to_all_of_it():
    model = FlatModel(make_model())
    controls, offsets = FlatControls(model, Disc(2), LocalTraining()), torch.zeros(5, model.size)
    controls.begin(model.vector.clone(), offsets)
    controls.start_curve()
    offsets.normal_(generator=torch.Generator().manual_seed(3))
    spot = (0.1, 0.4)
    controls.place(spot)
    before = model.vector.clone()
    controls.shift(torch.randn(model.size, generator=torch.Generator().manual_seed(4)), 0.25)
    moved = model.vector - before
    assert float(moved.norm()) == pytest.approx(0.25, rel=1e-4)
    for slopes in Disc(2).tangents(spot):
        tangent = torch.tensor(slopes) @ offsets
        assert abs(float(torch.nn.functional.cosine_similarity(moved, tangent, dim=0))) < 1e-4


def test_a_tunnel_around_a_surface_changes_what_is_learned():
    plain = train_with(Disc(2), TRAINING).offsets
    for tunnel in (Disc(2, radius=0.2), Disc(2, radius=0.2, sharpness_aware=True)):
        assert not torch.equal(plain, train_with(tunnel, TRAINING).offsets)


def test_buffers_averages_and_penalties_run_with_surfaces():
    method = replace(
        METHODS["asyncbezier-ed"], embedding=Disc(2), buffer=Buffer(3), averaging=Averaging(1, curve_degree=2)
    )
    result = simulate(make_task(), method, training=TRAINING, run=Run(updates=11))
    assert result.summary["updates"] == 11
    assert all(torch.isfinite(parameter).all() for parameter in result.model.parameters())


# --- wrong input, files and messages ------------------------------------------------------------------------


@pytest.mark.parametrize("embedding", [Disc(2), Patch(1), Bezier(2, measure="length")])
def test_manifolds_are_refused_in_one_line(embedding):
    case = Case("sphere", 4)
    task = replace(make_task(), model=lambda: Prototypes(geoopt.Sphere(), case.x))
    with pytest.raises(InputError, match="the model has parameters on manifolds") as caught:
        simulate(task, Method(embedding=embedding), run=Run(updates=1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Disc(0), r"Disc\(degree=0\) must be at least 1"),
        (lambda: Patch(1, surface_dimension=0), r"Patch\(surface_dimension=0\) must be at least 1"),
        (lambda: Disc(2, sideways=1.5), r"Disc\(sideways=1.5\) must be between 0 and 1"),
        (lambda: Disc(2, radius=-1.0), r"Disc\(radius=-1.0\) must be at least 0"),
        (lambda: Bezier(2, measure="arc"), r"Bezier\(measure='arc'\) must be 'parameter' or 'length'"),
    ],
)
def test_impossible_surfaces_are_refused_by_name(make, message):
    with pytest.raises(InputError, match=message):
        make()


@every_surface
def test_a_surface_goes_through_its_table_and_back(surface):
    """As in config.toml and in messages to Flower's nodes."""
    assert build_part("embedding", to_tree(surface), "here") == surface
