"""Compare four methods on your own model, data, metric and schedule: a table and a plot."""

import torch
from torch import nn

from asyncmanifold import ClassesLatency, LocalTraining, Method, Run, Schedule, Score, Task, compare


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(2, 32), nn.Linear(32, 3)

    def forward(self, points):
        return self.out(self.hidden(points).tanh())


def worst_class(outputs, targets):  # the accuracy of the class that is recognised worst
    right = outputs.argmax(dim=1) == targets
    return min(right[targets == label].float().mean() for label in range(3))


def build(seed):  # three spirals, and clients that have one or two of them
    random = torch.Generator().manual_seed(seed)
    labels, radius = torch.arange(600) % 3, 0.3 + torch.rand(600, generator=random)
    angle = 2.1 * labels + 1.5 * radius + 0.2 * torch.randn(600, generator=random)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    owners = (3 * labels + torch.randint(4, (600,), generator=random)) % 9
    owners[450:] = -1  # for the test
    clients = [(points[owners == client], labels[owners == client]) for client in range(9)]
    metrics = {"worst class": Score(worst_class, higher_is_better=True)}
    return Task(Net, nn.functional.cross_entropy, clients, (points[450:], labels[450:]), metrics=metrics)


if __name__ == "__main__":
    methods = {name: Method(correction=name, global_lr=1.5) for name in ("position", "tangent", "orthodc")}
    slow = Schedule("clock", latency=ClassesLatency(slow_fraction=0.3, slow_factor=5.0))
    settings = {"schedule": slow, "run": Run(updates=100), "training": LocalTraining(local_lr=0.02)}
    print(found := compare(build, methods | {"fedavg": "fedavg"}, **settings))
    found.plot(against="time").save("own_study.svg")
