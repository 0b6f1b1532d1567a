"""A few of the replies that ``make fuzz`` throws by the ten thousand, in their wire form."""

import json
import time
from types import SimpleNamespace

import pytest
from flwr.app import Message
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content

from asyncmanifold import METHODS, LocalTraining, Rejected, Run
from asyncmanifold.flower.announced import AnnouncedReplies, Download
from asyncmanifold.flower.identity import Identity
from asyncmanifold.session.session import Session
from asyncmanifold.session.trace import MemoryTrace
from asyncmanifold.vectors import FlatModel
from tiny import make_model
from wire import MESSAGE, honest_reply, throw


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_replies_never_harm_the_server(seed):
    outcomes = throw(150, seed)
    assert outcomes.total() == 150
    assert outcomes["not read"] > 10


@pytest.fixture
def reply():
    """Return the id and the objects of an honest reply, as a server that waits for it would see them."""
    method, model = METHODS["asyncbezier"], FlatModel(make_model())
    session = Session(method, LocalTraining(), Run(), model, MemoryTrace(), lambda updates, model: {})
    return honest_reply(session, Identity.of(model.module, method.embedding), 0)


def test_a_download_waits_for_no_object(reply):
    reply_id, objects = reply
    there = {reply_id: objects[reply_id]}
    download = Download(MESSAGE, reply_id, there.get, 10**6)
    download.advance()
    assert download.outcome is None
    assert download.next_try > 0.0
    there.update(objects)
    download.advance()
    assert isinstance(download.outcome, Message)


def test_a_download_ends_at_its_limit(reply):
    reply_id, objects = reply
    fetched = []

    def fetch(object_id):
        fetched.append(object_id)
        return objects[object_id]

    download = Download(MESSAGE, reply_id, fetch, 500)
    download.advance()
    assert isinstance(download.outcome, Rejected)
    assert "the most for this model is 500" in str(download.outcome)
    assert len(fetched) < len(objects)


def test_an_array_that_repeats_a_chunk_without_end_is_never_made(reply):
    reply_id, objects = reply
    for name, content in objects.items():
        kind, children, length = get_object_head_values_from_object_content(content)
        if kind == "Array" and len(content) < 1000:
            body = json.loads(content[-length:])
            body["arraychunk_ids"] = [0] * 10_000
            text = json.dumps(body).encode()
            objects[name] = f"Array {','.join(children)} {len(text)}".encode() + b"\x00" + text
    download = Download(MESSAGE, reply_id, objects.__getitem__, 10**6)
    download.advance()
    assert isinstance(download.outcome, Rejected)
    assert "the most for this model is 1,000,000" in str(download.outcome)


class PretendedSuperLink:
    """Announces replies at once, and has some objects of each; what it is told is kept in lists."""

    def __init__(self, replies, objects):
        self.replies, self.objects = replies, objects
        self.confirmed = []
        self.node, self.run = None, SimpleNamespace(run_id=1)
        self._client = SimpleNamespace(event_hooks={"response": []})
        self._runtime_client = self

    def PullMessages(self, request):  # noqa: N802 - Flower's name
        known = [(one, self.replies[one]) for one in request.message_ids if one in self.replies]
        heads = [Metadata(reply_to_message_id=one, message_id=reply) for one, reply in known]
        return SimpleNamespace(messages_list=[ProtoMessage(metadata=head) for head in heads])

    def PullObject(self, request):  # noqa: N802
        content = self.objects.get(request.object_id)
        is_there = content is not None
        return SimpleNamespace(object_found=True, object_available=is_there, object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


def test_an_upload_that_never_ends_delays_nobody(reply):
    """Three nodes announce replies: one is complete, one is garbage, and of one nothing is ever uploaded."""
    reply_id, objects = reply
    replies = {MESSAGE: reply_id, "to-garbage": "g", "to-silent": "s"}
    link = PretendedSuperLink(replies, {**objects, "g": b"\xff" * 100})
    announced, arrived = AnnouncedReplies(link, 10**6), {}
    until = time.monotonic() + 60.0
    while len(arrived) < 2 and time.monotonic() < until:
        arrived |= dict(announced.collect([one for one in replies if one not in arrived]))
        time.sleep(0.01)
    assert isinstance(arrived[MESSAGE], Message)
    assert isinstance(arrived["to-garbage"], Rejected)
    assert announced.is_open("to-silent")
    assert link.confirmed == [reply_id, "g"] or link.confirmed == ["g", reply_id]
    announced.drop("to-silent")  # at its deadline
    assert not announced.is_open("to-silent")
    assert link.confirmed[-1] == "s"
