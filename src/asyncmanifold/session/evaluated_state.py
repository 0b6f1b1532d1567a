"""How far a run is, what its models score, and when it ends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from asyncmanifold.metrics import reaches
from asyncmanifold.server.methods import Method
from asyncmanifold.session.absorbing_state import AbsorbingState
from asyncmanifold.session.best_model import BestModel, BestSoFar, replace_non_finite
from asyncmanifold.session.kept_models import KeptModels
from asyncmanifold.session.privacy_account import PrivacyAccount
from asyncmanifold.session.run import Run
from asyncmanifold.session.trace import TraceWriter
from asyncmanifold.vectors import FlatModel

Judge = Callable[[int, FlatModel], Mapping[str, float]]
"""Takes the number of updates and the model; returns its scores, none if there is no evaluation."""


class EvaluatedState(AbsorbingState):
    """The state of a run, the scores of its models, and whether it is over."""

    def __init__(
        self,
        method: Method,
        run: Run,
        model: FlatModel,
        privacy: PrivacyAccount,
        trace: TraceWriter,
        judge: Judge,
        metrics: Sequence[str] = (),
        lower_is_better: Collection[str] = (),
        glance: Judge | None = None,
    ) -> None:
        """Start before any evaluation; the arguments are those of ``Session``."""
        super().__init__(method, run, model, privacy)
        self.scores = BestSoFar(metrics, lower_is_better)
        self.kept = KeptModels(None, run.keep_models)
        self.oldest = 0
        """The first version that jobs may start from: those before were taken back."""
        self.must_checkpoint = False
        self.ended: str | None = None
        """Why the run ended before all updates were accepted."""
        self._evaluated = -1  # the number of updates at the last evaluation
        self._trace, self._judge, self._glance = trace, judge, glance

    @property
    def best(self) -> BestModel | None:
        """The best model among those evaluated."""
        return self.scores.best

    @property
    def metrics(self) -> list[str]:
        """The names of the scores; the first counts."""
        return self.scores.names

    @property
    def is_finished(self) -> bool:
        """Whether all updates have been accepted, or the run has ended before that."""
        return self.ended is not None or self.state.updates >= self.run.updates

    @property
    def remaining(self) -> int:
        """How many updates are still to be accepted."""
        return self.run.updates - self.state.updates

    @property
    def is_evaluation_due(self) -> bool:
        """Whether the model is to be evaluated after the update just accepted."""
        return self.is_finished or self.state.updates % self.run.evaluate_every == 0

    def end(self, reason: str) -> None:
        """End the run with the updates accepted so far."""
        self.ended = self.ended or reason

    def is_over(self, time: float) -> bool:
        """Return whether an arrival at this virtual time comes too late for the run's budgets."""
        if self.run.time_budget is not None and time > self.run.time_budget:
            self.end("time budget")
        elif self.run.wall_budget is not None and self.seconds >= self.run.wall_budget:
            self.end("wall budget")
        return self.ended is not None

    def evaluate_last(self, time: float) -> None:
        """Evaluate the final model, unless it has been."""
        if self._evaluated != self.state.updates:
            self.evaluate(time)

    def copy_model(self) -> nn.Module:
        """Return a copy of the model that would be returned now."""
        self.model.load(*self.state.returned())
        return copy.deepcopy(self.model.module).eval()

    def write(self, kind: str, **facts: Any) -> None:
        """Record an event that only the engine knows."""
        self._trace.write({"kind": kind, **facts})

    def evaluate(self, time: float) -> None:
        """Evaluate the model that would be returned now, keep it if it is the best, and record the scores."""
        self.model.load(*self.state.returned())
        scores = self._judge(self.state.updates, self.model)
        self._evaluated = self.state.updates
        if not scores:
            return
        self._include(scores)
        self.write(
            "evaluation",
            update=self.state.updates,
            version=self.state.version,
            time=time,
            **replace_non_finite(scores),
            wall_seconds=self.seconds,
        )
        if not self.run.keep_models:
            return
        if problem := self.scores.explain_collapse(scores, self.state):
            self.write("exploded", update=self.state.updates, time=time, reason=problem)
            if self.run.roll_back and self.kept.updates:
                self.go_back(time)
        else:
            self.kept.keep(self.state, self.epochs)

    def _include(self, scores: Mapping[str, Any]) -> None:
        """Keep the model if its scores are the best; end the run if they reach a target that stops it."""
        self.scores.include(scores, self.state)
        score, target = scores[self.metrics[0]], self.run.target
        if not self.run.target_stops or target is None or score is None:
            return
        if self._reaches(score, target):
            self.end("target")

    def go_back(self, time: float, to: int | None = None) -> None:
        """Continue from the kept model of update ``to``, or from the last one kept, as a new version.

        The updates since stay counted, so that no number is used twice. Jobs that started from models since
        are refused when they come back. The engine must write a checkpoint before the next update.
        """
        to = self._take_kept(to)
        self.must_checkpoint = True
        self.write("back", update=self.state.updates, version=self.state.version, time=time, to=to)

    def _take_kept(self, to: int | None) -> int:
        to, kept, self.epochs = self.kept.load(to)
        kept = replace(kept, **{name: self.place(value) for name, value in vars(kept).items()})
        self.state = replace(kept, version=self.state.version + 1, updates=self.state.updates)
        self.oldest, self._outside = self.state.version, {}
        return to

    def evaluate_if_due(self, time: float) -> None:
        """Evaluate after every ``evaluate_every`` updates, at the end, and where the target seems reached."""
        if self.is_evaluation_due or self._seems_to_reach_target():
            self.evaluate(time)

    def _seems_to_reach_target(self) -> bool:
        """Whether a glance at some examples says that the target is reached, if no evaluation has so far."""
        run = self.run
        if run.target is None or run.target_every is None or self._glance is None:
            return False
        is_reached = self.best is not None and self._reaches(self.best.score, run.target)
        if is_reached or self.state.updates % run.target_every:
            return False
        self.model.load(*self.state.returned())
        return self._reaches(self._glance(self.state.updates, self.model)[self.metrics[0]], run.target)

    def _reaches(self, score: float, target: float) -> bool:
        return reaches(score, target, lower_is_better=self.metrics[0] in self.scores.lower_is_better)
