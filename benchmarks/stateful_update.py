"""Server updates of methods with a memory, over streaming the bytes that they cannot avoid.

Each method is measured over one cycle, from one move of the model to the next. What a cycle must touch is
written down for each: every vector that is read or written, once per pass, inner products included. The
stream does just that with torch's own reductions and ``fill_``. Both are processor time, so that other
programs on the machine count less. The figure is the worst method's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from time import process_time

import torch

from asyncmanifold import METHODS, Method, ServerMomentum, ServerState, Situation, Update, absorb
from asyncmanifold.execution.allocator import keep_freed_memory

PARAMETERS = 10_000_000  # 40 MB each: no cache holds them
REPEATS = 15
CLIENTS = 4


@dataclass(frozen=True)
class Measured:
    """A method, the updates of a cycle, and the vectors that a cycle reads and writes."""

    method: Method
    updates: int
    reads: int
    writes: int


GRAM = 3  # the offset, the model and the base, for the inner products
CASES = {
    # step: offset, velocity, model; velocity and model are written
    "momentum": Measured(Method(server_optimizer=ServerMomentum()), 1, GRAM + 3, 2),
    # four times offset and held sum; then offset, held sum, three moments, model
    "fadas": Measured(METHODS["fadas"], 5, 5 * GRAM + 4 * 2 + 6, 4 + 4),
    # offset, the client's last step, the sum, the model; the last three are written
    "ace": Measured(METHODS["ace"], 1, GRAM + 4, 3),
    "fedfa": Measured(METHODS["fedfa"], 1, GRAM + 4, 3),
    # a round of seven: four rows are written, read again for their sum, and moved by; three times offset,
    # row, sum and model, the last three of which are written
    "ringleader": Measured(METHODS["ringleader"], 7, 7 * GRAM + 4 + 4 + 1 + 3 * 4, 4 + 1 + 1 + 3 * 3),
    # ten times offset, last step, change; then the sum and the model
    "ca2fl": Measured(METHODS["ca2fl"], 10, 10 * (GRAM + 3) + 3, 10 * 2 + 3),
}


def main() -> None:
    torch.set_num_threads(1)  # as in a simulation
    keep_freed_memory()
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(PARAMETERS, generator=generator) for _ in range(8)]
    found = {name: ratio_of(case, vectors) for name, case in CASES.items()}
    worst = max(found, key=lambda name: found[name])
    shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())
    detail = f"{shown}; best of {REPEATS} cycles, {PARAMETERS:,} parameters, one thread"
    print(json.dumps({"stateful_update_over_stream": {"value": found[worst], "detail": detail}}))


def ratio_of(case: Measured, vectors: list[torch.Tensor]) -> float:
    """Return the best time of a cycle over the best time of its stream, repeats interleaved."""
    theta, base, *rest = vectors
    state, spares = ServerState(theta, version=1), [torch.zeros(PARAMETERS), torch.zeros(PARAMETERS)]
    absorbed: list[float] = []
    streamed: list[float] = []
    for repeat in range(-CLIENTS, REPEATS):
        started = process_time()
        for number in range(case.updates):
            state = absorb_once(case.method, state, base, rest[number % CLIENTS], repeat + number, spares)
        absorbed.append(process_time() - started)
        started = process_time()
        stream_once(case, rest)
        streamed.append(process_time() - started)
    del absorbed[:CLIENTS], streamed[:CLIENTS]  # to warm up, and until every client is known
    assert median(absorbed) > 0.0
    return min(absorbed) / min(streamed)


def absorb_once(
    method: Method,
    state: ServerState,
    base: torch.Tensor,
    offset: torch.Tensor,
    number: int,
    spares: list[torch.Tensor],
) -> ServerState:
    """Absorb one update from the version before; the memory of the last model is used again."""
    update = Update(number % CLIENTS, state.version - 1, offset[None])
    situation, out = Situation(clients=CLIENTS), spares.pop()
    after, _ = absorb(method, state, update, base=base, weight=0.1, situation=situation, out=out)
    spares.append(state.theta if after.theta is out else out)
    return after


def stream_once(case: Measured, vectors: list[torch.Tensor]) -> None:
    """Read and write as many vectors as a cycle must."""
    for number in range(case.reads):
        vectors[number % 4].sum()
    for number in range(case.writes):
        vectors[4 + number % 2].fill_(0.1)


if __name__ == "__main__":
    main()
