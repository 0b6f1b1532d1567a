"""Which methods can be private: what must hold around a part that adds noise, so that its ε is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from asyncmanifold.errors import InputError, RunError
from asyncmanifold.privacy.example_privacy import ExamplePrivacy
from asyncmanifold.privacy.protection import Protection
from asyncmanifold.server.gates import NormBound


def require_repeatable(method: Any, training: Any, what: str) -> None:
    """Refuse a run whose noise comes from the operating system, where it must be made again."""
    protection = method.protection or training.example_privacy
    if protection is not None:
        raise InputError(
            f"a run with {type(protection).__name__} cannot be {what}: its noise is not repeatable"
        )


def check_examples(method: Any, privacy: ExamplePrivacy, module: nn.Module) -> None:
    """Refuse a method or a model whose steps example-level privacy would not account for."""
    if method.protection is not None:
        raise InputError(f"example_privacy and {type(method.protection).__name__}: choose one of them")
    if method.weighting != "none":
        raise InputError("example_privacy needs weighting='none': numbers of examples are private")
    if getattr(method.embedding, "sharpness_aware", False):
        raise InputError("example_privacy: a sharpness-aware tunnel takes two gradients of every batch")
    privacy.check_model(module)


def find_protection(method: Any) -> Protection | None:
    """Return the part of a method that protects clients, if it has one; refuse a method that undoes it."""
    local = [part for part in method.outgoing if isinstance(part, Protection)]
    central = [method.buffer] if isinstance(method.buffer, Protection) else []
    if not local and not central:
        return None
    name = type((local or central)[0]).__name__
    if len(local) + len(central) > 1:
        raise InputError(f"Method: {name} must be the only part that adds noise for privacy")
    if local and method.outgoing[0] is not local[0]:
        raise InputError(
            f"Method: {name} must be the first outgoing part: what comes before it would not be protected"
        )
    if method.weighting != "none":
        raise InputError(f"Method: {name} needs weighting='none': numbers of examples are private")
    if central:
        _refuse_mixing(method, name)
        _refuse_choosing(method, name)
    return (local or central)[0]


BEFORE_CLIPPING = ("gates", "correction", "penalty", "staleness")
"""The stages that see a client's update before a private buffer clips it."""


def _refuse_mixing(method: Any, name: str) -> None:
    """Refuse parts that remember other clients' updates: one client would then change others' steps."""
    for stage, part in method.stages.items():
        if stage.split(".")[0] in BEFORE_CLIPPING and part.init(torch.zeros(1)):
            raise InputError(
                f"Method: {name} clips what each client contributes, but {type(part).__name__} remembers "
                "other clients' updates before that: leave it out (on Flower: bounds=())"
            )


def _refuse_choosing(method: Any, name: str) -> None:
    """Refuse gates that reject by an update's numbers: they would decide who is in all later sums."""
    for gate in method.all_gates.values():
        if gate.needs_trusted or (isinstance(gate, NormBound) and not gate.clips):
            raise InputError(
                f"Method: {name} counts the sums that a client is in, but {type(gate).__name__} rejects "
                "updates by their numbers, which changes all later sums: leave it out, or let the bound clip"
            )


def check_unmixed(method: Any, memory: Mapping[str, Any]) -> None:
    """Stop a run with a private buffer if a part before it has begun to remember updates."""
    for stage in memory:
        if stage.split(".")[0] in BEFORE_CLIPPING:
            raise RunError(f"{type(method.buffer).__name__} protects nobody: {stage} remembers updates")
