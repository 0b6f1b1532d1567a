"""Curves and surfaces in parameter space, and the embeddings that clients learn."""

from asyncmanifold.geometry.embeddings import Bezier, Embedding, Point, Tunnel
from asyncmanifold.geometry.surfaces import Disc, Patch

EMBEDDINGS: dict[str, type[Embedding]] = {
    "point": Point,
    "bezier": Bezier,
    "tunnel": Tunnel,
    "disc": Disc,
    "patch": Patch,
}

__all__ = ["EMBEDDINGS", "Bezier", "Disc", "Embedding", "Patch", "Point", "Tunnel"]
