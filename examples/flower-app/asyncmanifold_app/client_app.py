"""The client: trains on its part of the data, and says how a model does on what it held out."""

import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from asyncmanifold.flower import evaluate_reply, train_reply
from asyncmanifold_app.setup import build_task, partition, read_config

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = read_config(context)
    task, part = build_task(config), partition(context)
    time.sleep(float(context.node_config.get("slowness", part * context.run_config["slowness"])))
    model = task.build_model(config.run.seed)
    return train_reply(message, context, model, task.loss, task.clients[part])


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    config = read_config(context)
    task, part = build_task(config), partition(context)
    data = (task.validation or task.clients)[part]
    model = task.build_model(config.run.seed)
    return evaluate_reply(message, context, model, task.loss, data, metrics=task.metrics)
