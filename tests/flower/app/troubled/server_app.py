"""The example's server, unchanged."""

from asyncmanifold_app.server_app import app

from troubled import own_parts

__all__ = ["app", "own_parts"]
