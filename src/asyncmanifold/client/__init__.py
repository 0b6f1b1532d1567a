"""Local training of a point or a curve."""

from asyncmanifold.client.training import LocalTraining, NonFiniteLoss, Trainer

__all__ = ["LocalTraining", "NonFiniteLoss", "Trainer"]
