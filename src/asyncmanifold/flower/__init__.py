"""Asynchronous training on stock Flower: a server for a ServerApp, two functions for a ClientApp."""

from asyncmanifold.client.trusted_training import TrustedExamples
from asyncmanifold.flower.async_server import AsyncServer
from asyncmanifold.flower.policy import Policy
from asyncmanifold.flower.replies import evaluate_reply, train_reply

__all__ = ["AsyncServer", "Policy", "TrustedExamples", "evaluate_reply", "train_reply"]
