"""A grid in this process: nodes are functions, and what they do is up to the test."""

from collections.abc import Callable

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from asyncmanifold import Task
from asyncmanifold.flower import evaluate_reply, train_reply

Handler = Callable[[Message], Message]


class LocalGrid:
    """Answers each message after a number of pulls that is the node's own."""

    def __init__(self, nodes: dict[int, Handler], pulls: dict[int, int] | None = None) -> None:
        TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1
        self.nodes = dict(nodes)
        self.names: dict[int, str] = {}
        self.pulls = pulls or {}
        self.sent: list[Message] = []
        self.waiting: dict[str, tuple[Message, int]] = {}
        self.on_pull: Callable[[int], None] = lambda pull: None
        self.pulled = 0

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names.get(node, "")) for node in self.nodes]

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = []
        for message in messages:
            message_id = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = message_id
            self.sent.append(message)
            self.waiting[message_id] = (message, self.pulls.get(message.metadata.dst_node_id, 1))
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        self.pulled += 1
        self.on_pull(self.pulled)
        replies = []
        for message_id in message_ids:
            message, pulls = self.waiting[message_id]
            if pulls > 1:
                self.waiting[message_id] = (message, pulls - 1)
                continue
            del self.waiting[message_id]
            replies.append(self._answer(message))
        return replies[::-1]  # in no helpful order

    def _answer(self, message: Message) -> Message:
        handler = self.nodes.get(message.metadata.dst_node_id)
        if handler is None:
            return Message(Error(5, "Node unavailable"), reply_to=message)
        try:
            return handler(message)
        except Exception as problem:
            return Message(Error(2, f"Traceback …\n{type(problem).__name__}: {problem}"), reply_to=message)


def honest(task: Task, partition: int, name: str = "", of_task: str = "") -> Handler:
    """Return a node that trains on a client's data, and judges on its validation data."""
    context = Context(1, partition, {"partition-id": partition, "name": name}, RecordDict(), {})

    def handle(message: Message) -> Message:
        model = task.build_model(0)
        if message.metadata.message_type == "train":
            return train_reply(message, context, model, task.loss, task.clients[partition], task=of_task)
        return evaluate_reply(message, context, model, task.loss, task.validation[partition])

    return handle
