"""The example's server, unchanged."""

from asyncmanifold_app.server_app import app

__all__ = ["app"]
