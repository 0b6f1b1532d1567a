"""How large a reply can be: derived from the model, so that nobody can send more."""

from __future__ import annotations

from asyncmanifold.server.methods import Method
from asyncmanifold.server.outgoing import Parcel, outline_update
from asyncmanifold.server.protocol import ServerState

SLACK = 64 * 1024
"""Bytes for headers, metrics and Flower's own metadata."""


def expected_form(method: Method, state: ServerState) -> Parcel | None:
    """Return the form of every reply's arrays, without numbers; None if an outgoing part does not say."""
    return outline_update(method.embedding.points, state.theta, state.statistics, method.outgoing)


def most_reply_bytes(method: Method, state: ServerState) -> int:
    """Return the most bytes that a reply may have: what an update takes as it is sent, and some slack.

    Outgoing parts that do not say what they send may do so in any form: indices and values, for example, are
    up to three times as long as plain offsets, and are allowed that.
    """
    expected = expected_form(method, state)
    if expected is None:
        plain = outline_update(method.embedding.points, state.theta, state.statistics, ())
        assert plain is not None
        return 3 * plain.size + SLACK
    return expected.size + SLACK
