"""Parameters on a manifold, if geoopt is installed."""

from __future__ import annotations

from torch import Tensor, nn

from asyncmanifold.tasks.optional import import_optional


def make_parameter(start: Tensor, manifold: str | None) -> nn.Parameter:
    """Return a parameter on one of geoopt's manifolds, or a plain one."""
    if manifold is None:
        return nn.Parameter(start)
    geoopt = import_optional("geoopt", "a curved space", extra="curved")
    return geoopt.ManifoldParameter(start, manifold=getattr(geoopt, manifold)())
