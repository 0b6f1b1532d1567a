"""A bare loop that does only the training steps: no server, no copies of a model, no records."""

from __future__ import annotations

import torch
from arguments import parse
from meter import Meter
from problem import BATCH_SIZE, LEARNING_RATE
from torch import nn


def main() -> None:
    problem, options = parse()
    torch.set_num_threads(1)
    model, meter = problem.model, Meter(problem.size)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    shards = list(zip(problem.inputs, problem.targets, strict=True))
    while not meter.is_done:
        for inputs, targets in shards:
            for indices in torch.randperm(len(inputs)).split(BATCH_SIZE):
                optimizer.zero_grad()
                batch = inputs[indices]
                if options.channels_last:
                    batch = batch.to(memory_format=torch.channels_last)
                nn.functional.cross_entropy(model(batch), targets[indices]).backward()
                optimizer.step()
            meter.count()
    meter.print(torch=torch.__version__)


if __name__ == "__main__":
    main()
