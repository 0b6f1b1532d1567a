"""The drawing libraries of the ``report`` extra, imported when a figure is first drawn."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from asyncmanifold.errors import InputError

NEEDED = "figures need pip install 'asyncmanifold[report]' ({} is missing)"


def altair() -> Any:
    """Return Altair, which describes charts."""
    return _library("altair")


def vl_convert() -> Any:
    """Return vl-convert, which turns descriptions into SVG, PNG and the page's scripts."""
    return _library("vl_convert")


def contourpy() -> Any:
    """Return contourpy, which finds contours."""
    return _library("contourpy")


@cache
def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(NEEDED.format(name.replace("_", "-"))) from error
