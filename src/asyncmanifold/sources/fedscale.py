"""Turn FedScale's device traces into a file that ``latency = { name = "devices" }`` reads.

FedScale has two dictionaries by client: ``client_device_capacity`` with the milliseconds that a model takes
for one sample (``computation``) and kilobits per second (``communication``), and ``client_behave_trace`` with
the seconds at which a device becomes ``active`` and ``inactive``, which repeat after ``finish_time``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, TypeGuard

from asyncmanifold.errors import InputError
from asyncmanifold.files import replacing
from asyncmanifold.sources.input_files import Show
from asyncmanifold.sources.plain_pickle import read_plain_pickle

CAPACITY, BEHAVIOUR = "client_device_capacity", "client_behave_trace"
BYTES_PER_KILOBIT = 125.0
Entry = dict[str, Any]


def find_traces(folder: Path) -> dict[str, Path]:
    """Return FedScale's files in a folder by their usual names, as pickles or as JSON."""
    found = {}
    for name in (CAPACITY, BEHAVIOUR):
        for file in (folder / name, folder / f"{name}.pkl", folder / f"{name}.json"):
            if file.is_file():
                found[name] = file
    return found


def write_devices(files: Mapping[str, Path], out: Path, show: Show) -> str:
    """Write one line for each client of the behaviour trace, or of the capacities without one."""
    capacities = list(_capacities(files[CAPACITY])) if CAPACITY in files else [{}]
    behaviours = list(_behaviours(files[BEHAVIOUR])) if BEHAVIOUR in files else [{}] * len(capacities)
    count = max(1, len(behaviours))
    with replacing(out) as place, place.open("w", encoding="utf-8") as file:
        pairs = zip(islice(cycle(capacities), count), behaviours, strict=True)
        for number, (capacity, behaviour) in enumerate(pairs, start=1):
            file.write(json.dumps({**capacity, **behaviour}) + "\n")
            if number % 1000 == 0:
                show(number, count)
    return f"{count} devices, {'with' if BEHAVIOUR in files else 'without'} times of availability"


def _capacities(path: Path) -> Iterator[Entry]:
    """Yield each client's speed, as a multiple of the median's, and bytes per second."""
    entries = _entries(path)
    numbers = [
        [_positive(entry, name, f"{path}, client {client}") for name in ("computation", "communication")]
        for client, entry in entries.items()
    ]
    normal = median(computation for computation, _ in numbers)
    for computation, communication in numbers:
        rate = BYTES_PER_KILOBIT * communication
        yield {"speed": normal / computation, "up": rate, "down": rate}


def _behaviours(path: Path) -> Iterator[Entry]:
    """Yield each client's intervals of availability; those that are empty or beyond the end are left out."""
    for client, entry in _entries(path).items():
        where = f"{path}, client {client}"
        period = _positive(entry, "finish_time", where)
        active, inactive = _times(entry, "active", where), _times(entry, "inactive", where)
        if len(active) != len(inactive):
            raise InputError(f"{where}: {len(active)} times in active, {len(inactive)} in inactive")
        spans = ([max(0.0, start), min(end, period)] for start, end in zip(active, inactive, strict=True))
        yield {"available": [span for span in spans if span[0] < span[1]], "period": period}


def _entries(path: Path) -> Mapping[Any, Mapping[str, Any]]:
    try:
        found = json.loads(path.read_bytes()) if path.suffix == ".json" else read_plain_pickle(path)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, InputError) else InputError(f"{path}: {error}") from error
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"{path}: must be a dictionary by client")
    if wrong := [client for client, entry in found.items() if not isinstance(entry, Mapping)]:
        raise InputError(f"{path}, client {wrong[0]}: must be a dictionary")
    return found


def _positive(entry: Mapping[str, Any], name: str, where: str) -> float:
    value = entry.get(name)
    if not _is_number(value) or not 0.0 < value < inf:
        raise InputError(f"{where}: {name} is {value!r}, must be a number above 0 and finite")
    return float(value)


def _times(entry: Mapping[str, Any], name: str, where: str) -> list[float]:
    times = entry.get(name)
    if not isinstance(times, list | tuple) or not all(_is_number(time) and abs(time) < inf for time in times):
        raise InputError(f"{where}: {name} must be a list of seconds")
    return [float(time) for time in times]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
