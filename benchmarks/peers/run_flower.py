"""Flower's own simulation engine, on Ray: rounds of FedAvg over the same clients, one or more at a time.

No released Flower has an asynchronous strategy; the cost of an update is that of a round over its clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

import torch
from arguments import parse
from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from meter import Meter
from problem import CLIENTS


def main() -> None:
    problem, options = parse()
    torch.set_num_threads(1)
    meter = Meter(problem.size)

    class CountingFedAvg(FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            received = list(replies)
            aggregated = super().aggregate_train(server_round, received)
            meter.count(sum(not reply.has_error() for reply in received))
            return aggregated

    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = CountingFedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        arrays = ArrayRecord(problem.model.state_dict())
        config = ConfigRecord({"problem": str(options.problem), "size": problem.size.name})
        while not meter.is_done:
            result = strategy.start(grid, arrays, num_rounds=1, train_config=config)
            arrays = result.arrays

    run_simulation(
        server_app,
        app,
        num_supernodes=CLIENTS,
        backend_config={
            "init_args": {"address": "local", "num_cpus": options.at_once},  # never a cluster that is there
            "client_resources": {"num_cpus": 1},
        },
    )
    meter.print(flwr=version("flwr"), ray=version("ray"), torch=torch.__version__)


if __name__ == "__main__":
    main()
