"""Asynchronous training on stock Flower: a server for a ServerApp, two functions for a ClientApp."""

from asyncmanifold.flower.client import evaluate_reply, train_reply
from asyncmanifold.flower.policy import Policy
from asyncmanifold.flower.server import AsyncServer

__all__ = ["AsyncServer", "Policy", "evaluate_reply", "train_reply"]
