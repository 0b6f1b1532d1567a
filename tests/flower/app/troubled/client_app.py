"""The example's client, but a node with ``trouble`` in its config raises, or spoils its reply."""

from collections.abc import Callable

import numpy as np
from asyncmanifold_app import client_app as example
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp
from flwr.common.serde_utils import metadata_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

from asyncmanifold.flower.codec import ARRAYS, SENDER
from troubled import own_parts

__all__ = ["app", "own_parts"]

app = ClientApp()
SPOILT = {
    "nan": lambda offsets: offsets * float("nan"),
    "shape": lambda offsets: offsets[:, :-1].copy(),
}


@app.train()
def train(message: Message, context: Context) -> Message:
    trouble = context.node_config.get("trouble")
    if trouble == "raises":
        raise RuntimeError("out of memory")
    reply = example.train(message, context)
    arrays = reply.content.array_records[ARRAYS]
    if trouble in SPOILT:
        arrays["offsets"] = Array(SPOILT[str(trouble)](arrays["offsets"].numpy()))
    elif trouble in BODIES:  # from here on, in this process, every message is written like that
        body = BODIES[str(trouble)]
        Message.deflate = lambda self: add_header_to_object_body(body(self), self)
    elif trouble == "large":
        arrays["mine"] = Array(np.random.default_rng(0).standard_normal(2_500_000))
    elif trouble == "old":
        reply.content.config_records[SENDER]["version"] = "0.1.0"
    return reply


def other_message(message: Message) -> bytes:
    """Return a reply's body that says it answers another message than the one announced."""
    metadata = metadata_to_proto(message.metadata)
    metadata.message_id, metadata.reply_to_message_id = "", "f" * 64
    return ProtoMessage(metadata=metadata).SerializeToString()


BODIES: dict[str, Callable[[Message], bytes]] = {
    "other": other_message,
    "garbage": lambda message: b"\xff" * 100,
}


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return example.evaluate(message, context)
