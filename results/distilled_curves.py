"""Curves for the search that are trained otherwise: pulled towards the global model's behaviour."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from asyncmanifold import Job, Update
from asyncmanifold.client.job_steps import TrainingStep
from asyncmanifold.client.training import Loss, Trainer
from asyncmanifold.execution import training_worker
from asyncmanifold.geometry.paths import Spot
from asyncmanifold.tasks.data import Data
from asyncmanifold.vectors import FlatModel


class DistillingTrainer(Trainer):
    """The loss is (1 − p) ℓ(w) + p ℓ(w, what the model at Θ^t says).

    ℓ is the cross-entropy of class scores, or of labels. Along a curve p = pull (1 − s), at the end point
    p = end_pull. A step costs a forward pass more.
    """

    pull = end_pull = 0.0

    def __init__(self, module: nn.Module, loss: Loss, *others: Any) -> None:
        self._teacher, self._from_labels = FlatModel(deepcopy(module).eval()), loss
        super().__init__(module, self._mixed_loss, *others)

    def train(self, job: Job, data: Data, out: Tensor | None = None) -> Update:
        self._teacher.load(job.theta, job.statistics)
        return super().train(job, data, out)

    def _take_step(self, step: TrainingStep, s: Spot) -> Tensor:
        self._share = self.pull * (1.0 - s) if step.along_curve else self.end_pull
        return super()._take_step(step, s)

    def _outputs(self, inputs: Any) -> Any:
        self._inputs = inputs
        return super()._outputs(inputs)

    def _mixed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self._from_labels(outputs, targets)
        if self._share == 0.0:
            return loss
        with torch.no_grad():
            said = self._teacher.outputs(self._inputs)
        if targets.is_floating_point():  # several labels, each present or not
            return torch.lerp(loss, self._from_labels(outputs, said.sigmoid()), self._share)
        classes = outputs.shape[-1]
        pulled = cross_entropy(outputs.reshape(-1, classes), said.reshape(-1, classes).softmax(dim=-1))
        return torch.lerp(loss, pulled, self._share)


def distill(pull: float, end_pull: float) -> None:
    """Train all jobs of this process so; with zeros, as usual."""
    DistillingTrainer.pull, DistillingTrainer.end_pull = pull, end_pull
    training_worker.Trainer = DistillingTrainer if pull or end_pull else Trainer
