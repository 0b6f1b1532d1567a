"""What server and clients agree on: the configuration of the run, and its task."""

from functools import cache

from flwr.app import Context

from asyncmanifold.configuration.config import Config, load_config
from asyncmanifold.configuration.own_tasks import is_place
from asyncmanifold.tasks.task import Task


def read_config(context: Context) -> Config:
    """Return the run's configuration; its text is the same on the server and on every node."""
    given, scenario = context.run_config, read_scenario(context)
    settings = dict(_setting(word) for word in str(given["settings"]).split())
    if hasattr(load_config(scenario).task, "clients"):  # an own task may have its clients as they are
        settings["task.clients"] = str(given["clients"])
    for key, name in (("num-updates", "run.updates"), ("evaluate-every", "run.evaluate_every")):
        if given[key]:
            settings[name] = str(given[key])
    return load_config(
        scenario,
        str(given["method"]) or None,
        seed=int(given["seed"]),
        data=str(context.node_config.get("data", given["data"])) or None,
        settings=settings,
    )


def read_scenario(context: Context) -> str:
    """Return the scenario, or the place of an own task such as ``/srv/my.py:build``.

    A node imports only what it was itself started with, as ``task`` in its node config; a run's settings come
    in a message, and no message makes a node import anything.
    """
    scenario, own = str(context.run_config["scenario"]), context.node_config.get("task")
    if own is not None:
        return str(own)
    if is_place(scenario) and context.node_config:
        raise ValueError(
            f"the run has scenario={scenario!r}: start this node with its own task='file.py:function'"
        )
    return scenario


@cache
def build_task(config: Config) -> Task:
    """Return the task; a process that answers several messages builds it once."""
    return config.build_task()


def partition(context: Context) -> int:
    """Return which part of the data this node has."""
    clients, node = context.run_config["clients"], context.node_config
    if node.get("num-partitions", clients) != clients:
        raise ValueError(f"the run has clients={clients}, this node num-partitions={node['num-partitions']}")
    part = node.get("partition-id")
    if not isinstance(part, int) or not 0 <= part < int(clients):
        raise ValueError(f"this node has partition-id={part}, must be below clients={clients}")
    return part


def _setting(word: str) -> tuple[str, str]:
    key, separator, value = word.partition("=")
    if not separator:
        raise ValueError(f"settings: {word!r} must be KEY=VALUE")
    return key, value
