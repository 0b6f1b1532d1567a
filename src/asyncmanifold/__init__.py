"""Asynchronous federated optimisation along curves that clients learn.

Everything named in ``__all__`` is public and loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncmanifold.client.settings import LocalTraining as LocalTraining
    from asyncmanifold.configuration.parts import PARTS as PARTS
    from asyncmanifold.errors import AsyncManifoldError as AsyncManifoldError
    from asyncmanifold.errors import InputError as InputError
    from asyncmanifold.errors import RunError as RunError
    from asyncmanifold.execution.placement import Placement as Placement
    from asyncmanifold.geometry.embeddings import Bezier as Bezier
    from asyncmanifold.geometry.embeddings import Embedding as Embedding
    from asyncmanifold.geometry.embeddings import Point as Point
    from asyncmanifold.geometry.embeddings import Tunnel as Tunnel
    from asyncmanifold.server.averaging import Averaging as Averaging
    from asyncmanifold.server.buffer import Barrier as Barrier
    from asyncmanifold.server.buffer import Buffer as Buffer
    from asyncmanifold.server.buffer import StepBuffer as StepBuffer
    from asyncmanifold.server.corrections import Correction as Correction
    from asyncmanifold.server.corrections import DelayCompensation as DelayCompensation
    from asyncmanifold.server.corrections import OrthoDC as OrthoDC
    from asyncmanifold.server.corrections import Position as Position
    from asyncmanifold.server.corrections import Tangent as Tangent
    from asyncmanifold.server.gates import Gate as Gate
    from asyncmanifold.server.gates import NormBound as NormBound
    from asyncmanifold.server.gates import StalenessBound as StalenessBound
    from asyncmanifold.server.methods import METHODS as METHODS
    from asyncmanifold.server.methods import Method as Method
    from asyncmanifold.server.optimizers import ServerOptimizer as ServerOptimizer
    from asyncmanifold.server.outgoing import Outgoing as Outgoing
    from asyncmanifold.server.outgoing import Parcel as Parcel
    from asyncmanifold.server.penalties import AdaptiveEpochs as AdaptiveEpochs
    from asyncmanifold.server.penalties import Constant as Constant
    from asyncmanifold.server.penalties import Distance as Distance
    from asyncmanifold.server.penalties import Hinge as Hinge
    from asyncmanifold.server.penalties import Penalty as Penalty
    from asyncmanifold.server.penalties import Polynomial as Polynomial
    from asyncmanifold.server.penalties import Staleness as Staleness
    from asyncmanifold.server.protocol import Job as Job
    from asyncmanifold.server.protocol import Rejected as Rejected
    from asyncmanifold.server.protocol import ServerState as ServerState
    from asyncmanifold.server.protocol import Update as Update
    from asyncmanifold.server.selection import Selection as Selection
    from asyncmanifold.server.selection import Uniform as Uniform
    from asyncmanifold.server.step import absorb as absorb
    from asyncmanifold.session.journal import Records as Records
    from asyncmanifold.session.run import Run as Run
    from asyncmanifold.simulation.runner import Result as Result
    from asyncmanifold.simulation.runner import simulate as simulate
    from asyncmanifold.simulation.schedules import ClassesLatency as ClassesLatency
    from asyncmanifold.simulation.schedules import ConstantLatency as ConstantLatency
    from asyncmanifold.simulation.schedules import LogNormalLatency as LogNormalLatency
    from asyncmanifold.simulation.schedules import RecordedLatency as RecordedLatency
    from asyncmanifold.simulation.schedules import Schedule as Schedule
    from asyncmanifold.tasks.data import Shares as Shares
    from asyncmanifold.tasks.task import Task as Task

__version__ = "0.2.0"

_HOMES = {
    "client.settings": "LocalTraining",
    "configuration.parts": "PARTS",
    "errors": "AsyncManifoldError InputError RunError",
    "execution.placement": "Placement",
    "geometry.embeddings": "Bezier Embedding Point Tunnel",
    "server.averaging": "Averaging",
    "server.buffer": "Barrier Buffer StepBuffer",
    "server.corrections": "Correction DelayCompensation OrthoDC Position Tangent",
    "server.gates": "Gate NormBound StalenessBound",
    "server.methods": "METHODS Method",
    "server.optimizers": "ServerOptimizer",
    "server.outgoing": "Outgoing Parcel",
    "server.penalties": "AdaptiveEpochs Constant Distance Hinge Penalty Polynomial Staleness",
    "server.protocol": "Job Rejected ServerState Update",
    "server.selection": "Selection Uniform",
    "server.step": "absorb",
    "session.journal": "Records",
    "session.run": "Run",
    "simulation.runner": "Result simulate",
    "simulation.schedules": "ClassesLatency ConstantLatency LogNormalLatency RecordedLatency Schedule",
    "tasks.data": "Shares",
    "tasks.task": "Task",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
