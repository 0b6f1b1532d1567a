"""The example's client, but a node with ``trouble`` in its config raises, or spoils its reply."""

from asyncmanifold_app import client_app as example
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp

from asyncmanifold.flower.codec import ARRAYS
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
    if trouble:
        arrays = reply.content.array_records[ARRAYS]
        arrays["offsets"] = Array(SPOILT[str(trouble)](arrays["offsets"].numpy()))
    return reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return example.evaluate(message, context)
