"""An asynchronous server for stock Flower, in the shape of Flower's own strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from torch import nn

from asyncmanifold.arithmetic import require_arithmetic
from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.client.trusted_training import TrustedExamples, TrustedTrainer
from asyncmanifold.configuration.parts import part_name
from asyncmanifold.configuration.tables import to_tree
from asyncmanifold.errors import InputError
from asyncmanifold.flower.arrays import array_record
from asyncmanifold.flower.deployment import Deployment
from asyncmanifold.flower.policy import Policy
from asyncmanifold.flower.result import flower_result
from asyncmanifold.flower.run_log import RunLog, log
from asyncmanifold.json_log import json_handlers
from asyncmanifold.server.gates import Gate
from asyncmanifold.server.methods import Method, named_method
from asyncmanifold.server.peers import PEER_GATES
from asyncmanifold.server.trusted_gates import require_trusted
from asyncmanifold.session.evaluated_state import Judge
from asyncmanifold.session.journal import Journal, Records
from asyncmanifold.session.observers import Observer, as_observers
from asyncmanifold.session.run import Run
from asyncmanifold.session.session import Session
from asyncmanifold.session.summary import Summary
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
        bounds: gates that protect the model from single nodes, before the method's own. By default updates
            that point away from the others' are rejected, and much longer ones are shortened; ``()`` for
            none. A gate that the method has itself replaces the bound of its kind.
        trusted: data that the server itself has, for gates that compare updates with its own.
        seed: the seed of all random numbers of the run.
        task: the app's own name for its task; nodes that pass another to ``train_reply`` are refused.
        arithmetic: ``"native"``, or ``"portable"`` to accept only nodes that compute portably
            (docs/portability.md).

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
        bounds: Sequence[Gate] = PEER_GATES,
        trusted: TrustedExamples | None = None,
        seed: int = 0,
        task: str = "",
        arithmetic: str = "native",
    ) -> None:
        self.method_name, self.method = named_method(method)
        own = {type(gate) for gate in self.method.gates}
        added = tuple(bound for bound in bounds if type(bound) not in own)
        self.method = replace(self.method, gates=(*added, *self.method.gates))
        require_trusted(self.method, is_given=trusted is not None)
        for part in (self.method.embedding, *self.method.outgoing):
            if part_name(type(part)) is None:
                raise InputError(
                    f"{type(part).__name__} has no name that a message could carry: enter it in PARTS, "
                    "in the server app and in the client app"
                )
        self.model = model
        self.training = training or LocalTraining()
        self.policy = policy or Policy()
        self.trusted = trusted
        self.seed = seed
        self.task = task
        self.arithmetic = arithmetic

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
        target_stops: bool = False,
        wall_budget: float | None = None,
        lower_is_better: Sequence[str] = (),
        out: str | Path | None = None,
        resume: bool = False,
        change: Sequence[str] = (),
        keep_models: int = 3,
        roll_back: bool = False,
        back_to: int | None = None,
        config: dict[str, Any] | None = None,
        labels: dict[str, Any] | None = None,
        observer: Observer | Sequence[Observer] | None = None,
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
            target_stops: end the run with the first evaluation that reaches the target.
            wall_budget: seconds after which no update is accepted; those of earlier calls of the run count.
            lower_is_better: the metrics of which less is better, such as a loss.
            out: the run's directory, like the simulator's: an accepted update is on disk before the next one
                is absorbed.
            resume: continue after the last update in ``out``.
            change: paths of settings that may differ from those of the run that is resumed, such as
                ``"method.global_lr"`` or ``"run.updates"``; every change is recorded in the trace.
            keep_models: how many models are kept to go back to, the last ones that an evaluation found good.
            roll_back: go back to the last of these when an evaluation finds the model ruined.
            back_to: on ``resume``, go back to the kept model of this update.
            config: the configuration to write to ``out``; by default it is made from the arguments.
            labels: ``scenario``, ``method`` and ``seed`` as summaries and reports name them.
            observer: who is shown every record, as in ``Records``; ``open_sinks`` makes some.

        Raises ``RunError`` if the run cannot continue.
        """
        run = Run(
            updates=num_updates,
            evaluate_every=evaluate_every,
            target=target,
            target_stops=target_stops,
            wall_budget=wall_budget,
            seed=self.seed,
            keep_models=keep_models,
            roll_back=roll_back,
            arithmetic=self.arithmetic,
        )
        require_arithmetic(run.arithmetic)
        told = RunLog()
        records = Records(
            out=out,
            resume=resume,
            change=change,
            back_to=back_to,
            config=config,
            labels=labels,
            observer=[*as_observers(observer), told],
        )
        model = FlatModel(copy.deepcopy(self.model))
        model.module.load_state_dict(initial_arrays.to_torch_state_dict())
        with ExitStack() as stack:
            stack.enter_context(torch_threads())
            stack.enter_context(json_handlers(log))
            journal = self._open_journal(records, run)
            stack.callback(journal.close)
            if journal.is_finished:
                return _finished_result(model, journal)
            judge = _judge(evaluate_fn)
            session = Session(
                self.method, self.training, run, model, journal, judge, lower_is_better=lower_is_better
            )
            return self._train(grid, session, journal, told, train_config or ConfigRecord())

    def _open_journal(self, records: Records, run: Run) -> Journal:
        """Open the run's directory, if any; what it holds is by default made from the server's settings."""
        described = {
            "method_name": self.method_name,
            "method": to_tree(self.method),
            "training": to_tree(self.training),
            "run": to_tree(run),
        }
        return Journal(
            records, described, {"scenario": "flower", "method": self.method_name, "seed": self.seed}
        )

    def _train(
        self, grid: Grid, session: Session, journal: Journal, told: RunLog, train_config: ConfigRecord
    ) -> FlowerResult:
        """Absorb updates until the run ends, and write its summary."""
        if self.trusted is not None and self.method.needs_trusted:
            session.trusted = TrustedTrainer(
                copy.deepcopy(self.model),
                self.trusted.loss,
                self.trusted.examples,
                self.method.embedding,
                self.training,
                self.seed,
            ).update
        journal.attach(session)
        session.kept = journal.kept_models(session.run.keep_models)
        deployment = Deployment(grid, session, self.policy, train_config, journal, self.task)
        _announce(session, self.method_name, journal)
        told.begin(session)
        scores = deployment.run()
        per_client = [scores.get(client) for client in range(max(scores) + 1)] if scores else None
        summary = journal.conclude(session, per_client)
        log.info("finished: %s", _in_words(summary, journal))
        return flower_result(session.model, journal.records, scores)


