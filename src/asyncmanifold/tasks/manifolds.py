"""Parameters on a manifold, where geoopt is installed."""

from __future__ import annotations

from importlib import import_module

from torch import Tensor, nn

from asyncmanifold.errors import InputError


def on_manifold(start: Tensor, manifold: str | None) -> nn.Parameter:
    """Return a parameter on one of geoopt's manifolds, or a plain one."""
    if manifold is None:
        return nn.Parameter(start)
    try:
        geoopt = import_module("geoopt")
    except ImportError as error:
        raise InputError(
            "a curved space needs the extra 'curved': pip install 'asyncmanifold[curved]'"
        ) from error
    parameter: nn.Parameter = geoopt.ManifoldParameter(start, manifold=getattr(geoopt, manifold)())
    return parameter
