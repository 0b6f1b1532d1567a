"""Mutated replies in the form in which they are on the wire: through download, codec and session.

A reply is a tree of objects, each with a head (type, children, length) and a body (protobuf or JSON).
Mutations change bytes anywhere in it, as a node that writes its own objects could.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from asyncmanifold import METHODS, LocalTraining, Parcel, Rejected, Run
from asyncmanifold.flower.announced import Download
from asyncmanifold.flower.codec import Sender, reply_content
from asyncmanifold.flower.deliveries import Reception
from asyncmanifold.flower.identity import Identity
from asyncmanifold.flower.mailbox import Delivery, match
from asyncmanifold.flower.nodes import Nodes
from asyncmanifold.flower.sizes import most_reply_bytes
from asyncmanifold.server.peers import PEER_GATES
from asyncmanifold.server.protocol import Failure
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import MemoryTrace
from asyncmanifold.vectors import FlatModel
from fuzz import is_plausible, tensors_of, time_limit
from tiny import make_model

Random = np.random.Generator
Objects = dict[str, bytes]
NODE, MESSAGE = 7, "the-message"
NUMBERS = (b"-1", b"0", b"1e999", b"NaN", b"99999999999999999999", b"null", b"[]", b'"x"', b"true")


def flip(content: bytes, random: Random) -> bytes:
    """A few bytes are others."""
    changed = bytearray(content)
    for _ in range(int(random.integers(1, 9))):
        changed[int(random.integers(len(changed)))] = int(random.integers(256))
    return bytes(changed)


def cut(content: bytes, random: Random) -> bytes:
    """The end is missing."""
    return content[: int(random.integers(len(content)))]


def grow(content: bytes, random: Random) -> bytes:
    """Bytes are put in between."""
    place = int(random.integers(len(content) + 1))
    return content[:place] + random.bytes(int(random.integers(1, 200))) + content[place:]


def repeat(content: bytes, random: Random) -> bytes:
    """A stretch comes several times, such as a child or a chunk."""
    start, end = sorted(int(place) for place in random.integers(len(content) + 1, size=2))
    return content[:end] + content[start:end] * int(random.integers(1, 50)) + content[end:]


def renumber(content: bytes, random: Random) -> bytes:
    """A number of a head or of JSON is another."""
    found = list(re.finditer(rb"\d+", content[:400]))
    if not found:
        return content
    number = found[int(random.integers(len(found)))]
    return content[: number.start()] + NUMBERS[int(random.integers(len(NUMBERS)))] + content[number.end() :]


def nonsense(content: bytes, random: Random) -> bytes:
    """The head stays, the body is anything."""
    head, divider, body = content.partition(b"\x00")
    return head + divider + random.bytes(len(body))


MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (flip, cut, grow, repeat, renumber, nonsense)


def mutate(objects: Objects, random: Random) -> Objects:
    """Change one object or several, or let two change places."""
    changed = dict(objects)
    names = sorted(changed)
    for _ in range(1 + int(random.integers(3))):
        name = names[int(random.integers(len(names)))]
        if random.random() < 0.1:
            other = names[int(random.integers(len(names)))]
            changed[name], changed[other] = changed[other], changed[name]
        elif changed[name]:
            changed[name] = MUTATIONS[int(random.integers(len(MUTATIONS)))](changed[name], random)
    return changed


def throw(replies: int, seed: int) -> Counter[str]:
    """Throw mutated replies at a server; return what became of them, and raise if anything went wrong."""
    random = np.random.default_rng(seed)
    server, outcomes = Server(), Counter[str]()
    for number in range(replies):
        if number % 20 == 0:
            reply_id, objects = honest_reply(server.session, server.identity, number)
        with time_limit():
            outcomes[server.take(reply_id, mutate(objects, random))] += 1
        if number % 20 == 0:
            assert server.take(reply_id, objects) == "absorbed", "an honest reply was refused"
        for tensor in tensors_of(vars(server.session.state)):
            assert bool(torch.isfinite(tensor).all()), "the state is not finite"
        server.session.refused = 0
    return outcomes


def honest_reply(session: Session, identity: Identity, number: int) -> tuple[str, Objects]:
    """Return an honest reply as objects, and the id of its head."""
    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = NODE
    message = Message(RecordDict(), dst_node_id=NODE, message_type="train")
    message.metadata.__dict__["_message_id"] = MESSAGE
    generator = torch.Generator().manual_seed(number)
    offsets = 0.01 * torch.randn(session.method.embedding.points, session.model.size, generator=generator)
    floats, integers = session.state.statistics
    tensors = {"offsets": offsets, "statistics.floats": floats + 0.01, "statistics.integers": integers + 3}
    content = reply_content(Parcel(tensors, 1.0, 0.1), 10, 0, Sender(identity, "honest"))
    reply = Message(content, reply_to=message)
    nested = get_all_nested_objects(reply)
    return reply.object_id, {name: one.deflate() for name, one in nested.items()}


class Server:
    """What reads replies on Flower: download, match, reception and session, with the default bounds."""

    def __init__(self) -> None:
        method = replace(METHODS["asyncbezier"], gates=PEER_GATES)
        training, model = LocalTraining(point_epochs=1, curve_epochs=1), FlatModel(make_model())
        run = Run(updates=10**9)
        self.session = Session(method, training, run, model, MemoryTrace(), lambda updates, model: {})
        self.identity = Identity.of(model.module, method.embedding)
        self._nodes = Nodes(patience=3, rest_seconds=60.0)
        self._nodes.update_present({NODE: "one", NODE + 1: "another"})
        self._reception = Reception(self.session, self._nodes, self.identity)
        self._most = most_reply_bytes(method, self.session.state)

    def take(self, reply_id: str, objects: Objects) -> str:
        """Do what the server does with a reply; return what became of it."""
        session, node = self.session, self._nodes.present[NODE]
        job = session.job(node.client)
        download = Download(MESSAGE, reply_id, objects.__getitem__, self._most)
        download.advance()
        outcome = download.outcome
        assert outcome is not None, "the download has not come to an end"
        if isinstance(outcome, Message):
            outcome = match(outcome, MESSAGE, NODE)
        try:
            received = self._reception.read(node, Delivery(MESSAGE, outcome))
        except Rejected as problem:
            session.refuse(job, "rejected", str(problem))
            return "not understood" if isinstance(outcome, Message) else "not read"
        if isinstance(received, Failure):
            session.refuse(job, "failed", received.reason)
            return "a failure"
        report, weight = received
        assert 0.0 < weight <= 1.0, "a share is none"
        is_right = is_plausible(session, report.parcel)
        record = session.accept(job, report.parcel, weight, time=0.0)
        if record["kind"] != "update":
            return "not absorbed"
        assert is_right, "a malformed or implausible reply was absorbed"
        self._nodes.record_success(node, report.examples, report.partition)
        return "absorbed"
