"""ChestX-ray8 (Wang et al. 2017): which of 8 conditions a chest X-ray shows, partitioned by patient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.metrics import Metric
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.tasks.data import split_examples
from asyncmanifold.tasks.npz import Arrays, check_images, check_integers, read_npz
from asyncmanifold.tasks.partitions import draw_subset, hold_out_groups, split_by_group
from asyncmanifold.tasks.shufflenet import ShuffleNet
from asyncmanifold.tasks.task import Task

STORED_SIZE = 128
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
"""ImageNet's mean and deviation, which published weights expect."""


@dataclass(frozen=True, kw_only=True)
class Cxr8:
    """The X-rays, partitioned by whole patients into clients, test set and validation sets.

    Arguments:
        data: an .npz file with images (N, 128, 128), labels (N, conditions; 0 or 1) and patient_id.
        weights: a .safetensors file of published ImageNet weights to start from.
        clients: how many clients share the patients.
        conditions: the number of label columns to use, from the first.
        image_size: smaller images are made by averaging squares of pixels.
        width: the published width of the ShuffleNet: ``"x0.5"``, ``"x1.0"`` or ``"x1.5"``.
        max_examples: use a random subset of this size, the test set included.
        test_fraction: the share of X-rays, by whole patients, that the global model is evaluated on.
        validation_fraction: the share of a client's X-rays, by whole patients, held out for fairness and
            tuning.
    """

    data: str | None = None
    weights: str | None = None
    clients: int = 30
    conditions: int = 8
    image_size: int = STORED_SIZE
    width: Literal["x0.5", "x1.0", "x1.5"] = "x1.5"
    max_examples: int | None = None
    test_fraction: float = 0.2
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        check(self, **dict.fromkeys(("clients", "conditions", "max_examples"), "at least 1"))
        check(self, image_size="one of 16, 32, 64, 128", width="'x0.5', 'x1.0' or 'x1.5'")
        check(self, **dict.fromkeys(("test_fraction", "validation_fraction"), "above 0 and below 1"))

    @property
    def caution(self) -> str | None:
        """What a reader of the results has to know: random weights are not where the paper starts."""
        if self.weights is not None:
            return None
        return "cxr8 starts from random weights, the paper from ImageNet's: --set weights=FILE.safetensors"

    def build(self, seed: int) -> Task:
        """Return the task; the same seed gives the same split."""
        if self.data is None:
            raise InputError("cxr8 needs a data file: give --data PATH")
        if find_spec("torchmetrics") is None:
            raise InputError("cxr8 needs the extra 'data': pip install 'asyncmanifold[data]'")
        weights = {} if self.weights is None else read_weights(self.weights, self.width)
        random = derive(seed, Purpose.PARTITION)
        records = _read(self.data, self.conditions)
        kept = draw_subset(self.max_examples, np.arange(len(records["images"])), random)
        inputs = torch.from_numpy(records["images"]).unsqueeze(1)
        targets = torch.from_numpy(records["labels"][:, : self.conditions].astype(np.float32))
        patients = records["patient_id"][kept]
        tested, rest = hold_out_groups(patients, self.test_fraction, random)
        cut = []
        for client, part in enumerate(split_by_group(patients[rest], self.clients, seed)):
            rows = rest[part]
            held_out, trained = hold_out_groups(patients[rows], self.validation_fraction, random)
            if len(trained) < 2:
                raise InputError(
                    f"client {client} has {len(trained)} X-ray to train on, must have 2: fewer clients, more "
                    f"examples or a smaller validation_fraction is needed"
                )
            cut.append((kept[rows[held_out]], kept[rows[trained]]))
        return Task(
            model=partial(make_model, self.conditions, self.width, weights),
            loss=nn.functional.binary_cross_entropy_with_logits,
            metrics=metrics_of(condition_names(self.data, self.conditions)),
            **split_examples(inputs, targets, cut, kept[tested], partial(normalise_images, self.image_size)),
        )


def make_model(conditions: int, width: str, weights: dict[str, Tensor]) -> ShuffleNet:
    """Return a ShuffleNet that starts from ``weights``, if given, except its last layer."""
    model = ShuffleNet(conditions, width)
    model.load_state_dict(model.state_dict() | weights)
    return model


