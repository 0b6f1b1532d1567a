"""Gates that compare an update with the server's own, trained on a little data that it trusts.

The server's update v_s starts from the current model and is trained as a client would, once per version and
only if an update arrives. Of a curve the end points are compared.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import isfinite
from typing import TYPE_CHECKING, ClassVar

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.server.gates import Gate
from asyncmanifold.server.protocol import Rejected
from asyncmanifold.server.stages import Arrival, Memory

if TYPE_CHECKING:
    from asyncmanifold.server.methods import Method


@dataclass(frozen=True)
class AflGuard(Gate):
    """Admits an update iff ‖v − v_s‖ ≤ λ ‖v_s‖ (AFLGuard, Fang et al. 2022).

    v_s is the server's own update on its trusted data, from the current model. An admitted update is at
    most 1 + λ times as long as v_s, and with λ < 1 it never points away from it.

    Assumes that the trusted data resemble those of all clients together, and that a client's job is about as
    long as the server's: honest clients whose data differ much from the trusted are rejected.

    Arguments:
        trusted_distance: λ, the greatest distance from v_s as a multiple of its length.

    >>> from asyncmanifold import AflGuard, Method, Rejected, ServerState, Update, absorb
    >>> import torch
    >>> method, state = Method(gates=(AflGuard(1.0),), weighting="none"), ServerState(torch.zeros(2))
    >>> own = lambda: torch.tensor([2.0, 0.0])
    >>> absorb(method, state, Update(0, 0, torch.tensor([[1.0, 1.0]])), base=state.theta, weight=1.0,
    ...        trusted=own)[0].theta
    tensor([1., 1.])
    >>> try:
    ...     absorb(method, state, Update(1, 0, torch.tensor([[-1.0, 0.0]])), base=state.theta, weight=1.0,
    ...            trusted=own)
    ... except Rejected as problem:
    ...     print(problem)
    3 away from the server's own update, more than 1 times its length 2
    """

    needs_trusted: ClassVar[bool] = True
    trusted_distance: float = 1.5

    def __post_init__(self) -> None:
        check(self, trusted_distance="above 0 and finite")

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        own, length = arrival.trusted, trusted_length(arrival)
        _ = arrival.gram  # what is not finite is rejected here, before it is compared
        distance = arrival.space.norm(arrival.theta, arrival.offsets[-1] - own)
        if distance > self.trusted_distance * length:
            raise Rejected(
                f"{distance:.3g} away from the server's own update, more than {self.trusted_distance:g} "
                f"times its length {length:.3g}"
            )
        return 1.0, memory


@dataclass(frozen=True)
class ZenoPlusPlus(Gate):
    """Scales an update to the length of v_s and admits it iff γ⟨v_s, v⟩ − ρ‖v‖² ≥ −γε.

    This is Zeno++ (Xie, Koyejo, Gupta 2020). v_s is the server's own update on its trusted data, from the
    current model; in the paper a gradient. As both are of one length, the rule is
    cos(v_s, v) ≥ ρ/γ − ε/‖v_s‖².

    Assumes that the trusted data resemble those of all clients together. Lengths say nothing to this gate:
    every admitted update, long or short, moves the model as far as the server's own.

    Arguments:
        zeno_rate: γ.
        zeno_penalty: ρ.
        zeno_slack: ε, how much worse than not moving an update may be.

    >>> from asyncmanifold import Method, ServerState, Update, ZenoPlusPlus, absorb
    >>> import torch
    >>> method, state = Method(gates=(ZenoPlusPlus(),), weighting="none"), ServerState(torch.zeros(2))
    >>> update = Update(0, 0, torch.tensor([[30.0, 40.0]]))
    >>> own = lambda: torch.tensor([1.0, 0.0])
    >>> absorb(method, state, update, base=state.theta, weight=1.0, trusted=own)[0].theta
    tensor([0.6000, 0.8000])
    """

    needs_trusted: ClassVar[bool] = True
    zeno_rate: float = 0.1
    _: KW_ONLY
    zeno_penalty: float = 0.001
    zeno_slack: float = 0.0

    def __post_init__(self) -> None:
        check(self, zeno_rate="above 0 and finite", zeno_penalty="at least 0 and finite")
        check(self, zeno_slack="at least 0 and finite")

    def admit(self, arrival: Arrival, memory: Memory) -> tuple[float, Memory]:
        own, length = arrival.trusted, trusted_length(arrival)
        received = float(arrival.gram[-2, -2]) ** 0.5
        if received == 0.0:
            return 1.0, memory
        factor = length / received
        agreement = factor * arrival.space.inner(arrival.theta, own, arrival.offsets[-1])
        score = self.zeno_rate * agreement - self.zeno_penalty * length**2
        least = 0.0 - self.zeno_rate * self.zeno_slack
        if score < least:
            raise Rejected(
                f"cosine {agreement / length**2:.2f} to the server's own update: score {score:.3g} is below "
                f"{least:g}"
            )
        return factor, memory


def trusted_length(arrival: Arrival) -> float:
    """Return ‖v_s‖; reject the update if it says nothing, so that nothing passes unseen."""
    length = arrival.space.norm(arrival.theta, arrival.trusted)
    if not isfinite(length) or length == 0.0:
        raise Rejected(f"the server's own update has length {length:g}: there is nothing to compare with")
    return length


def require_trusted(method: Method, *, is_given: bool) -> None:
    """Refuse a method whose gates need trusted data where there are none."""
    if method.needs_trusted and not is_given:
        needing = [type(gate).__name__ for gate in method.all_gates.values() if gate.needs_trusted]
        raise InputError(
            f"{' and '.join(needing)} needs data that the server trusts: a task with Task(trusted=…) or "
            "trusted_examples above 0, on Flower AsyncServer(trusted=…)"
        )
