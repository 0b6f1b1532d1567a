"""What server and nodes must have in common, compared with every job: version, embedding and task."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from torch import nn

from asyncmanifold import __version__
from asyncmanifold.configuration.tables import to_tree
from asyncmanifold.geometry.embeddings import Embedding

NOUNS = {"version": "asyncmanifold", "task": "a model and task with fingerprint", "embedding": "embedding"}


@dataclass(frozen=True)
class Identity:
    """What one side of a deployment runs."""

    version: str
    """Of asyncmanifold."""
    task: str
    """The fingerprint of the model's structure and of the app's own name for its task."""
    embedding: str

    @classmethod
    def of(cls, model: nn.Module, embedding: Embedding, task: str = "") -> Identity:
        """Return the identity of this process."""
        return cls(__version__, fingerprint(model, task), json.dumps(to_tree(embedding), sort_keys=True))

    def difference(self, other: Identity, this: str, that: str) -> str | None:
        """Return one line about the first thing in which ``other`` differs, None if there is none."""
        for what in NOUNS:
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                has = f"has {NOUNS[what]} {theirs}" if theirs else f"does not say its {what}"
                return f"{that} {has}, {this} has {NOUNS[what]} {mine}"
        return None


def fingerprint(model: nn.Module, task: str = "") -> str:
    """Return a short hash of a model's structure: the names, shapes and types of everything in its state.

    >>> from torch import nn
    >>> from asyncmanifold.flower.identity import fingerprint
    >>> fingerprint(nn.Linear(4, 2)) == fingerprint(nn.Linear(4, 2)) != fingerprint(nn.Linear(4, 3))
    True
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    structure = [
        (name, list(tensor.shape), str(tensor.dtype), name in trained)
        for name, tensor in model.state_dict().items()
    ]
    return hashlib.sha256(json.dumps([task, structure]).encode()).hexdigest()[:12]
