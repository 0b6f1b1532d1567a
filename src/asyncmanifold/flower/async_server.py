"""An asynchronous server for stock Flower, in the shape of Flower's own strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from torch import nn

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.configuration.parts import part_name
from asyncmanifold.configuration.tables import to_tree
from asyncmanifold.errors import InputError
from asyncmanifold.flower.codec import array_record
from asyncmanifold.flower.deployment import Deployment, log
from asyncmanifold.flower.policy import Policy
from asyncmanifold.flower.result import flower_result
from asyncmanifold.server.methods import Method, named_method
from asyncmanifold.session.journal import Journal, Records
from asyncmanifold.session.run import Run
from asyncmanifold.session.session import Judge, Session
from asyncmanifold.threads import torch_threads
from asyncmanifold.vectors import FlatModel

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class AsyncServer:
    """Trains a model on a grid of nodes with any method of this library.

    Flower's own strategies wait for a round. This server gives every node a job, absorbs each reply the
    moment it arrives, and gives that node its next job at once.

    Arguments:
        model: defines which arrays are trained and which are statistics; it is not modified.
        method: the name of a published method, or a ``Method`` composed of parts.
        training: how nodes train.
        policy: how nodes are treated.
        seed: the seed of all random numbers of the run.

    >>> from torch import nn
    >>> from asyncmanifold.flower import AsyncServer, Policy
    >>> AsyncServer(nn.Linear(4, 2), "fedasync", policy=Policy(queue_depth=2)).method_name
    'fedasync'
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
        self.method_name, self.method = named_method(method)
        for part in (self.method.embedding, *self.method.outgoing):
            if part_name(type(part)) is None:
                raise InputError(
                    f"{type(part).__name__} has no name that a message could carry: enter it in PARTS, "
                    "in the server app and in the client app"
                )
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
    ) -> FlowerResult:
        """Absorb updates and return the final arrays and the metrics, keyed by update.

        Arguments:
            grid: Flower's grid.
            initial_arrays: the model to start from, a state dict.
            num_updates: how many updates are accepted.
            train_config: sent with every job, for the app's own use.
            evaluate_fn: takes the number of updates and the arrays and returns metrics, of which the first is
                reported; the first call is at update 0.
            evaluate_every: updates between two evaluations.
            target: a score; the first update that reaches it is reported.
            out: the run's directory, like the simulator's: an accepted update is on disk before the next one
                is absorbed.
            resume: continue after the last update in ``out``.
            config: the configuration to write to ``out``; by default it is made from the arguments.
            labels: ``scenario``, ``method`` and ``seed`` as summaries and reports name them.

        Raises ``RunError`` if the run cannot continue.
        """
        model = FlatModel(copy.deepcopy(self.model))
        model.module.load_state_dict(initial_arrays.to_torch_state_dict())
        run = Run(updates=num_updates, evaluate_every=evaluate_every, target=target, seed=self.seed)
        records = Records(out=out, resume=resume, config=config, labels=labels)
        described = {
            "method_name": self.method_name,
            "method": to_tree(self.method),
            "training": to_tree(self.training),
            "run": to_tree(run),
        }
        named = {"scenario": "flower", "method": self.method_name, "seed": self.seed}
        with ExitStack() as stack:
            stack.enter_context(torch_threads())
            journal = Journal(records, described, named)
            stack.callback(journal.close)
            if journal.is_finished:
                known = journal.load_finished(model)["per_client"] or []
                scores = {client: score for client, score in enumerate(known) if score is not None}
                return flower_result(model, journal.records, scores)
            session = Session(self.method, self.training, run, model, journal, _judge(evaluate_fn))
            deployment = Deployment(grid, session, self.policy, train_config or ConfigRecord(), journal)
            scores = deployment.run()
            per_client = [scores.get(client) for client in range(max(scores) + 1)] if scores else None
            journal.conclude(session, per_client)
            return flower_result(model, journal.records, scores)


def _judge(evaluate: Evaluate | None) -> Judge:
    """Return an app's evaluation function in the form that the session calls."""

    def judge(updates: int, model: FlatModel) -> dict[str, float]:
        found = None if evaluate is None else evaluate(updates, array_record(model.named_tensors()))
        scores = {name: value for name, value in (found or {}).items() if isinstance(value, (int, float))}
        if scores:
            log.info("evaluation at update %s: %s", updates, scores)
        return {name: float(value) for name, value in scores.items()}

    return judge
