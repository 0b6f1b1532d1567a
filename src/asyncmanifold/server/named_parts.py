"""Parts of a method that are given by name, such as ``correction="tangent"``."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.geometry import EMBEDDINGS, Embedding
from asyncmanifold.server.adaptive_optimizers import SERVER_OPTIMIZERS
from asyncmanifold.server.averaging import AVERAGINGS, AveragedModel
from asyncmanifold.server.buffer import StepBuffer
from asyncmanifold.server.codecs import CODECS
from asyncmanifold.server.corrections import CORRECTIONS, Correction
from asyncmanifold.server.delays import STALENESS
from asyncmanifold.server.gates import Gate
from asyncmanifold.server.local_privacy import LocalPrivacy
from asyncmanifold.server.optimizers import ServerOptimizer
from asyncmanifold.server.outgoing import Outgoing
from asyncmanifold.server.peers import GATES
from asyncmanifold.server.penalties import PENALTIES, AdaptiveEpochs, Penalty, Staleness
from asyncmanifold.server.private_buffer import PrivateBuffer
from asyncmanifold.server.rates import RATE_SCHEDULES, RateSchedule
from asyncmanifold.server.selection import SELECTIONS, Selection
from asyncmanifold.server.step_windows import BUFFERS
from asyncmanifold.server.workloads import ArrivalGroups, EpochRule

KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "embedding": (Embedding, EMBEDDINGS),
    "outgoing": (Outgoing, {**CODECS, "local-privacy": LocalPrivacy}),
    "gates": (Gate, GATES),
    "correction": (Correction, CORRECTIONS),
    "penalty": (Penalty, PENALTIES),
    "staleness": (Staleness, STALENESS),
    "buffer": (StepBuffer, {**BUFFERS, "private-buffer": PrivateBuffer}),
    "server_optimizer": (ServerOptimizer, SERVER_OPTIMIZERS),
    "averaging": (AveragedModel, AVERAGINGS),
    "adaptive_epochs": (
        EpochRule,
        {"adaptive-epochs": AdaptiveEpochs, "arrival-groups": ArrivalGroups},
    ),
    "selection": (Selection, SELECTIONS),
    "rate_schedule": (RateSchedule, RATE_SCHEDULES),
}
"""The class of each stage's parts, and the parts by name."""
SEVERAL = ("outgoing", "gates")
OPTIONAL = ("buffer", "server_optimizer", "averaging", "adaptive_epochs")


def resolve_parts(method: Any) -> None:
    """Replace the names among a method's parts by the parts; refuse anything that is neither."""
    for stage in KINDS:
        given = getattr(method, stage)
        if stage in SEVERAL:
            entries = given if isinstance(given, tuple | list) else (given,)
            found: Any = tuple(_part(stage, entry) for entry in entries)
        elif given is None and stage in OPTIONAL:
            continue
        else:
            found = _part(stage, given)
        if found is not given:
            object.__setattr__(method, stage, found)


def _part(stage: str, given: Any) -> Any:
    kind, names = KINDS[stage]
    if isinstance(given, kind):
        return given
    allowed = ", ".join(names) or "there is none"
    if not isinstance(given, str) or given not in names:
        shown = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        raise InputError(f"Method({stage}={shown}) is no {kind.__name__} and no name of one ({allowed})")
    part = names[given]
    needed = [f.name for f in fields(part) if f.default is MISSING and f.default_factory is MISSING]
    if needed:
        arguments = ", ".join(f"{name}=…" for name in needed)
        raise InputError(f"Method({stage}={given!r}) needs {', '.join(needed)}: {part.__name__}({arguments})")
    return part()
