"""The models that a run leaves behind: the last one and the best one, as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.files import load_tensors, save_tensors
from asyncmanifold.session.directory import RunDirectory
from asyncmanifold.session.session import Session
from asyncmanifold.vectors import FlatModel


def leave_models(directory: RunDirectory | None, session: Session, labels: Mapping[str, Any]) -> None:
    """Load the model that the run returns; in a directory, write it, and the best one if there is one."""
    model, state, best = session.model, session.state, session.best
    if directory is not None and best is not None:
        model.load(best.theta, best.statistics)
        known = {"updates": best.update, "score": best.score}
        save_tensors(directory.best, model.named_tensors(), {**labels, **known})
    model.load(*state.returned())
    if directory is not None:
        known = {"updates": state.updates, "version": state.version}
        save_tensors(directory.model, model.named_tensors(), {**labels, **known})


def load_weights(path: Path, model: FlatModel) -> None:
    """Load a ``model.safetensors`` into ``model``; refuse one of another model in one line."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    tensors, _ = load_tensors(path)
    try:
        model.module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not this task's model: {reason[:200]}") from error
