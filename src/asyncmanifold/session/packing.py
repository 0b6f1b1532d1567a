"""Objects of a run from the fields that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from asyncmanifold.vectors import Statistics

Restored = TypeVar("Restored")


def rebuild(cls: type[Restored], packed: Mapping[str, Any]) -> Restored:
    """Return a state, job or model from its packed fields, where statistics are a list of two tensors."""
    return cls(**{**packed, "statistics": Statistics(*packed["statistics"])})
