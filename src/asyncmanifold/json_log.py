"""Logs as JSON, one object per line, for programs that collect them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

VARIABLE = "ASYNCMANIFOLD_LOG_FORMAT"
"""The environment variable that asks for JSON; ``--log-format json`` sets it, for workers too."""


def is_json_wanted() -> bool:
    """Return whether logs are to be JSON."""
    return os.environ.get(VARIABLE) == "json"


def json_line(level: str, message: str, **facts: Any) -> str:
    """Return one line of a log.

    >>> json.loads(json_line("info", "3 of 9", run="one"))["message"]
    '3 of 9'
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level, "message": message, **facts})


class JsonFormatter(logging.Formatter):
    """Formats a record of Python's logging as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback is one of its strings."""
        facts: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json_line(record.levelname.lower(), record.getMessage(), **facts)


@contextmanager
def json_handlers(logger: logging.Logger) -> Iterator[None]:
    """Let a logger write JSON within a block, if that is wanted.

    Flower's own handler formats without a formatter, so that its method has to be replaced.
    """
    handlers = list(logger.handlers) if is_json_wanted() else []
    for handler in handlers:
        vars(handler)["format"] = JsonFormatter().format
    try:
        yield
    finally:
        for handler in handlers:
            del vars(handler)["format"]
