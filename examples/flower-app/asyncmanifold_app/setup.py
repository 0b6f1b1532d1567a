"""What server and clients agree on: the configuration of the run, and its task."""

from functools import cache

from flwr.app import Context

from asyncmanifold.configuration.config import Config, load_config
from asyncmanifold.tasks.task import Task


def read_config(context: Context) -> Config:
    """Return the run's configuration; its text is the same on the server and on every node."""
    given = context.run_config
    settings = dict(_setting(word) for word in str(given["settings"]).split())
    settings["task.clients"] = str(given["clients"])
    for key, name in (("num-updates", "run.updates"), ("evaluate-every", "run.evaluate_every")):
        if given[key]:
            settings[name] = str(given[key])
    return load_config(
        str(given["scenario"]),
        str(given["method"]) or None,
        seed=int(given["seed"]),
        data=str(context.node_config.get("data", given["data"])) or None,
        settings=settings,
    )


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
