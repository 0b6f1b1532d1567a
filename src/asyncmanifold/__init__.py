"""Asynchronous federated optimisation along curves that clients learn.

Everything named in ``__all__`` is public and loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncmanifold.client.training import LocalTraining as LocalTraining
    from asyncmanifold.geometry.embeddings import Bezier as Bezier
    from asyncmanifold.geometry.embeddings import Point as Point
    from asyncmanifold.geometry.embeddings import Tunnel as Tunnel
    from asyncmanifold.server.averaging import Averaging as Averaging
    from asyncmanifold.server.buffer import Barrier as Barrier
    from asyncmanifold.server.buffer import Buffer as Buffer
    from asyncmanifold.server.corrections import Correction as Correction
    from asyncmanifold.server.corrections import DelayCompensation as DelayCompensation
    from asyncmanifold.server.corrections import OrthoDC as OrthoDC
    from asyncmanifold.server.corrections import Position as Position
    from asyncmanifold.server.corrections import Tangent as Tangent
    from asyncmanifold.server.methods import METHODS as METHODS
    from asyncmanifold.server.methods import Method as Method
    from asyncmanifold.server.penalties import AdaptiveEpochs as AdaptiveEpochs
    from asyncmanifold.server.penalties import Constant as Constant
    from asyncmanifold.server.penalties import Distance as Distance
    from asyncmanifold.server.penalties import Hinge as Hinge
    from asyncmanifold.server.penalties import Polynomial as Polynomial
    from asyncmanifold.server.protocol import Job as Job
    from asyncmanifold.server.protocol import Rejected as Rejected
    from asyncmanifold.server.protocol import ServerState as ServerState
    from asyncmanifold.server.protocol import Update as Update
    from asyncmanifold.server.step import absorb as absorb
    from asyncmanifold.simulation.engine import Run as Run
    from asyncmanifold.simulation.runner import Result as Result
    from asyncmanifold.simulation.runner import simulate as simulate
    from asyncmanifold.simulation.schedules import ClassesLatency as ClassesLatency
    from asyncmanifold.simulation.schedules import ConstantLatency as ConstantLatency
    from asyncmanifold.simulation.schedules import LogNormalLatency as LogNormalLatency
    from asyncmanifold.simulation.schedules import RecordedLatency as RecordedLatency
    from asyncmanifold.simulation.schedules import Schedule as Schedule
    from asyncmanifold.tasks.data import Shares as Shares
    from asyncmanifold.tasks.task import Task as Task

__version__ = "0.1.0"

_HOMES = {
    "client.training": ["LocalTraining"],
    "geometry.embeddings": ["Bezier", "Point", "Tunnel"],
    "server.averaging": ["Averaging"],
    "server.buffer": ["Barrier", "Buffer"],
    "server.corrections": ["Correction", "DelayCompensation", "OrthoDC", "Position", "Tangent"],
    "server.methods": ["METHODS", "Method"],
    "server.penalties": ["AdaptiveEpochs", "Constant", "Distance", "Hinge", "Polynomial"],
    "server.protocol": ["Job", "Rejected", "ServerState", "Update"],
    "server.step": ["absorb"],
    "simulation.engine": ["Run"],
    "simulation.runner": ["Result", "simulate"],
    "simulation.schedules": [
        "ClassesLatency",
        "ConstantLatency",
        "LogNormalLatency",
        "RecordedLatency",
        "Schedule",
    ],
    "tasks.data": ["Shares"],
    "tasks.task": ["Task"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
