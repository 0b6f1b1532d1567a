"""Server optimizers that divide by the root of a mean square, entry by entry, and the names of all of them.

Steps stand for gradients that point downhill (Reddi et al.: Adaptive Federated Optimization, ICLR 2021). What
is divided by its own root has a length of its own, so η_g is a factor of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncmanifold.checks import check
from asyncmanifold.server.gram import blocks
from asyncmanifold.server.moves import Move
from asyncmanifold.server.optimizers import ServerMomentum, ServerOptimizer
from asyncmanifold.server.stages import Memory


@dataclass(frozen=True)
class AdaptiveOptimizer(ServerOptimizer):
    """m ← β₁ m + (1 − β₁) Δ, and the model moves by η_g m/(√u + ε). Subclasses say what u is."""

    first_decay: float = 0.9
    second_decay: float = 0.99
    _: KW_ONLY
    root_floor: float = 1e-3
    takes_rate: ClassVar[bool] = True
    flat_only: ClassVar[str] = "squares entry by entry have no meaning on a manifold"

    def __post_init__(self) -> None:
        check(self, first_decay="in [0, 1)", second_decay="in [0, 1)", root_floor="above 0 and finite")

    def init(self, theta: Tensor) -> Memory:
        return {"mean": torch.zeros_like(theta), "square": torch.full_like(theta, self.root_floor**2)}

    def step(self, move: Move, memory: Memory) -> tuple[Tensor, Memory]:
        new = {name: torch.empty_like(vector) for name, vector in memory.items()}
        pieces = list(zip(_in_blocks(memory), _in_blocks(new), strict=True))

        def adapt(number: int, step: Tensor) -> None:
            before, after = pieces[number]
            torch.lerp(step, before["mean"], self.first_decay, out=after["mean"])
            root = portable_root(self.follow_squares(step.square(), before, after)).add_(self.root_floor)
            torch.div(after["mean"], root, out=step)

        return move.vector(adapt), new

    def follow_squares(self, squares: Tensor, before: Memory, after: Memory) -> Tensor:
        """Write the new memory of squares into ``after``, and return what the root is taken of."""
        raise NotImplementedError


@dataclass(frozen=True)
class ServerAdam(AdaptiveOptimizer):
    """m ← β₁ m + (1 − β₁) Δ, u ← β₂ u + (1 − β₂) Δ², Θ ← Θ + η_g m/(√u + ε) (FedAdam, Reddi et al. 2021).

    As published, without bias corrections; u begins at ε².

    Arguments:
        first_decay: β₁.
        second_decay: β₂.
        root_floor: ε, the paper's degree of adaptivity τ.

    >>> import torch
    >>> from asyncmanifold import Method, ServerAdam, ServerState, Update, absorb
    >>> method = Method(server_optimizer=ServerAdam(0.0, 0.0, root_floor=1e-8), global_lr=0.1)
    >>> state, update = ServerState(torch.zeros(2)), Update(0, 0, torch.tensor([[3.0, -0.2]]))
    >>> absorb(method, state, update, base=state.theta, weight=1.0)[0].theta  # η_g times the signs
    tensor([ 0.1000, -0.1000])
    """

    def follow_squares(self, squares: Tensor, before: Memory, after: Memory) -> Tensor:
        return torch.lerp(squares, before["square"], self.second_decay, out=after["square"])


@dataclass(frozen=True)
class ServerYogi(AdaptiveOptimizer):
    """As ``ServerAdam``, with u ← u − (1 − β₂) Δ² sign(u − Δ²) (FedYogi, Reddi et al. 2021).

    Arguments:
        first_decay: β₁.
        second_decay: β₂.
        root_floor: ε, the paper's degree of adaptivity τ.

    >>> from asyncmanifold import Method, ServerYogi
    >>> Method(server_optimizer="yogi").server_optimizer == ServerYogi(0.9, 0.99, root_floor=1e-3)
    True
    """

    def follow_squares(self, squares: Tensor, before: Memory, after: Memory) -> Tensor:
        signs, share = torch.sub(before["square"], squares).sign_(), self.second_decay - 1.0
        return torch.addcmul(before["square"], squares, signs, value=share, out=after["square"])


@dataclass(frozen=True)
class ServerAMSGrad(AdaptiveOptimizer):
    """As ``ServerAdam``, but the root is that of û ← max(û, u) (FADAS, Wang et al. 2024).

    The rate adapts to delay: it is η_g while the greatest staleness τ of the updates in a step is at most
    ``full_rate_delay``, above that η_g/τ.

    Arguments:
        first_decay: β₁.
        second_decay: β₂.
        root_floor: ε.
        full_rate_delay: the paper's τ_c; none leaves the rate alone.

    >>> from asyncmanifold import METHODS
    >>> METHODS["fadas"].server_optimizer
    ServerAMSGrad(first_decay=0.9, second_decay=0.99, root_floor=1e-08, full_rate_delay=1)
    """

    root_floor: float = 1e-8
    full_rate_delay: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, full_rate_delay="at least 1")

    def init(self, theta: Tensor) -> Memory:
        return {name: torch.zeros_like(theta) for name in ("mean", "square", "highest")}

    def follow_squares(self, squares: Tensor, before: Memory, after: Memory) -> Tensor:
        torch.lerp(squares, before["square"], self.second_decay, out=after["square"])
        return torch.maximum(before["highest"], after["square"], out=after["highest"])

    def factor(self, move: Move) -> float:
        """Return 1, or 1/τ if the staleness τ of the step is above τ_c."""
        is_late = self.full_rate_delay is not None and move.staleness > self.full_rate_delay
        return 1.0 / move.staleness if is_late else 1.0


def _in_blocks(memory: Memory) -> Iterator[Memory]:
    """Yield a memory of vectors block by block."""
    for pieces in zip(*(blocks(vector) for vector in memory.values()), strict=True):
        yield dict(zip(memory, pieces, strict=True))


def portable_root(squares: Tensor) -> Tensor:
    """Return the square roots: the same bits on every processor, which ``torch.sqrt`` does not promise.

    >>> portable_root(torch.tensor([0.0, 2.25]))
    tensor([0.0000, 1.5000])
    """
    return torch.rsqrt(squares).reciprocal_()


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "momentum": ServerMomentum,
    "adam": ServerAdam,
    "yogi": ServerYogi,
    "amsgrad": ServerAMSGrad,
}
