"""What every method keeps over a run of several clients: laws of whole sequences."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncmanifold import (
    METHODS,
    Bezier,
    Distance,
    ExponentialAveraging,
    OrthoDC,
    Rejected,
    RoundTable,
    ServerMomentum,
    ServerState,
    Situation,
    Update,
    absorb,
)
from asyncmanifold.files import load_tree, save_tree
from asyncmanifold.server.corrections import CORRECTIONS
from asyncmanifold.server.step import flush
from asyncmanifold.session.packing import rebuild

CLIENTS, UPDATES, SIZE = 4, 36, 30
every_method = pytest.mark.parametrize("name", METHODS)


def sequence(method, *, names=range(CLIENTS), staleness=2, at=None):
    """Return the models of a run in which clients called ``names`` arrive in a fixed random order.

    ``at`` is called with the state before every update, and returns the state to go on from.
    """
    random = np.random.default_rng(8)
    state = ServerState(torch.from_numpy(random.standard_normal(SIZE)).float())
    models = [state.theta]
    for number in range(UPDATES):
        client, late = int(random.integers(CLIENTS)), int(random.integers(staleness + 1))
        offsets = 0.1 * torch.from_numpy(random.standard_normal((method.embedding.points, SIZE))).float()
        state = state if at is None else at(state, number)
        version = max(0, state.version - late)
        state, _ = absorb(
            method,
            state,
            Update(names[client], version, offsets),
            base=models[version],
            weight=0.1 * (client + 1),
            situation=Situation(CLIENTS, dispatched=number - 1.0 - late, time=float(number)),
        )
        if method.synchronous and number % CLIENTS == CLIENTS - 1:
            state = flush(method, state)
        if state.version == len(models):
            models.append(state.theta.clone())
    assert len(models) > 3
    return torch.stack(models)


@every_method
def test_the_numbers_of_clients_do_not_matter(name):
    assert torch.equal(sequence(METHODS[name]), sequence(METHODS[name], names=[70, 3, 41, 12]))


@every_method
def test_a_state_that_goes_through_a_file_in_the_middle_goes_on_to_the_same_bits(name, tmp_path):
    path = tmp_path / "state.safetensors"

    def reload(state, number):
        if number not in (1, 13, 14, 29):
            return state
        save_tree(path, vars(state))
        return rebuild(ServerState, load_tree(path))

    assert torch.equal(sequence(METHODS[name]), sequence(METHODS[name], at=reload))


@every_method
def test_without_staleness_all_corrections_agree(name):
    """There is no drift to correct."""
    models = [
        sequence(replace(METHODS[name], correction=kind()), staleness=0) for kind in CORRECTIONS.values()
    ]
    for other in models[1:]:
        torch.testing.assert_close(models[0], other, rtol=1e-5, atol=1e-6)


@every_method
def test_a_rejected_update_in_the_middle_changes_nothing(name):
    def spoil(state, number):
        if number % 5 == 3:
            offsets = torch.full((METHODS[name].embedding.points, SIZE), torch.nan)
            with pytest.raises(Rejected):
                absorb(METHODS[name], state, Update(1, state.version, offsets), base=state.theta, weight=0.2)
        return state

    assert torch.equal(sequence(METHODS[name]), sequence(METHODS[name], at=spoil))


@every_method
def test_it_composes_with_curves_corrections_penalties_momentum_and_averages(name):
    published = METHODS[name]
    method = replace(
        published,
        embedding=Bezier(2) if published.embedding.points < 2 else published.embedding,
        correction=OrthoDC(0.0),
        penalty=Distance(0.5),
        server_optimizer=published.server_optimizer or ServerMomentum(0.3),
        averaging=ExponentialAveraging(3.0),
    )
    models = sequence(method)
    assert torch.isfinite(models).all()
    assert not torch.equal(models[-1], models[0])
    assert not torch.equal(models[-1], sequence(published)[-1])


def test_rows_on_disk_go_through_files_and_rejections_like_others(tmp_path):
    method = replace(METHODS["ringleader"], buffer=RoundTable(cache_place="disk"))

    def reload(state, number):
        save_tree(tmp_path / "state.safetensors", vars(state))
        return rebuild(ServerState, load_tree(tmp_path / "state.safetensors"))

    assert torch.equal(sequence(METHODS["ringleader"]), sequence(method, at=reload))
