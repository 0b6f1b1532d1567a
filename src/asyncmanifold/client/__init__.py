"""Local training of a point or a curve."""

from asyncmanifold.client.settings import LocalTraining
from asyncmanifold.client.training import NonFiniteLoss, Trainer

__all__ = ["LocalTraining", "NonFiniteLoss", "Trainer"]
