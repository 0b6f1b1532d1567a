"""One server update of a large model, over streaming the bytes that it cannot avoid.

An update reads the model, the base and two control points twice (inner products, then the step) and
writes the new model once. The stream does just that with torch's own reductions and ``fill_``.
"""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter

import torch

from asyncmanifold import Bezier, Method, OrthoDC, ServerState, Update, absorb
from asyncmanifold.vectors import Statistics

PARAMETERS = 10_000_000
REPEATS = 31


def main() -> None:
    torch.set_num_threads(1)  # as in a simulation
    generator = torch.Generator().manual_seed(0)
    theta, base = (torch.randn(PARAMETERS, generator=generator) for _ in range(2))
    offsets = torch.randn(2, PARAMETERS, generator=generator)
    method = Method(embedding=Bezier(2), correction=OrthoDC(1.0))  # always projects
    state = ServerState(theta, version=1)
    update = Update(client=0, version=0, offsets=offsets, statistics=Statistics.none())
    read = [theta, base, *offsets]
    written = [torch.zeros(PARAMETERS), torch.zeros(PARAMETERS)]

    def absorb_once(out: torch.Tensor) -> None:
        _, step = absorb(method, state, update, base=base, weight=0.1, out=out)
        assert step.staleness == 1
        assert step.projected == [True, True]

    def stream_once(out: torch.Tensor) -> None:
        for _ in range(2):
            for vector in read:
                vector.sum()
        out.fill_(1.0)

    seconds: dict[str, list[float]] = {"absorb": [], "stream": []}
    for repeat in range(-1, REPEATS):
        for name, action in (("absorb", absorb_once), ("stream", stream_once)):
            started = perf_counter()
            action(written[repeat % 2])
            if repeat >= 0:  # one to warm up
                seconds[name].append(perf_counter() - started)

    ratio = min(seconds["absorb"]) / min(seconds["stream"])
    typical = median(a / s for a, s in zip(seconds["absorb"], seconds["stream"], strict=True))
    detail = (
        f"{min(seconds['absorb']) * 1e3:.1f} over {min(seconds['stream']) * 1e3:.1f} ms, best of {REPEATS}, "
        f"one thread (median of the ratios {typical:.2f})"
    )
    print(json.dumps({"server_update_over_stream": {"value": ratio, "detail": detail}}))


if __name__ == "__main__":
    main()
