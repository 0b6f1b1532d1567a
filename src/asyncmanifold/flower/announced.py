"""Download announced replies from a SuperLink beside the loop.

A SuperLink announces a reply before its objects are there, and ``Grid.pull_messages`` waits for all objects
of all of them: one node that uploads slowly would hold up everybody. Here an announced reply is downloaded
object by object as they become available, from its head down, by a few threads, and the loop collects those
that are complete. No thread waits for a node, and none is waited for at the end.

This is the one file that uses what Flower does not document: the client behind an ``HttpGrid``, and the form
of objects. ``tests/flower`` would notice a change.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from asyncmanifold.errors import one_line
from asyncmanifold.server.protocol import Failure, Rejected

THREADS = 2
RETRY_SHARE, RETRY_SECONDS = 0.25, 0.2
"""An object that is not there is asked for again after a quarter of the time that it has been missing."""
OBJECT_BYTES = 64 * 1024
"""A reply may have one object for so many bytes: fewer would be many requests for little."""
LEAST_OBJECTS = 64
Fetch = Callable[[str], bytes | None]
Received = Message | Failure | Rejected


class AnnouncedReplies:
    """The replies that a SuperLink has announced, while their objects arrive."""

    def __init__(self, grid: HttpGrid, most_bytes: int) -> None:
        self._grid, self._most_bytes = grid, most_bytes
        self._open: dict[str, Download] = {}  # by the message that is answered
        self._waiting: dict[str, float] = {}  # those with missing objects, and when to ask again
        self._tasks: SimpleQueue[Download] = SimpleQueue()
        self._tried: SimpleQueue[Download] = SimpleQueue()
        limit_responses(grid, most_bytes)
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True, name="asyncmanifold-download").start()

    def collect(self, sent: Iterable[str]) -> Iterator[tuple[str, Received]]:
        """Yield what has arrived for these messages."""
        yield from self._ask([one for one in sent if one not in self._open])
        for message_id, due in list(self._waiting.items()):
            if due <= monotonic():
                del self._waiting[message_id]
                self._tasks.put(self._open[message_id])
        with suppress(Empty):
            while True:
                download = self._tried.get_nowait()
                if self._open.get(download.message_id) is not download:
                    continue  # dropped meanwhile
                if download.outcome is not None:
                    self.drop(download.message_id)
                    yield download.message_id, download.outcome
                else:
                    self._waiting[download.message_id] = download.next_try

    def is_open(self, message_id: str) -> bool:
        """Return whether a reply is announced but not here."""
        return message_id in self._open

    def drop(self, message_id: str) -> None:
        """Forget a reply, and let the SuperLink forget its objects."""
        self._waiting.pop(message_id, None)
        if (download := self._open.pop(message_id, None)) is not None:
            request = ConfirmMessageReceivedRequest(
                node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=download.reply_id
            )
            with suppress(httpx.HTTPError):
                self._grid._runtime_client.ConfirmMessageReceived(request)

    def _ask(self, message_ids: list[str]) -> Iterator[tuple[str, Received]]:
        """Ask for announcements; yield those that carry only an error, and start to download the others."""
        if not message_ids:
            return
        wanted = set(message_ids)
        announced = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        for message in announced.messages_list:
            message_id = message.metadata.reply_to_message_id
            if message_id not in wanted:
                continue
            if message.HasField("error"):
                error = Error(message.error.code, message.error.reason)
                yield message_id, make_message(metadata=metadata_from_proto(message.metadata), error=error)
                continue
            download = Download(message_id, message.metadata.message_id, self._fetch, self._most_bytes)
            self._open[message_id] = download
            self._tasks.put(download)

    def _fetch(self, object_id: str) -> bytes | None:
        """Return an object, or None if it is not there yet."""
        request = PullObjectRequest(node=self._grid.node, run_id=self._grid.run.run_id, object_id=object_id)
        found = self._grid._runtime_client.PullObject(request)
        if not found.object_found:
            raise LookupError("the node did not finish its upload")
        return found.object_content if found.object_available else None

    def _work(self) -> None:
        while True:
            download = self._tasks.get()
            download.advance()
            self._tried.put(download)


class Download:
    """The objects of one reply, fetched from its head down as far as they are there."""

    def __init__(self, message_id: str, reply_id: str, fetch: Fetch, most_bytes: int) -> None:
        self.message_id, self.reply_id = message_id, reply_id
        self.outcome: Received | None = None
        self.next_try = 0.0
        self._fetch, self._most_bytes = fetch, most_bytes
        self._missing = [reply_id]
        self._contents: dict[str, bytes] = {}
        self._progress = monotonic()

    def advance(self) -> None:
        """Fetch what is there; set ``outcome`` at the end, whatever happens, else ``next_try``."""
        try:
            if self._fetch_available():
                self.outcome = inflate(self.reply_id, self._contents, self._most_bytes)
            else:
                now = monotonic()
                self.next_try = now + max(RETRY_SECONDS, RETRY_SHARE * (now - self._progress))
        except Rejected as problem:
            self.outcome = problem
        except (LookupError, httpx.HTTPError) as problem:
            self.outcome = Failure(f"the reply could not be downloaded: {one_line(problem)}")
        except Exception as problem:  # untrusted bytes may raise anything
            self.outcome = Rejected(f"malformed reply: {one_line(problem)}")
        if self.outcome is not None:
            self._contents = {}

    def _fetch_available(self) -> bool:
        """Return whether all objects are here."""
        while self._missing:
            content = self._fetch(self._missing[-1])
            if content is None:
                return False
            self._contents[self._missing.pop()] = content
            self._progress = monotonic()
            self._check_size()
            children = get_object_head_values_from_object_content(content)[1]
            known = self._contents.keys() | set(self._missing)
            self._missing += [child for child in dict.fromkeys(children) if child not in known]
        return True

    def _check_size(self) -> None:
        found, most = sum(map(len, self._contents.values())), self._most_bytes
        if found > most:
            raise too_large(found, most)
        most_objects = LEAST_OBJECTS + most // OBJECT_BYTES
        if len(self._contents) > most_objects:
            raise Rejected(f"a reply of more than {most_objects:,} objects")


def inflate(reply_id: str, contents: dict[str, bytes], most_bytes: int) -> Message | Rejected:
    """Return the reply that is made of these objects; an array may repeat a chunk, but not without end."""
    expanded = 0
    for content in contents.values():
        kind, children, length = get_object_head_values_from_object_content(content)
        if kind == "Array":
            places = json.loads(content[len(content) - length :])["arraychunk_ids"]
            expanded += sum(len(contents[children[place]]) for place in places)
    if expanded > most_bytes:
        return too_large(expanded, most_bytes)
    message = inflate_object_from_contents(reply_id, contents)
    if not isinstance(message, Message):
        return Rejected(f"malformed reply: a {type(message).__name__}, not a message")
    message.metadata.__dict__["_message_id"] = reply_id
    return message


def limit_responses(grid: HttpGrid, most_bytes: int) -> None:
    """Refuse objects that are too large by what the SuperLink says before it sends them."""

    def check(response: httpx.Response) -> None:
        length = response.headers.get("content-length", "0")
        if response.url.path.endswith("/pull-object") and int(length) > most_bytes:
            raise too_large(int(length), most_bytes)

    client: Any = grid._runtime_client._client
    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], check]}


def too_large(found: int, most: int) -> Rejected:
    """Return the rejection of a reply that is larger than any update of this model."""
    return Rejected(f"a reply of {found:,} bytes or more, the most for this model is {most:,}")
