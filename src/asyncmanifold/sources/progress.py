"""How a preparation says how far it has come."""

from collections.abc import Callable

Show = Callable[[int, int | None], None]
"""Takes how many parts are done, and of how many, if that is known: files, rows or images."""
