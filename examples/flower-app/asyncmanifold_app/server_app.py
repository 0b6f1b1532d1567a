"""The server: absorbs every update as it arrives."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from asyncmanifold.configuration.config import config_tree
from asyncmanifold.flower import AsyncServer, Policy
from asyncmanifold.vectors import FlatModel
from asyncmanifold_app.setup import build_task, read_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
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
        out=read_out(context),
        resume=bool(context.run_config["resume"]),
        config=config_tree(config),
        labels={"scenario": config.scenario, "method": config.method_name, "seed": config.run.seed},
    )


def read_policy(context: Context) -> Policy:
    """Return how the nodes are treated."""
    given = context.run_config
    return Policy(
        queue_depth=int(given["queue-depth"]),
        concurrency=int(given["concurrency"]) or None,
        deadline=float(given["deadline"]) or None,
        patience=int(given["patience"]),
        rest_seconds=float(given["rest-seconds"]),
        wait_seconds=float(given["wait-seconds"]),
        evaluate_clients=bool(given["evaluate-clients"]),
    )


def read_out(context: Context) -> Path | None:
    """Return the run's directory. Flower starts a server wherever the SuperLink was started."""
    out = Path(str(context.run_config["out"]))
    if not context.run_config["out"]:
        return None
    if not out.is_absolute():
        raise ValueError(f"out={out} must be an absolute path")
    return out
