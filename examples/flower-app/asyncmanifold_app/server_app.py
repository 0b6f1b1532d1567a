"""The server: absorbs every update as it arrives."""

import os
from dataclasses import replace
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from asyncmanifold.configuration.config import config_tree, find_key
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.json_log import VARIABLE as LOG_FORMAT
from asyncmanifold.sinks import open_sinks
from asyncmanifold.vectors import FlatModel
from asyncmanifold_app.setup import build_task, read_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    os.environ[LOG_FORMAT] = str(context.run_config.get("log-format", "text"))
    config = read_config(context)
    task = build_task(config)
    model = task.build_model(config.run.seed)
    tested = FlatModel(task.build_model(config.run.seed))

    def evaluate(update: int, arrays: ArrayRecord) -> MetricRecord:
        tested.module.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord(task.evaluate(tested, task.test))

    server = AsyncServer(
        model, config.method, training=config.training, policy=read_policy(context), seed=config.run.seed
    )
    server.start(
        grid,
        ArrayRecord(model.state_dict()),
        config.run.updates,
        evaluate_fn=evaluate,
        evaluate_every=config.run.evaluate_every,
        target=config.run.target,
        target_stops=config.run.target_stops,
        wall_budget=config.run.wall_budget,
        lower_is_better=task.lower_is_better,
        out=read_out(context),
        resume=bool(context.run_config["resume"]),
        change=[".".join(find_key(config, key)) for key in str(context.run_config["change"]).split()],
        keep_models=config.run.keep_models or 3,
        roll_back=config.run.roll_back,
        back_to=int(context.run_config["back-to"]) if int(context.run_config["back-to"]) >= 0 else None,
        config=config_tree(replace(config, method=server.method)),
        labels={"scenario": config.scenario, "method": config.method_name, "seed": config.run.seed},
        observer=open_sinks(str(context.run_config.get("sink", "")).split(), title_of(context)),
    )


def read_policy(context: Context) -> Policy:
    """Return how the nodes are treated."""
    given = context.run_config
    return Policy(
        queue_depth=int(given["queue-depth"]) or None,
        concurrency=int(given["concurrency"]) or None,
        deadline=float(given["deadline"]) or None,
        patience=int(given["patience"]),
        rest_seconds=float(given["rest-seconds"]),
        wait_seconds=float(given["wait-seconds"]),
        evaluate_clients=bool(given["evaluate-clients"]),
        evaluate_seconds=float(given["evaluate-seconds"]),
    )


def title_of(context: Context) -> str:
    """Return what the run is called in sinks."""
    out = read_out(context)
    return "flower" if out is None else out.name


def read_out(context: Context) -> Path | None:
    """Return the run's directory. Flower starts a server wherever the SuperLink was started."""
    out = Path(str(context.run_config["out"]))
    if not context.run_config["out"]:
        return None
    if not out.is_absolute():
        raise ValueError(f"out={out} must be an absolute path")
    return out
