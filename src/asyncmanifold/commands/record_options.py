"""Options for where else a run's figures go, and in which form it logs."""

from __future__ import annotations

import argparse
import os

from asyncmanifold.json_log import VARIABLE


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-format``."""
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default=os.environ.get(VARIABLE, "text"),
        help="progress and warnings as text, or as JSON, one object per line (default: text)",
    )


def add_sinks(parser: argparse.ArgumentParser) -> None:
    """Add ``--sink``."""
    parser.add_argument(
        "--sink",
        dest="sinks",
        metavar="NAME=PLACE",
        action="append",
        type=read_sink,
        default=[],
        help="also write the figures to tensorboard=DIR, mlflow=TRACKING_URI, wandb=PROJECT or "
        "opentelemetry=COLLECTOR_URL, each an extra of its own; may be repeated",
    )


def read_sink(text: str) -> str:
    """Return NAME=PLACE; which names there are is checked when the libraries are loaded."""
    name, separator, place = text.partition("=")
    if not (name and separator and place):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=PLACE")
    return text
