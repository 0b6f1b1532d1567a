"""APPFL's virtual-time simulator: FedAsync or FedBuff, with or without its ``optimize_memory``."""

from __future__ import annotations

import argparse
import logging
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from arguments import parse
from meter import Meter
from omegaconf import DictConfig, OmegaConf
from problem import BATCH_SIZE, BUFFER_SIZE, CLIENTS, CONCURRENCY, LEARNING_RATE, Size

sys.modules["piq"] = ModuleType("piq")  # image quality, by torchvision: imported by APPFL, not used here
from appfl.agent import ClientAgent, ServerAgent  # noqa: E402
from appfl.vsim import AsyncSimDriver, ClientProfile  # noqa: E402

PARTS = str(Path(__file__).resolve().with_name("appfl_parts.py"))


def main() -> None:
    problem, options = parse()
    torch.set_num_threads(options.threads)
    logging.disable(logging.INFO)
    meter = Meter(problem.size)

    class CountingDriver(AsyncSimDriver):
        def _handle_train_complete(self, cid: str, completion_time: float) -> None:
            super()._handle_train_complete(cid, completion_time)
            meter.count()

        def _training_finished(self) -> bool:
            return meter.is_done

    server = ServerAgent(server_agent_config=server_config(problem.size, options))
    clients = [ClientAgent(client_agent_config=client_config(number, options)) for number in range(CLIENTS)]
    for client in clients:
        client.load_config(server.get_client_configs())
    CountingDriver(
        server_agent=server,
        client_agents=clients,
        profiles={
            client.get_id(): ClientProfile(compute_factor=1.0 + number / CLIENTS)
            for number, client in enumerate(clients)
        },
        max_in_flight=CONCURRENCY,
        logger=logging.getLogger("vsim"),
        base_step_time=0.01,  # of virtual time, the same for all
    ).run()
    meter.print(appfl=version("appfl"), torch=torch.__version__)


def server_config(size: Size, options: argparse.Namespace) -> DictConfig:
    """Return the configuration of APPFL's own example of this simulator, for this problem."""
    memory = memory_settings(options)
    fedasync = {"staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}, "alpha": 0.9}
    aggregator: dict[str, Any] = {"client_weights_mode": "equal", **fedasync, **memory}
    if options.method == "fedbuff":
        aggregator["K"] = BUFFER_SIZE
    name = {"fedasync": "FedAsyncAggregator", "fedbuff": "FedBuffAggregator"}[options.method]
    config = {
        "client_configs": {
            "train_configs": {
                "trainer": "VanillaTrainer",
                "mode": "step",
                "num_local_steps": size.steps,
                "optim": "SGD",
                "optim_args": {"lr": LEARNING_RATE},
                "loss_fn": "CrossEntropyLoss",
                "metric_path": PARTS,
                "metric_name": "accuracy",
                "train_batch_size": BATCH_SIZE,
                "train_data_shuffle": True,
                "do_validation": False,
                "do_pre_validation": False,
                **memory,
            },
            "model_configs": {"model_path": PARTS, "model_name": "get_model"},
        },
        "server_configs": {
            "num_clients": CLIENTS,
            "scheduler": "AsyncScheduler",
            "scheduler_kwargs": {"same_init_model": True, **memory},
            "aggregator": name,
            "aggregator_kwargs": aggregator,
            "device": "cpu",
            "num_global_epochs": size.warm_up + size.measured + 1,  # the driver below ends before
            **memory,
        },
    }
    return OmegaConf.create(config)


def client_config(number: int, options: argparse.Namespace) -> DictConfig:
    config = {
        "client_id": f"client{number}",
        "train_configs": {"device": "cpu"},
        "data_configs": {
            "dataset_path": PARTS,
            "dataset_name": "get_data",
            "dataset_kwargs": {"client": number},
        },
        **memory_settings(options),
    }
    return OmegaConf.create(config)


def memory_settings(options: argparse.Namespace) -> dict[str, bool]:
    """Return what APPFL's five parts each ask for; on by default."""
    return {} if options.optimize_memory == "true" else {"optimize_memory": False}


if __name__ == "__main__":
    main()