def _finished_result(model: FlatModel, journal: Journal) -> FlowerResult:
    """Return the result of a run that its directory holds."""
    summary = journal.load_finished(model)
    log.info("nothing to do, the run has finished: %s", _in_words(summary, journal))
    known = summary["per_client"] or []
    scores = {client: score for client, score in enumerate(known) if score is not None}
    return flower_result(model, journal.records, scores)


def _announce(session: Session, method: str, journal: Journal) -> None:
    """Say in the log that a run starts, or after which update it continues."""
    done, wanted = session.state.updates, session.run.updates
    where = "no files" if journal.directory is None else f"files in {journal.directory.path}"
    if done:
        log.info("resuming %s after update %s of %s, %s", method, done, wanted, where)
    else:
        log.info("starting %s: %s updates, %s parameters, %s", method, wanted, session.model.size, where)
    for caution in session.cautions:
        log.warning("%s", caution)


def _in_words(summary: Summary, journal: Journal) -> str:
    """Return the most important of a summary as one line."""
    known = [f"{summary['updates']} updates"]
    if summary["ended"] != "updates":
        known.append(f"ended by {summary['ended']}")
    if summary.get("best") is not None:
        known.append(f"best {summary['metric']} {summary['best']:.4f}")
    known.append(f"{summary['failed']} failed and {summary['rejected']} rejected jobs")
    if journal.directory is not None:
        known.append(f"files in {journal.directory.path}")
    return ", ".join(known)


def _judge(evaluate: Evaluate | None) -> Judge:
    """Return an app's evaluation function in the form that the session calls."""

    def judge(updates: int, model: FlatModel) -> dict[str, float]:
        found = None if evaluate is None else evaluate(updates, array_record(model.named_tensors()))
        scores = {name: value for name, value in (found or {}).items() if isinstance(value, (int, float))}
        if scores:
            log.info("evaluation at update %s: %s", updates, scores)
        return {name: float(value) for name, value in scores.items()}

    return judge
