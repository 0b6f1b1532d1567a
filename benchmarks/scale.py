"""What an update costs, in time and memory, with 100 to 100,000 clients and as many jobs in flight.

All clients share the same examples, two each, so only their number differs. Time is the processor's: for a
small model, where all but training shows most, best of several processes in turns. Memory is the peak of a
process, for a model of a million parameters, with 100 jobs in flight from as many versions: a process begins
with the peak of the one that started it, so this one stays small.

``scale.py time 1000000 $(date +%s)`` measures any number of clients alone, and ``scale.py memory …``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

CLIENTS = (100, 1_000, 10_000, 100_000)
IN_FLIGHT = 100
EXAMPLES = 2 * max(CLIENTS)
FEATURES = 64
WIDTHS = {"time": 16, "memory": 964}
"""Of the model's two hidden layers."""
UPDATES = {"time": 900, "memory": 300}
WARM_UP = 100
REPEATS = 3
Measured = dict[str, float]


def main() -> None:
    if len(sys.argv) > 1:
        what, number, started = sys.argv[1:]
        print(json.dumps(simulate_once(what, int(number), float(started))))
        return
    seconds: dict[int, list[float]] = {clients: [] for clients in CLIENTS}
    starts: list[float] = []
    for _ in range(REPEATS):
        for clients, measured in seconds.items():
            found = measure("time", clients)
            measured.append(found["seconds"])
            if clients == max(CLIENTS):
                starts.append(found["start"])
    memory = {clients: measure("memory", clients) for clients in CLIENTS}
    best = {clients: min(measured) for clients, measured in seconds.items()}
    peaks = {clients: found["peak"] / 1e9 for clients, found in memory.items()}
    few, many = min(CLIENTS), max(CLIENTS)
    times = ", ".join(f"{clients:,}: {value * 1e3:.2f} ms" for clients, value in best.items())
    sizes = ", ".join(f"{clients:,}: {value:.3f} GB" for clients, value in peaks.items())
    versions = f"{IN_FLIGHT} jobs in flight from {memory[few]['versions']} versions"
    start = f"from the start of Python to the first dispatch, best of {REPEATS}"
    figures = {
        f"update_{many}_over_{few}_clients": (best[many] / best[few], f"processor time, {times}"),
        f"memory_{many}_over_{few}_clients": (peaks[many] / peaks[few], f"peaks, {sizes}"),
        f"startup_seconds_{many}": (min(starts), start),
        f"peak_gb_{many}_clients": (peaks[many], f"{memory[few]['parameters']:,} parameters, {versions}"),
    }
    print(json.dumps({key: {"value": value, "detail": detail} for key, (value, detail) in figures.items()}))


def measure(what: str, clients: int) -> Measured:
    """Run a simulation in a process of its own."""
    command = [sys.executable, __file__, what, str(clients), str(time.time())]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: Measured = json.loads(printed)
    return measured


def simulate_once(what: str, clients: int, started: float) -> Measured:
    """Return what an update took, when the first job was sent, and the peak of memory in bytes."""
    import torch
    from torch import nn

    from asyncmanifold import LocalTraining, Records, Run, Schedule, Shares, Task, simulate

    width, updates = WIDTHS[what], UPDATES[what]
    model = nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, FEATURES, generator=generator)
    targets = torch.randint(10, (EXAMPLES,), generator=generator)
    parts = (torch.arange(2 * clients) % EXAMPLES).view(clients, 2).numpy()
    marks: dict[int, tuple[float, float]] = {}

    def mark(record: dict[str, int]) -> None:
        if record["update"] in (0, WARM_UP, updates):
            marks.setdefault(record["update"], (time.time(), time.process_time()))

    result = simulate(
        Task(
            model=model,
            loss=nn.functional.cross_entropy,
            clients=Shares(inputs, targets, list(parts)),
            test=(inputs[:8], targets[:8]),
        ),
        "asyncbezier",
        training=LocalTraining(point_epochs=1, curve_epochs=1),
        schedule=Schedule("clock", concurrency=IN_FLIGHT),  # first in, first out: no two bases equal
        run=Run(updates=updates, evaluate_every=updates),
        records=Records(observer=mark),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "seconds": (marks[updates][1] - marks[WARM_UP][1]) / (updates - WARM_UP),
        "start": marks[0][0] - started,
        "peak": peak,
        "parameters": result.summary["parameters"],
        "versions": _most_versions([record for record in result.trace if record["kind"] == "update"]),
    }


def _most_versions(updates: list[dict[str, int]]) -> int:
    """Return how many base versions were in flight at once, at most, as far as arrivals show."""
    spans: dict[int, int] = {}
    for update in updates:
        spans[update["base_version"]] = max(spans.get(update["base_version"], 0), update["update"])
    return max(sum(base < now <= last for base, last in spans.items()) for now in range(1, len(updates) + 1))


if __name__ == "__main__":
    main()
