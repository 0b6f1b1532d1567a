"""A simulation as a file, and back: what a killed run continues from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from asyncmanifold.files import load_tensors, save_tensors
from asyncmanifold.server.protocol import Job, ServerState, state_from_file, state_to_file
from asyncmanifold.simulation.engine import Best, Flight, Simulation
from asyncmanifold.simulation.idle import IdleClients
from asyncmanifold.vectors import Buffers


def save_checkpoint(path: Path, simulation: Simulation, trace_position: int) -> None:
    """Write everything that the rest of the run depends on, atomically.

    A base model that several jobs share is written once. Trained jobs that have not arrived are not
    written: they are trained again.
    """
    tensors, progress = pack_progress(simulation.state, simulation.best)
    jobs = []
    for flight in simulation.flight.values():
        job = flight.job
        if job.version != simulation.state.version:
            tensors |= _model(f"base.{job.version}", job.theta, job.buffers)
        epochs = [job.point_epochs, job.curve_epochs]
        times = [flight.dispatched, flight.arrival, flight.is_lost]
        jobs.append([job.number, job.client, job.version, *epochs, *times])
    numbers = {
        **progress,
        "jobs": jobs,
        "time": simulation.time,
        "dispatched": simulation.dispatched,
        "idle": list(simulation.idle),
        "changes": simulation.changes,
        "epochs": list(simulation.epochs.items()),
        "refused": simulation.refused,
        "seconds": simulation.seconds,
        "trace_position": trace_position,
    }
    save_tensors(path, tensors, numbers)


def load_checkpoint(path: Path, simulation: Simulation) -> int:
    """Put a fresh simulation where the checkpoint was; return the length of its trace in bytes."""
    tensors, numbers = load_tensors(path)
    simulation.state, simulation.best = unpack_progress(tensors, numbers)
    simulation.flight = {}
    for entry in numbers["jobs"]:
        number, client, version, point_epochs, curve_epochs, dispatched, arrival, is_lost = entry
        theta, buffers = _base(version, tensors, simulation)
        job = Job(number, client, version, theta, buffers, point_epochs, curve_epochs)
        simulation.flight[client] = Flight(job, dispatched, arrival, is_lost)
    simulation.time = numbers["time"]
    simulation.dispatched = numbers["dispatched"]
    simulation.idle = IdleClients(numbers["idle"])
    simulation.changes = [(time, kind, client) for time, kind, client in numbers["changes"]]
    simulation.epochs = dict(numbers["epochs"])
    simulation.refused = numbers["refused"]
    simulation.seconds = numbers["seconds"]
    return int(numbers["trace_position"])


def pack_progress(state: ServerState, best: Best | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the server's state and the best model as named tensors and plain numbers."""
    state_tensors, state_numbers = state_to_file(state)
    tensors = {f"state.{name}": tensor for name, tensor in state_tensors.items()}
    if best is not None:
        tensors |= _model("best", best.theta, best.buffers)
    return tensors, {"state": state_numbers, "best": None if best is None else [best.score, best.update]}


def unpack_progress(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> tuple[ServerState, Best | None]:
    """Return what ``pack_progress`` described."""
    named = {
        name.removeprefix("state."): tensor for name, tensor in tensors.items() if name.startswith("state.")
    }
    state = state_from_file(named, numbers["state"])
    if numbers["best"] is None:
        return state, None
    score, update = numbers["best"]
    return state, Best(score, update, *_read("best", tensors))


def _base(version: int, tensors: dict[str, Tensor], simulation: Simulation) -> tuple[Tensor, Buffers]:
    if version == simulation.state.version:
        return simulation.state.theta, simulation.state.buffers
    return _read(f"base.{version}", tensors)


def _model(name: str, theta: Tensor, buffers: Buffers) -> dict[str, Tensor]:
    return {f"{name}.theta": theta, **buffers.named(name)}


def _read(name: str, tensors: dict[str, Tensor]) -> tuple[Tensor, Buffers]:
    return tensors[f"{name}.theta"], Buffers.from_named(name, tensors)
