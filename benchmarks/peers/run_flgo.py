"""FLGo, with its algorithms as shipped: FedAsync or FedBuff on its virtual clock."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import flgo
import torch
from arguments import parse
from flgo.benchmark.partition import BasicPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from meter import Meter
from problem import BATCH_SIZE, BUFFER_SIZE, CLIENTS, CONCURRENCY, LEARNING_RATE, Problem

HERE = Path(__file__).resolve().parent


class Shards(BasicPartitioner):
    """Gives every client its shard."""

    num_clients = CLIENTS

    def __call__(self, data: torch.utils.data.TensorDataset) -> list[list[int]]:
        return [part.tolist() for part in torch.arange(len(data)).chunk(CLIENTS)]


class OneATick(flgo.simulator.DefaultSimulator):
    """Clients arrive in the order in which they were sent out, one at every tick of the virtual clock."""

    def initialize(self) -> None:
        self._last = 0
        self._sent: dict[int, int] = {}

    def update_client_responsiveness(self, client_ids: list[int]) -> None:
        now = self.gv.clock.current_time
        for client in client_ids:
            if self._sent.get(client) != now:  # FLGo asks twice
                self._sent[client] = now
                self._last = max(self._last, now) + 1
                self.set_variable(client, "latency", [self._last - now])


def main() -> None:
    problem, options = parse()
    sys.path.insert(0, "")  # FLGo writes its benchmark as a package into the working directory
    # torch 2.13 wants both from a Subset that overrides one.
    FromDatasetPipe.TaskDataset.__getitems__ = lambda data, indices: [data[index] for index in indices]
    task = f"task_{problem.size.name}"
    if options.generate:
        generate(task, problem.size.name)
        return
    if not Path(task).exists():  # in a process of its own: FLGo's generator leaves its benchmark half loaded
        subprocess.run([sys.executable, *sys.argv, "--generate"], check=True, stdout=subprocess.DEVNULL)
    run(task, problem, options)


def generate(task: str, size: str) -> None:
    """Write FLGo's form of the problem into the working directory."""
    benchmark = flgo.gen_benchmark_from_file(
        benchmark=f"benchmark_{size}", config_file=str(HERE / "flgo_task.py"), target_path="."
    )
    module = importlib.import_module(benchmark)
    module.visualize = lambda *_: None  # takes minutes
    flgo.gen_task_by_(module, Shards(), task)


def run(task: str, problem: Problem, options: argparse.Namespace) -> None:
    algorithm = importlib.import_module(f"flgo.algorithm.{options.method}")
    meter = Meter(problem.size)
    handle = algorithm.Server.package_handler

    def handle_and_count(server: object, packages: dict[str, list[object]]) -> bool:
        is_moved: bool = handle(server, packages)
        meter.count(len(packages["model"]))
        return is_moved

    algorithm.Server.package_handler = handle_and_count
    algorithm.Server._if_exit = lambda server: meter.is_done
    runner = flgo.init(
        task,
        algorithm,
        option={
            "num_steps": problem.size.steps,
            "batch_size": BATCH_SIZE,
            "optimizer": "SGD",
            "learning_rate": LEARNING_RATE,
            "train_holdout": 0.0,
            "proportion": CONCURRENCY / CLIENTS,
            "sample": "uniform_available",
            "eval_interval": -1,
            "no_log_console": True,
            "no_tqdm": True,
            "torch_num_threads": options.threads,
            "num_parallels": options.at_once,
            "parallel_type": "t",  # 'r' wants a GPU, 'p' copies all clients to every process
            "algo_para": [BUFFER_SIZE / CLIENTS] if options.method == "fedbuff" else [],
        },
        # In parallel it trains only clients that are sent out at the same tick: let all arrive at once.
        Simulator=OneATick if options.at_once == 1 else flgo.simulator.DefaultSimulator,
    )
    runner.run()
    meter.print(flgo=version("flgo"), torch=torch.__version__)


if __name__ == "__main__":
    main()