def read_weights(path: str, width: str) -> dict[str, Tensor]:
    """Return published weights without the last layer; any error is an ``InputError`` of one line."""
    if not path.endswith(".safetensors"):
        raise InputError(f"{path}: weights must be a .safetensors file (a .pth file has to be converted)")
    try:
        with Path(path).open("rb"):  # open's errors say why, safetensors' do not
            weights = load_file(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or 'cannot be read'}") from error
    except SafetensorError as error:
        raise InputError(f"{path}: not a .safetensors file, or cut off") from error
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("fc.")}
    expected = ShuffleNet(1, width).state_dict()
    for name, own in expected.items():
        if name.startswith("fc.") or (name.endswith("num_batches_tracked") and name not in body):
            continue
        if name not in body:
            raise InputError(f"{path}: no tensor {name!r}, must be weights of ShuffleNetV2 {width}")
        if body[name].shape != own.shape:
            shapes = f"{tuple(body[name].shape)}, must be {tuple(own.shape)}"
            raise InputError(f"{path}: tensor {name!r} is {shapes} as in ShuffleNetV2 {width}")
    if unknown := sorted(body.keys() - expected.keys()):
        raise InputError(f"{path}: tensor {unknown[0]!r} is not one of ShuffleNetV2 {width}")
    return body


def normalise_images(size: int, images: Tensor) -> Tensor:
    """Return images of bytes with three channels, normalised as ImageNet's and averaged down to ``size``."""
    values = images.to(torch.float32).div_(255.0)
    if (factor := images.shape[-1] // size) > 1:
        values = nn.functional.avg_pool2d(values, factor)
    return values.sub(MEAN).div_(DEVIATION)


class _OverConditions:
    """A score of one condition, or the average over conditions that occur in some examples but not in all.

    NaN if there is no such condition, or if an output is not finite.
    """

    higher_is_better = True
    plot_upper_bound = 1.0
    SCORE: str
    """The name of the score in torchmetrics."""

    def __init__(self, condition: int | None = None) -> None:
        self._chosen = slice(None) if condition is None else slice(condition, condition + 1)
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch of logits and of zeros and ones, both (N, conditions)."""
        self._outputs.append(outputs[:, self._chosen].detach().to(torch.float64))
        self._targets.append(targets[:, self._chosen].to(torch.int64))

    def compute(self) -> float:
        """Return the average over conditions so far."""
        if not self._outputs:
            return float("nan")
        outputs, targets = torch.cat(self._outputs), torch.cat(self._targets)
        if not outputs.isfinite().all():
            return float("nan")
        pairs = zip(outputs.unbind(1), targets.unbind(1), strict=True)
        score = getattr(import_module("torchmetrics.functional.classification"), self.SCORE)
        scores = [
            float(score(_ranks(logits), found)) for logits, found in pairs if 0 < found.sum() < len(found)
        ]
        return sum(scores) / len(scores) if scores else float("nan")


def _ranks(logits: Tensor) -> Tensor:
    """Return numbers in [0, 1] in the same order, equal only where the logits are.

    torchmetrics turns logits into probabilities, which round to 1 above a logit of about 37.
    """
    values, places = torch.unique(logits, return_inverse=True)
    return places.double() / max(1, len(values) - 1)


class AUROC(_OverConditions):
    """The mean area under the ROC curve."""

    SCORE = "binary_auroc"


class AUPRC(_OverConditions):
    """The mean area under the precision-recall curve, as average precision."""

    SCORE = "binary_average_precision"


def metrics_of(conditions: Sequence[str]) -> dict[str, Callable[[], Metric]]:
    """Return both metrics, over all conditions and for each condition."""
    metrics: dict[str, Callable[[], Metric]] = {"auroc": AUROC, "auprc": AUPRC}
    for name, kind in (("auroc", AUROC), ("auprc", AUPRC)):
        metrics |= {f"{name} {condition}": partial(kind, i) for i, condition in enumerate(conditions)}
    return metrics


def condition_names(path: str, conditions: int) -> list[str]:
    """Return the names of the conditions in the file, or their numbers if it has none."""
    try:
        names = read_npz(path, ("label_names",))["label_names"]
    except ValueError:
        return [str(number) for number in range(1, conditions + 1)]
    return [str(name) for name in names[:conditions]]


def _read(path: str, conditions: int) -> Arrays:
    records = read_npz(path, ("images", "labels", "patient_id"))
    check_images(path, records["images"].dtype, records["images"].shape, STORED_SIZE)
    check_integers(path, "labels", records["labels"], dimensions=2, highest=1)
    if (columns := records["labels"].shape[1]) < conditions:
        raise InputError(
            f"{path}: record 'labels' has {columns} columns, must have {conditions}, the conditions"
        )
    check_integers(path, "patient_id", records["patient_id"])
    return records
