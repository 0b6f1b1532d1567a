"""Good models of a run, kept in case a later one is ruined: in files, or in memory without a directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.files import load_tree, save_tree
from asyncmanifold.server.protocol import ServerState
from asyncmanifold.session.packing import rebuild


class KeptModels:
    """The last few states that were found good, by their number of updates."""

    def __init__(self, folder: Path | None, most: int) -> None:
        """Keep ``most`` states in ``folder``, which is created when it is needed."""
        self._folder, self._most = folder, most
        self._trees: dict[int, Any] = {}

    @property
    def updates(self) -> list[int]:
        """The numbers of updates of the states that are kept, in ascending order."""
        if self._folder is None:
            return sorted(self._trees)
        return sorted(int(path.stem) for path in self._folder.glob("*.safetensors"))

    def keep(self, state: ServerState, epochs: Mapping[int, int]) -> None:
        """Keep a state and the clients' epochs, and forget the oldest if there are too many."""
        updates = state.updates
        copied = replace(state, theta=state.theta.clone())  # the memory of a model is reused
        tree = {"state": vars(copied), "epochs": dict(epochs)}
        if self._folder is None:
            self._trees[updates] = tree
        else:
            self._folder.mkdir(exist_ok=True)
            save_tree(self._path(updates), tree)
        for old in self.updates[: -self._most]:
            self._trees.pop(old, None)
            if self._folder is not None:
                self._path(old).unlink()

    def load(self, updates: int | None = None) -> tuple[int, ServerState, dict[int, int]]:
        """Return the number of updates, the state and the epochs of one that is kept, by default the last."""
        kept = self.updates
        if not kept or (updates is not None and updates not in kept):
            known = ", ".join(map(str, kept)) or "none"
            raise InputError(f"no model is kept of update {updates or 'any'} (kept: {known})")
        chosen = kept[-1] if updates is None else updates
        tree = self._trees[chosen] if self._folder is None else load_tree(self._path(chosen))
        state = rebuild(ServerState, tree["state"])
        return chosen, replace(state, theta=state.theta.clone()), dict(tree["epochs"])

    def _path(self, updates: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{updates:09}.safetensors"
