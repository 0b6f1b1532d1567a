"""Replies as they arrive, each read in a guard of its own: no reply can end the loop or hold up another.

Nothing in a reply is trusted, least of all which message it says that it answers. A reply is matched to the
message that was sent to *that* node; whatever cannot be read is a delivery too, one without an update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from asyncmanifold.errors import one_line
from asyncmanifold.flower.announced import AnnouncedReplies, too_large
from asyncmanifold.server.protocol import Failure, Rejected


@dataclass(frozen=True)
class Delivery:
    """What has come back for a message: a reply, or why there is none."""

    message_id: str
    """The server's message, as the grid returned it when the message was sent."""
    outcome: Message | Failure | Rejected


class Mailbox(ABC):
    """Where replies arrive; it remembers which node each message was sent to."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}

    def expect(self, message_id: str, node: int) -> None:
        """Expect a node's reply to a message."""
        self._sent[message_id] = node

    def forget(self, message_id: str) -> None:
        """No longer expect a reply; if it comes, it is dropped."""
        self._sent.pop(message_id, None)

    def is_uploading(self, message_id: str) -> bool:
        """Return whether a reply is announced that is not here yet."""
        return False

    def pull(self) -> list[Delivery]:
        """Return what has arrived, in no particular order; never wait."""
        deliveries = list(self._collect()) if self._sent else []
        for delivery in deliveries:
            self.forget(delivery.message_id)
        return deliveries

    @abstractmethod
    def _collect(self) -> Iterable[Delivery]:
        """Return what has arrived for the messages in ``_sent``."""


def open_mailbox(grid: Grid, most_bytes: int) -> Mailbox:
    """Return the mailbox of a grid; a reply of more than ``most_bytes`` is refused."""
    return HttpMailbox(grid, most_bytes) if isinstance(grid, HttpGrid) else GridMailbox(grid, most_bytes)


class HttpMailbox(Mailbox):
    """Replies from a SuperLink, downloaded beside the loop, each within its limit of bytes."""

    def __init__(self, grid: HttpGrid, most_bytes: int) -> None:
        super().__init__()
        self._announced = AnnouncedReplies(grid, most_bytes)

    def is_uploading(self, message_id: str) -> bool:
        return self._announced.is_open(message_id)

    def forget(self, message_id: str) -> None:
        super().forget(message_id)
        self._announced.drop(message_id)

    def _collect(self) -> Iterable[Delivery]:
        for message_id, outcome in self._announced.collect(self._sent):
            if isinstance(outcome, Message):
                outcome = match(outcome, message_id, self._sent[message_id])
            yield Delivery(message_id, outcome)


class GridMailbox(Mailbox):
    """Replies from any other grid, such as Flower's simulation: there as soon as they are announced."""

    def __init__(self, grid: Grid, most_bytes: int) -> None:
        super().__init__()
        self._grid, self._most_bytes = grid, most_bytes

    def _collect(self) -> Iterable[Delivery]:
        """Pull all replies together; if that fails, one by one."""
        try:
            return list(self._sort_out(self._grid.pull_messages(list(self._sent)), self._sent))
        except Exception:
            return [delivery for one, node in self._sent.items() for delivery in self._pull_one(one, node)]

    def _pull_one(self, message_id: str, node: int) -> Iterable[Delivery]:
        try:
            return list(self._sort_out(self._grid.pull_messages([message_id]), {message_id: node}))
        except Exception as problem:
            return [Delivery(message_id, Rejected(f"malformed reply: {one_line(problem)}"))]

    def _sort_out(self, replies: Iterable[Message], sent: Mapping[str, int]) -> Iterable[Delivery]:
        """Yield each reply as the delivery of the message that it answers.

        A reply that names no message of its own node's is counted against that node's oldest message.
        """
        answered: set[str] = set()
        for reply in replies:
            said, source = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            message_id: str | None = said
            if sent.get(said) != source or said in answered:
                left = [one for one in sent if one not in answered]
                own = [one for one in left if sent[one] == source]
                message_id = next(iter(own or (left if len(sent) == 1 else ())), None)
            if message_id is None:
                continue  # from nobody who was sent anything
            answered.add(message_id)
            outcome = match(reply, message_id, sent[message_id])
            if isinstance(outcome, Message) and (found := size_of(outcome)) > self._most_bytes:
                outcome = too_large(found, self._most_bytes)
            yield Delivery(message_id, outcome)


def match(reply: Message, message_id: str, node: int) -> Message | Rejected:
    """Return a reply if it answers this message and comes from this node; Flower's errors have no sender."""
    metadata = reply.metadata
    if metadata.reply_to_message_id != message_id:
        return Rejected("the reply says that it answers another message")
    if metadata.src_node_id != node and not reply.has_error():
        return Rejected("the reply says that it comes from another node")
    return reply


def size_of(reply: Message) -> int:
    """Return the bytes of a reply's arrays."""
    if reply.has_error():
        return 0
    return sum(
        len(array.data) for record in reply.content.array_records.values() for array in record.values()
    )
