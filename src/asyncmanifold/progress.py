"""Progress display during a run: a live bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
from html import escape
from time import perf_counter
from typing import Any, Self

from asyncmanifold.json_log import is_json_wanted, json_line
from asyncmanifold.session.trace import Record


class Display:
    """Shows progress. This base class shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        return None

    def show(self, done: int, note: str = "", found: int = 0) -> None:
        """Show how much is ``done``; what was ``found`` done at the start does not count for the pace."""

    def say(self, line: str) -> None:
        """Show a line that stays on the screen."""


def display(title: str, total: int | None, *, quiet: bool, unit: str = "updates") -> Display:
    """Return a bar in a notebook or if standard error is a terminal, else plain lines.

    ``total`` is None if it is unknown.
    """
    if quiet:
        return Display()
    if is_json_wanted():
        return JsonLines(title, total, unit)
    if (notebook := running_notebook()) is not None:
        return NotebookBar(title, total, notebook)
    return LiveBar(title, total) if sys.stderr.isatty() else PlainLines(title, total, unit)


def is_watched() -> bool:
    """Return whether somebody sees a progress bar: in a terminal and in a notebook, but not in a pipe."""
    return sys.stderr.isatty() or running_notebook() is not None


def running_notebook() -> Any:
    """Return IPython's display module in a notebook, else None; it is never imported for this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return sys.modules.get("IPython.display")


class NotebookBar(Display):
    """A bar below a notebook's cell, which needs no widgets; lines that stay are printed above it."""

    INTERVAL = 0.2

    def __init__(self, title: str, total: int | None, notebook: Any) -> None:
        self._title, self._total, self._notebook = title, total, notebook
        self._pace = _Pace()
        self._shown = 0.0
        self._line = ""
        self._handle: Any = None

    def __enter__(self) -> Self:
        self._handle = self._notebook.display(self._notebook.HTML(""), display_id=True)
        return self

    def __exit__(self, *problem: object) -> None:
        self._handle.update(self._notebook.HTML(self._line))

    def show(self, done: int, note: str = "", found: int = 0) -> None:
        """Move the bar."""
        self._pace.reach(done, found)
        place = f"{done:,}" if self._total is None else f"{done}/{self._total}"
        filled = "" if self._total is None else f'<progress value="{done}" max="{self._total}"></progress> '
        text = escape(f"{self._title} {place} {note}{self._pace.note(self._total)}")
        self._line = f"<div>{filled}<code>{text}</code></div>"
        if perf_counter() - self._shown >= self.INTERVAL:
            self._shown = perf_counter()
            self._handle.update(self._notebook.HTML(self._line))

    def say(self, line: str) -> None:
        """Print the line."""
        print(line)


class PlainLines(Display):
    """Prints a line every few seconds, for logs."""

    INTERVAL = 5.0

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self._title = title
        self._total = total
        self._unit = unit
        self._pace = _Pace()
        self._printed = perf_counter()
        self._done = 0

    def show(self, done: int, note: str = "", found: int = 0) -> None:
        """Print a line if the last one is ``INTERVAL`` seconds old, or if all work is done."""
        self._pace.reach(done, found)
        self._done = done
        if perf_counter() - self._printed >= self.INTERVAL or done == self._total:
            self._printed = perf_counter()
            place = f"{done:,}" if self._total is None else f"{done}/{self._total}"
            self.say(f"{self._title}: {place} {self._unit}, {note}{self._pace.note(self._total)}")

    def say(self, line: str) -> None:
        """Print the line."""
        print(line, file=sys.stderr, flush=True)


class JsonLines(PlainLines):
    """Prints the same lines as JSON (``--log-format json``)."""

    def say(self, line: str) -> None:
        """Print the line."""
        kind, _, words = line.partition(": ")
        level = "warning" if kind == "warning" else "info"
        print(
            json_line(level, words if kind == "warning" else line, run=self._title, updates=self._done),
            file=sys.stderr,
            flush=True,
        )


class LiveBar(Display):
    """A moving bar with the pace and the remaining time."""

    def __init__(self, title: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._pace = _Pace()
        self._total = total
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.completed}" if total is None else "{task.completed}/{task.total}"),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._task = self._progress.add_task(title, total=total, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._progress.stop()

    def show(self, done: int, note: str = "", found: int = 0) -> None:
        """Move the bar."""
        self._pace.reach(done, found)
        self._progress.update(self._task, completed=done, note=note + self._pace.note(self._total))

    def say(self, line: str) -> None:
        """Print the line above the bar."""
        self._progress.console.print(line, highlight=False)


class RunWatcher:
    """Turns a run's records into progress messages: latest metric, staleness, warnings."""

    def __init__(self, shown: Display) -> None:
        self._display = shown
        self._score = ""
        self._staleness = 0.0
        self._seen = 0

    def __call__(self, record: Record) -> None:
        """Show one record."""
        kind = record["kind"]
        if kind == "update":
            # An exponential mean, so that only about the last thirty updates count.
            self._seen = min(30, self._seen + 1)
            self._staleness += (record["staleness"] - self._staleness) / self._seen
            self._display.show(record["update"], f"{self._score}staleness {self._staleness:.1f}, ")
        elif kind == "evaluation":
            self._score = score_note(record)
        elif kind in ("failed", "rejected"):
            self._display.say(f"client {record['client']} {kind}: {record['reason']}")
        elif kind == "control":
            self._display.say(f"control: {record['text']}")
        elif kind == "warning":
            self._display.say(f"warning: {record['reason']}")


def score_note(evaluation: Record) -> str:
    """Return the first metric of an evaluation as a short note."""
    known = ("kind", "update", "version", "time")
    name, score = next((name, score) for name, score in evaluation.items() if name not in known)
    return f"{name} {'not finite' if score is None else format(score, '.3f')}, "


class _Pace:
    """Updates per second since the first call, and the remaining time."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._done = 0
        self._rate = 0.0

    def reach(self, done: int, found: int) -> None:
        now = perf_counter()
        if self._first is None:
            self._first = (now, done - found)
        elapsed, made = now - self._first[0], done - found - self._first[1]
        self._rate = made / elapsed if elapsed > 0.02 else 0.0
        self._done = done

    def note(self, total: int | None) -> str:
        if self._rate == 0.0:
            return "…"
        left = "" if total is None else f", {_format_duration((total - self._done) / self._rate)} left"
        return f"{self._rate:.3g}/s{left}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
