"""Train your own model on your own clients' data: any nn.Module, any loss, any method."""

import torch
from torch import nn

from asyncmanifold import Run, Task, simulate

torch.manual_seed(0)
truth = torch.randn(10, 3)
clients = []
for size in (40, 80, 160, 320):  # clients of very different size, so of very different speed
    inputs = torch.randn(size, 10)
    clients.append((inputs, (inputs @ truth).argmax(dim=1)))
inputs = torch.randn(500, 10)
test = (inputs, (inputs @ truth).argmax(dim=1))

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
task = Task(model=model, loss=nn.functional.cross_entropy, clients=clients, test=test)
result = simulate(task, "asyncbezier", run=Run(updates=120, target=0.8))

print(f"accuracy {result.summary['final']:.3f}, staleness {result.summary['staleness_mean']:.1f}")
print(f"0.8 reached after {result.summary['rounds_to_target']} updates")
