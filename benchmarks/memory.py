"""Peak memory with 100 jobs in flight, for two numbers of clients: it must not grow with them.

Called with a number of clients it is the measured process; without, it starts one for each number.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

UPDATES = 300
CONCURRENCY = 100


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(_simulate(int(sys.argv[1]))))
        return
    # A process begins with the peak of the one that started it: this one is still small.
    figures, peaks = {}, {}
    for clients in (10_000, 1_000):
        command = [sys.executable, __file__, str(clients)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        peak, parameters, versions = json.loads(printed)
        peaks[clients] = peak
        detail = f"{parameters:,} parameters, {CONCURRENCY} jobs in flight from {versions} versions"
        figures[f"peak_gb_{clients}_clients"] = {"value": peak, "detail": detail}
    ratio = max(peaks.values()) / min(peaks.values())
    detail = f"{UPDATES} updates each; the larger over the smaller"
    figures["peak_10000_over_1000_clients"] = {"value": ratio, "detail": detail}
    print(json.dumps(figures))


def _simulate(clients: int) -> tuple[float, int, int]:
    """Run a simulation; return the peak in GB, the model's size and the most versions in use at once."""
    import torch
    from torch import nn

    from asyncmanifold import LocalTraining, Run, Schedule, Task, simulate

    model = nn.Sequential(nn.Linear(64, 964), nn.ReLU(), nn.Linear(964, 964), nn.ReLU(), nn.Linear(964, 10))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2 * clients, 64, generator=generator)
    targets = torch.randint(10, (2 * clients,), generator=generator)
    result = simulate(
        Task(
            model=model,
            loss=nn.functional.cross_entropy,
            clients=list(zip(inputs.view(clients, 2, 64), targets.view(clients, 2), strict=True)),
            test=(inputs[:8], targets[:8]),
        ),
        "asyncbezier",
        training=LocalTraining(point_epochs=1, curve_epochs=1),
        schedule=Schedule("clock", concurrency=CONCURRENCY),  # first in, first out: no two bases equal
        run=Run(updates=UPDATES, evaluate_every=UPDATES),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    updates = [record for record in result.trace if record["kind"] == "update"]
    return peak / 1e9, sum(p.numel() for p in model.parameters()), _most_versions(updates)


def _most_versions(updates: list[dict[str, int]]) -> int:
    """Return how many base versions were in flight at once, at most, as far as arrivals show."""
    spans: dict[int, int] = {}
    for update in updates:
        spans[update["base_version"]] = max(spans.get(update["base_version"], 0), update["update"])
    return max(sum(base < now <= last for base, last in spans.items()) for now in range(1, len(updates) + 1))


if __name__ == "__main__":
    main()
