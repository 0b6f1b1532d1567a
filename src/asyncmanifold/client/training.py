"""Local training of a point or of a curve on any ``nn.Module`` (docs/design.md, Local training).

The trained parameters are the offsets v_1 … v_n of the free control points. Each batch draws a
position s on the curve, evaluates the plain model at w = Θ^t + Σ_k b_k(s) v_k, and the gradient of control
point k is b_k(s) times the one gradient at w: one backward pass, then a scalar times a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from asyncmanifold.client.controls import Controls, FlatControls
from asyncmanifold.client.device_data import DeviceExamples
from asyncmanifold.client.job_steps import TrainingStep, job_steps
from asyncmanifold.client.off_curve import OffCurve
from asyncmanifold.client.precision import HALF, LossScale
from asyncmanifold.client.private_gradients import PrivateGradients
from asyncmanifold.client.sampling import Sampling
from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.devices import CPU, move
from asyncmanifold.geometry.embeddings import Embedding
from asyncmanifold.geometry.paths import Spot
from asyncmanifold.seeding import Purpose, derive, global_seeds, torch_seed
from asyncmanifold.server.protocol import Job, Update
from asyncmanifold.tasks.data import Data, TensorData
from asyncmanifold.vectors import FlatModel

Loss = Callable[[Any, Any], Tensor]


class Untrainable(Exception):  # noqa: N818 - an outcome, not an error
    """A job that cannot be trained on its client's data; it is abandoned, and the run goes on."""


class NonFiniteLoss(Untrainable):
    """A client's loss became infinite or NaN."""


ONE_VALUE = "Expected more than 1 value per channel"
"""The beginning of what torch's BatchNorm says of a batch of a single example."""


class Trainer(OffCurve):
    """Trains jobs one after another on one module, whose memory is reused."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        embedding: Embedding,
        settings: LocalTraining,
        seed: int,
        device: torch.device = CPU,
    ) -> None:
        """Modify ``module`` in place and move it to ``device``; every job brings its own weights."""
        self._model = FlatModel(module, device)
        self._device, self._examples = device, DeviceExamples(device)
        self._half = HALF.get(settings.precision)
        self._scale = LossScale() if settings.precision == "fp16" else None
        if settings.compile:
            module.compile()
        self._loss, self._embedding, self._settings, self._seed = loss, embedding, settings, seed
        self.size = self._model.size
        self._controls: Controls
        if self._model.space.is_flat:
            self._controls = FlatControls(self._model, embedding, settings)
        else:
            from asyncmanifold.client.curved import CurvedControls

            self._controls = CurvedControls(self._model, embedding, settings)
        self._sampling = Sampling(embedding, self._controls)
        self._private: PrivateGradients | None = None
        if (privacy := settings.example_privacy) is not None:
            self._private = PrivateGradients(self._model, loss, privacy, settings.batch_size)

    def train(self, job: Job, data: Data, out: Tensor | None = None) -> Update:
        """Return what the client of ``job`` learned; its offsets are written to ``out`` if given.

        Raises ``Untrainable`` if training diverges, or is not possible with the data. The result depends
        only on the job, the data and the seed, and is on the CPU.
        """
        started = perf_counter()
        result = torch.empty(self._embedding.points, self.size) if out is None else out
        is_here = self._device.type == "cpu"
        offsets = result if is_here else torch.empty_like(result, device=self._device)
        self._enter(job)
        self._controls.begin(move(job.theta, self._device), offsets)
        if self._scale is not None:
            self._scale.reset()
        self._model.write_statistics(job.statistics)
        self._model.module.train()
        random = derive(self._seed, Purpose.TRAINING, job.client, job.number)
        losses: list[float] = []
        waiting: list[Tensor] = []
        examples = self._examples.of(data)
        seeds = torch_seed(derive(self._seed, Purpose.LAYERS, job.client, job.number), self._device)
        with seeds, self._example_seeds(job, data):
            for step in job_steps(job, len(data), self._settings, random):
                if step.starts_curve:
                    self._controls.start_curve()
                    self._sampling.begin(step.left)
                s = self._sampling.draw(random) if step.along_curve else self._embedding.end
                if self._private is not None:
                    drawn = self._private.draw(len(data))
                    self._batches = [self._set_memory_format(examples.batch(drawn))] if len(drawn) else []
                    self._take_step(step, s)
                    continue
                self._batches = [self._set_memory_format(examples.batch(indices)) for indices in step.group]
                self._shares = step.shares
                waiting.append(self._take_step(step, s))
                if is_here or step.ends_epoch:  # a device is waited for once per epoch
                    losses += _read_losses(waiting, step.epoch)
        self._controls.finish()
        if not is_here:
            result.copy_(offsets)
        return Update(
            client=job.client,
            version=job.version,
            offsets=result,
            statistics=self._model.read_statistics(),
            loss=sum(losses) / len(losses) if losses else None,
            seconds=perf_counter() - started,
        )

    def _example_seeds(self, job: Job, data: Data) -> AbstractContextManager[None]:
        """Seed the global generators that examples may be made with; rows of tensors use none."""
        if isinstance(data, TensorData):
            return nullcontext()
        return global_seeds(derive(self._seed, Purpose.EXAMPLES, job.client, job.number))

    def gradient(self) -> Tensor:
        """Return the gradient of the batch's loss at the model's current position."""
        self._backpropagate()
        return self._model.take_gradient()

    def _take_step(self, step: TrainingStep, s: Spot) -> Tensor:
        """Take one optimiser step at γ(s), or beside it in a tunnel, and return the loss at that position."""
        self._controls.place(s)
        if step.along_curve:
            self._embedding.leave(self)
        value = self._backpropagate()
        if self._is_sound:
            self._controls.learn(step.factor)
        return value

    def _set_memory_format(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        inputs, targets = batch
        if self._settings.channels_last and isinstance(inputs, Tensor) and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        return inputs, targets

    def _backpropagate(self) -> Tensor:
        """Return the loss of the step's batches, and leave its gradient in the model.

        A private gradient has no loss: it would be a release too.
        """
        if self._private is not None:
            self._private.leave(self._batches[0] if self._batches else None)
            self._is_sound = True
            return torch.zeros(())
        self._model.clear_gradients()
        values = []
        for (inputs, targets), share in zip(self._batches, self._shares, strict=True):
            with torch.autocast(self._device.type, self._half) if self._half else nullcontext():
                value = self._loss(self._outputs(inputs), targets)
            if share != 1.0:
                value = value * share
            values.append(value.detach())
            differentiated = value if self._scale is None else self._scale.scaled(value)
            differentiated.backward()  # type: ignore[no-untyped-call]
        self._is_sound = self._scale is None or self._scale.unscale(self._model)
        return values[0] if len(values) == 1 else torch.stack(values).sum()

    def _outputs(self, inputs: Any) -> Any:
        try:
            return self._model.outputs(inputs)
        except ValueError as problem:
            if not str(problem).startswith(ONE_VALUE):
                raise
            raise Untrainable("a batch of one example, which BatchNorm cannot be trained on") from problem


def _read_losses(waiting: list[Tensor], epoch: int) -> list[float]:
    """Return losses as numbers, emptying the list; raise ``NonFiniteLoss`` if one is not finite."""
    losses = [value.item() for value in waiting[:1]] if len(waiting) < 2 else torch.stack(waiting).tolist()
    waiting.clear()
    for value in losses:
        if not isfinite(value):
            raise NonFiniteLoss(f"loss became {value} in epoch {epoch + 1}")
    return losses
