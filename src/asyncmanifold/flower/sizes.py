"""How large a reply can be: derived from the model, so that nobody can send more."""

from __future__ import annotations

from asyncmanifold.server.methods import Method
from asyncmanifold.server.outgoing import OFFSETS
from asyncmanifold.server.protocol import ServerState
from asyncmanifold.vectors import Statistics

SLACK = 64 * 1024
"""Bytes for headers, metrics and Flower's own metadata."""


def array_names() -> set[str]:
    """Return the names of a plain update's arrays."""
    return {OFFSETS, *Statistics.none().named("statistics")}


def most_reply_bytes(method: Method, state: ServerState) -> int:
    """Return the most bytes that a reply may have: its offsets, the statistics, and some slack.

    Outgoing parts may send an update in another form: indices and values, for example, are up to three times
    as long, and are allowed that.
    """
    floats, integers = state.statistics
    plain = 4 * state.theta.numel() * method.embedding.points + 4 * floats.numel() + 8 * integers.numel()
    return (3 * plain if method.outgoing else plain) + SLACK
