"""Curves in parameter space and the embeddings that clients learn."""

from asyncmanifold.geometry.embeddings import EMBEDDINGS, Bezier, Embedding, Point

__all__ = ["EMBEDDINGS", "Bezier", "Embedding", "Point"]
