"""The memories of a method's parts: who remembers what, while one state becomes the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from asyncmanifold.geometry.spaces import Space
from asyncmanifold.server.methods import Method
from asyncmanifold.server.protocol import Rejected, ServerState
from asyncmanifold.server.stages import Memory

Returned = TypeVar("Returned")


class Memories:
    """The memories of all parts, while one state becomes the next."""

    def __init__(self, method: Method, state: ServerState) -> None:
        """Start from the memories of a state."""
        self._parts = method.stages
        self._theta = state.theta
        self.kept = dict(state.memory)

    def call(self, stage: str, function: Callable[..., tuple[Returned, Memory]], *arguments: Any) -> Returned:
        """Call a part with its memory, keep the new one, and return the result."""
        try:
            result, memory = function(*arguments, self.recall(stage))
        except Rejected as problem:
            if problem.memory is not None:
                problem.stage = stage
            raise
        self.keep(stage, memory)
        return result

    def recall(self, stage: str) -> Memory:
        """Return a part's memory: at first the one that its ``init`` returns."""
        return self.kept[stage] if stage in self.kept else self._parts[stage].init(self._theta)

    def keep(self, stage: str, memory: Memory) -> None:
        """Replace a part's memory; an empty one is left out."""
        if memory:
            self.kept[stage] = memory
        else:
            self.kept.pop(stage, None)

    def transport_tangents(self, space: Space, theta: Tensor) -> None:
        """Transport tangent vectors from the old model to the new one."""
        for stage, memory in self.kept.items():
            if names := self._parts[stage].tangents if stage in self._parts else ():
                carried = {name: self._transport_entry(memory[name], space, theta) for name in names}
                self.kept[stage] = {**memory, **carried}

    def _transport_entry(self, entry: Any, space: Space, theta: Tensor) -> Any:
        if isinstance(entry, dict):
            return {key: self._transport_entry(value, space, theta) for key, value in entry.items()}
        return space.transport(self._theta, theta, entry)
