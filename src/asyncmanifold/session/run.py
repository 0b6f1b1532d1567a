"""Settings of a run: its length, evaluations, seed and checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from asyncmanifold.arithmetic import KINDS
from asyncmanifold.checks import check
from asyncmanifold.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Run:
    """The length of a run, its evaluations, its seed and its checkpoints.

    Arguments:
        updates: the number of accepted client updates, including those that a buffer holds back.
        evaluate_every: updates between two evaluations.
        final_evaluations: the number of last evaluations whose mean is the final score, since a single
            evaluation may fall into a dip; the evaluation before the first update never counts.
        target: a score; the first update that reaches it is reported (the paper's T_e: 1 − e).
        target_stops: end the run with the first evaluation that reaches the target.
        time_budget: virtual time after which no update is accepted.
        wall_budget: seconds of wall time after which no update is accepted.
        target_every: also look for the target after every so many updates, until it is reached: if the model
            reaches it on ``target_examples`` test examples, it is evaluated on all of them.
        target_examples: the number of test examples for that, spread evenly over the test set.
        seed: the seed of all random numbers of the run.
        checkpoint_seconds: wall time between two checkpoints.
        keep_models: how many models are kept to go back to, the last ones that an evaluation found good.
        roll_back: go back to the last of these when an evaluation finds the model ruined: not finite, or with
            less than half of the best score.
        initial_model: a ``model.safetensors`` to start from, instead of random weights.
        arithmetic: ``"native"``, the processor's own; or ``"portable"``, the same bits on every x86-64 with
            AVX2, to be chosen before torch is loaded (``use_portable_arithmetic``).
        device: where models are trained and evaluated: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"`` or
            ``"auto"``, the best there is. Workers take turns on all devices of a kind given without a number.
        server_device: where the server's state lives, and updates are absorbed.
        threads: torch threads of each process that trains; with one, CPU results repeat to the last bit.

    >>> from asyncmanifold import Run
    >>> Run(updates=50, target=0.9).evaluate_every
    10
    """

    updates: int = 300
    evaluate_every: int = 10
    final_evaluations: int = 5
    target: float | None = None
    target_stops: bool = False
    time_budget: float | None = None
    wall_budget: float | None = None
    target_every: int | None = None
    target_examples: int = 2_000
    seed: int = 0
    checkpoint_seconds: float = 30.0
    keep_models: int = 0
    roll_back: bool = False
    initial_model: str | None = None
    arithmetic: str = "native"
    device: str = "cpu"
    server_device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        check(self, updates="at least 1", evaluate_every="at least 1", seed="at least 0")
        check(self, time_budget="above 0", wall_budget="above 0")
        if self.target_stops and self.target is None:
            raise InputError("Run(target_stops=True) needs a target")
        check(self, keep_models="at least 0")
        if self.roll_back and not self.keep_models:
            raise InputError("Run(roll_back=True) needs models to go back to: keep_models must be at least 1")
        check(self, checkpoint_seconds="at least 0", final_evaluations="at least 1", arithmetic=KINDS)
        check(self, threads="at least 1", target_every="at least 1", target_examples="at least 1")
        check_device_name("device", self.device)
        check_device_name("server_device", self.server_device)

    def resolved(self) -> Run:
        """Return the run with the devices that ``auto`` stands for here; refuse those that are not there."""
        from asyncmanifold.devices import find_device  # loads torch, which must wait for ``arithmetic``

        return replace(
            self, device=str(find_device(self.device)), server_device=str(find_device(self.server_device))
        )


def check_device_name(key: str, name: str) -> None:
    """Refuse what cannot be the name of a device; whether there is one is known only where it is used."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z]\w*(:\d+)?", name):
        raise InputError(f"{key}={name!r} must be 'auto', 'cpu', 'cuda', 'cuda:1', 'mps' or so")
