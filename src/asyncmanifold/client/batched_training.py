"""Several jobs trained as one program: their models are the rows of a matrix, and ``vmap`` runs over them.

A small model's step is mostly the overhead of calling torch. Here all jobs that have a step left share the
calls of a forward and a backward pass; everything else is done as ``Trainer`` does it, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from asyncmanifold.client.batched_program import BatchedProgram, JobBatch
from asyncmanifold.client.controls import FlatControls
from asyncmanifold.client.job_steps import TrainingStep, count_steps, job_steps
from asyncmanifold.client.off_curve import OffCurve
from asyncmanifold.client.sampling import Sampling
from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.client.training import Loss, NonFiniteLoss
from asyncmanifold.errors import InputError
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.geometry.paths import Spot
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.server.protocol import Job, Update
from asyncmanifold.tasks.data import Data
from asyncmanifold.vectors import FlatModel, Statistics


class BatchedTrainer:
    """Trains up to ``jobs`` jobs at once; the results are those of ``Trainer`` up to rounding."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        embedding: Embedding,
        settings: LocalTraining,
        seed: int,
        *,
        jobs: int,
        probe: Data,
    ) -> None:
        """Try one step on an example of ``probe``, and refuse a model that cannot be batched."""
        self._model, self._loss = FlatModel(module), loss
        self._program = BatchedProgram(module, loss)
        self.size = self._model.size
        self._shapes = [part.shape for part in self._model.parts(self._model.vector)]
        self._sizes = [shape.numel() for shape in self._shapes]
        module.train()
        self._check(settings, probe)
        self._vectors = torch.zeros(jobs, self.size)
        self._courses = [
            JobCourse(RowModel(self._model, self._vectors, row), embedding, settings, seed)
            for row in range(jobs)
        ]

    def train(
        self, jobs: Sequence[Job], data: Sequence[Data], outs: Sequence[Tensor]
    ) -> list[Update | NonFiniteLoss]:
        """Return what each job learned, or why it was abandoned; offsets are written to ``outs``."""
        started = perf_counter()
        order = sorted(
            range(len(jobs)), key=lambda place: -self._courses[0].length(jobs[place], len(data[place]))
        )
        courses = self._courses[: len(jobs)]
        for course, place in zip(courses, order, strict=True):
            course.begin(jobs[place], data[place], outs[place])
        while courses := [course for course in courses if course.advance()]:  # the longest come first
            losses, gradients = self._differentiate([course.batch for course in courses])
            for course, loss in zip(courses, losses.tolist(), strict=True):
                course.learn(loss, gradients)
            self._descend(courses, gradients)
        statistics, seconds = self._model.read_statistics(), (perf_counter() - started) / len(jobs)
        ended = {
            place: course.result(statistics, seconds)
            for course, place in zip(self._courses, order, strict=False)
        }
        return [ended[place] for place in range(len(jobs))]

    def _differentiate(self, batches: list[JobBatch]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of each of the first models on its batch, and the gradients of their parameters."""
        return self._program.differentiate(self._views(self._vectors[: len(batches)]), batches)

    def _views(self, rows: Tensor) -> list[Tensor]:
        """Return rows as views, one for each parameter: its shape, with the rows before it."""
        pieces = torch.split(rows, self._sizes, dim=1)
        return [piece.view(len(rows), *shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def _descend(self, courses: list[JobCourse], gradients: list[Tensor]) -> None:
        """Take the steps of plain SGD that jobs asked for: in one pass over all models if they are alike."""
        rates = [course.take_rate() for course in courses]
        if rates[0] is not None and rates.count(rates[0]) == len(rates):
            torch._foreach_add_(self._views(self._vectors[: len(courses)]), gradients, alpha=-rates[0])
            return
        for row, rate in enumerate(rates):
            if rate is not None:
                parts = self._model.parts(self._vectors[row])
                torch._foreach_add_(parts, [each[row] for each in gradients], alpha=-rate)

    def _check(self, settings: LocalTraining, probe: Data) -> None:
        """Refuse what cannot be batched, with the reason: what is known, and what one step shows."""
        if settings.example_privacy is not None:
            raise _refusal("example_privacy draws its own batches")
        for module in self._model.module.modules():
            if isinstance(module, _BatchNorm):
                raise _refusal("BatchNorm's statistics would be mixed")
            if isinstance(module, _DropoutNd) and module.p > 0.0:
                raise _refusal("dropout would draw other random numbers than elsewhere")
        if not self._model.space.is_flat:
            raise _refusal("it has parameters on manifolds")
        if settings.accumulate > 1 or settings.precision != "float32" or settings.compile:
            raise _refusal("with accumulate, precision or compile it is not supported")
        batch = probe.batch(torch.arange(min(2, len(probe))))
        before = self._model.read_statistics()
        self._model.clear_gradients()
        value = self._loss(self._model.outputs(batch[0]), batch[1])
        value.backward()  # type: ignore[no-untyped-call]
        expected = self._model.take_gradient()
        after = self._model.read_statistics()
        if not all(torch.equal(one, other) for one, other in zip(before, after, strict=True)):
            raise _refusal("its buffers change in training")
        self._vectors = self._model.vector.repeat(2, 1)
        try:
            losses, gradients = self._differentiate([batch, batch])
        except Exception as error:  # a model may fail in any way under vmap
            raise _refusal(str(error).split(". ")[0]) from error
        found = torch.cat([gradient.reshape(2, -1) for gradient in gradients], dim=1)
        pairs = [(losses, value.detach().expand(2)), (found, expected.expand(2, -1))]
        if not all(torch.allclose(got, want, rtol=1e-3, atol=1e-5, equal_nan=True) for got, want in pairs):
            raise _refusal("one batched step differs from a plain one")


class RowModel:
    """One job's model: a row of the matrix, with the gradients that were last found for all rows."""

    def __init__(self, model: FlatModel, vectors: Tensor, row: int) -> None:
        self.vector, self.size, self.device = vectors[row], model.size, vectors.device
        self.parts = model.parts
        self._row = row
        self.gradients: list[Tensor] = []
        self.rate: float | None = None
        """The step of plain SGD that is to be taken, together with the other rows."""

    def take_gradient(self) -> Tensor:
        """Return the gradient, which may be modified."""
        return torch.cat([gradient[self._row].reshape(-1) for gradient in self.gradients])

    def descend(self, rate: float) -> None:
        """Ask for a step of plain SGD."""
        self.rate = rate


class JobCourse(OffCurve):
    """A job on its way through its steps; it also stands for the model's surroundings on the curve."""

    def __init__(self, model: RowModel, embedding: Embedding, settings: LocalTraining, seed: int) -> None:
        self._model, self._embedding, self._settings, self._seed = model, embedding, settings, seed
        self._controls = FlatControls(model, embedding, settings)
        self._sampling = Sampling(embedding, self._controls)
        self.size = model.size

    def length(self, job: Job, examples: int) -> int:
        """Return the number of steps of a job."""
        return count_steps(job, examples, self._settings)

    def begin(self, job: Job, data: Data, out: Tensor) -> None:
        """Start a job."""
        self._enter(job)
        self._data, self._offsets = data, out
        self._losses: list[float] = []
        self._problem: NonFiniteLoss | None = None
        self._places = derive(self._seed, Purpose.TRAINING, job.client, job.number)
        self._steps: Iterator[TrainingStep] = job_steps(job, len(data), self._settings, self._places)
        self._controls.begin(job.theta, out)

    def advance(self) -> bool:
        """Go to the next step, with the model at its position and its batch at hand; False at the end.

        A job that was abandoned goes on without effect, since its row is part of the program.
        """
        step = next(self._steps, None)
        if step is None:
            return False
        self._step = step
        self.batch = self._data.batch(step.group[0])
        if self._problem is None:
            if step.starts_curve:
                self._controls.start_curve()
                self._sampling.begin(step.left)
            self._controls.place(self._draw(step))
            if step.along_curve:
                self._embedding.leave(self)
        return True

    def _draw(self, step: TrainingStep) -> Spot:
        return self._sampling.draw(self._places) if step.along_curve else self._embedding.end

    def learn(self, loss: float, gradients: list[Tensor]) -> None:
        """Take the step, given the loss and all jobs' gradients at its position, or ask for it."""
        if self._problem is not None:
            return
        if not isfinite(loss):
            self._problem = NonFiniteLoss(f"loss became {loss} in epoch {self._step.epoch + 1}")
            return
        self._losses.append(loss)
        self._model.gradients = gradients
        self._controls.learn(self._step.factor)

    def take_rate(self) -> float | None:
        """Return the rate of the step of plain SGD that was asked for, if any, once."""
        rate, self._model.rate = self._model.rate, None
        return rate

    def result(self, statistics: Statistics, seconds: float) -> Update | NonFiniteLoss:
        """Return what was learned, or why the job was abandoned."""
        if self._problem is not None:
            return self._problem
        self._controls.finish()
        loss = sum(self._losses) / len(self._losses)
        return Update(self._job.client, self._job.version, self._offsets, statistics, loss, seconds)

    def gradient(self) -> Tensor:
        """Refuse: a second pass of one job has no place in the program."""
        raise _refusal("sharpness-aware training takes a second pass")


def _refusal(reason: str) -> InputError:
    line = " ".join(reason.split())
    return InputError(f"executor 'batched' cannot train this model: {line}; use 'inline' or 'process'")
