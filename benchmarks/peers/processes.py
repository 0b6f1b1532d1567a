"""CPU time and memory of a process with all that it started, from Linux's /proc."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TICK = 1.0 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    number: int
    parent: int
    cpu_seconds: float
    """User and system time of its own and of children that it has waited for, in steps of a hundredth."""
    resident_bytes: int
    """Memory in use now; pages that processes share count for each of them."""


def cpu_seconds() -> float:
    """Return the CPU time, user and system, of this process and all that it ever started."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ended = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return ended + sum(process.cpu_seconds for process in descendants(os.getpid()))


def resident_bytes(root: int) -> int:
    """Return the memory that a process and its descendants have in use now."""
    own = [process.resident_bytes for process in _processes() if process.number == root]
    return sum(own) + sum(process.resident_bytes for process in descendants(root))


def descendants(root: int) -> list[Process]:
    """Return the living children of a process, their children, and so on."""
    children: dict[int, list[Process]] = {}
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, []))
    for process in found:  # the list grows as it is walked
        found += children.get(process.number, [])
    return found


def _processes() -> Iterator[Process]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:  # it has just ended
                continue
            yield parse_stat(stat)


def parse_stat(stat: str) -> Process:
    """Read a line of /proc/…/stat; the second field is a name in brackets that may hold anything."""
    number, _, rest = stat.partition(" ")
    fields = rest.rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    return Process(int(number), int(fields[1]), ticks * TICK, int(fields[21]) * PAGE)
