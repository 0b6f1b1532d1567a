"""An asynchronous server for stock Flower, in the shape of Flower's own strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import nn

from asyncmanifold.client.training import LocalTraining
from asyncmanifold.errors import InputError
from asyncmanifold.flower.deployment import Deployment, Plan
from asyncmanifold.flower.policy import Policy
from asyncmanifold.flower.records import Records
from asyncmanifold.server.methods import METHODS, Method
from asyncmanifold.tables import to_tree
from asyncmanifold.threads import torch_threads
from asyncmanifold.vectors import FlatModel

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class AsyncServer:
    """Trains ``model`` on a grid of nodes with any method of this library.

    Flower's own strategies wait for a round. This server gives every node a job, absorbs whatever comes back
    the moment it does, and gives that node its next job at once.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method | str = "asyncbezier",
        *,
        training: LocalTraining | None = None,
        policy: Policy | None = None,
        seed: int = 0,
    ) -> None:
        """``model`` says which arrays are trained and which are buffers; it is left as it is."""
        if isinstance(method, str) and method not in METHODS:
            raise InputError(f"unknown method {method!r} (allowed: {', '.join(METHODS)})")
        self.method_name = method if isinstance(method, str) else "custom"
        self.method = METHODS[method] if isinstance(method, str) else method
        self.model = model
        self.training = training or LocalTraining()
        self.policy = policy or Policy()
        self.seed = seed

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_updates: int = 100,
        *,
        train_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
        evaluate_every: int = 10,
        target: float | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        config: dict[str, Any] | None = None,
        labels: dict[str, Any] | None = None,
    ) -> Result:
        """Absorb ``num_updates`` updates and return the final arrays and the metrics, keyed by update.

        ``evaluate_fn`` is called with the number of updates and the arrays, first at 0 and then every
        ``evaluate_every`` updates; the first of its metrics is the one that is reported. With ``out`` the run
        is kept in a directory like the simulator's: an accepted update is on disk before the next one is
        absorbed, and ``resume`` goes on after the last. ``config`` and ``labels`` describe the run in its
        files. Raises ``RunError`` where the run cannot go on.
        """
        if num_updates < 1:
            raise InputError(f"start(num_updates={num_updates}) must be at least 1")
        if evaluate_every < 1:
            raise InputError(f"start(evaluate_every={evaluate_every}) must be at least 1")
        model = FlatModel(copy.deepcopy(self.model))
        model.module.load_state_dict(initial_arrays.to_torch_state_dict())
        plan = Plan(
            method=self.method,
            training=self.training,
            policy=self.policy,
            seed=self.seed,
            updates=num_updates,
            evaluate_every=evaluate_every,
            train_config=train_config or ConfigRecord(),
            evaluate=evaluate_fn,
        )
        labels = labels or {"scenario": "flower", "method": self.method_name, "seed": self.seed}
        with ExitStack() as stack:
            stack.enter_context(torch_threads())
            records = Records(out, config or self._describe(num_updates), labels, target, resume=resume)
            stack.callback(records.close)
            if records.is_finished:
                return records.finished(model)
            return Deployment(grid, model, plan, records).run()

    def _describe(self, num_updates: int) -> dict[str, Any]:
        """Return a configuration for the record of a run."""
        return {
            "method_name": self.method_name,
            "method": to_tree(self.method),
            "training": to_tree(self.training),
            "run": {"updates": num_updates, "seed": self.seed},
        }
