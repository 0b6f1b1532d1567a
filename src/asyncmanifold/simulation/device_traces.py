"""Devices: how fast they compute, send and receive, and when they can be reached; from a file, or drawn.

With devices the virtual clock counts seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from asyncmanifold.checks import check
from asyncmanifold.errors import InputError
from asyncmanifold.seeding import Purpose, derive
from asyncmanifold.simulation.availability import Availability
from asyncmanifold.simulation.schedules import Latency

DAY = 86_400.0
RATES = ("speed", "up", "down")
KEYS = (*RATES, "client", "available", "period")


@dataclass(frozen=True)
class Device:
    """What a client runs on.

    Arguments:
        speed: how many times as fast as a normal device it computes.
        up: bytes per second that it sends; infinitely many by default.
        down: bytes per second that it receives.
        availability: when it can be reached; always by default.
    """

    speed: float = 1.0
    up: float = inf
    down: float = inf
    availability: Availability | None = None


@dataclass(frozen=True)
class DeviceLatency(Latency):
    """Clients are devices: a job takes the time to receive the model, to train, and to send the update.

    Arguments:
        epoch_seconds: how long a normal device takes for an epoch over the mean client's examples.
    """

    is_in_seconds: ClassVar[bool] = True
    _: KW_ONLY
    epoch_seconds: float = 60.0

    def device(self, client: int, seed: int) -> Device:
        """Return a client's device."""
        return Device()

    def expected(self, length: float, client: int, seed: int) -> float:
        """Return the seconds of training."""
        return self.epoch_seconds * length / self.device(client, seed).speed

    def transfer(self, client: int, download: int, upload: int, seed: int) -> float:
        """Return the seconds to receive and to send so many bytes."""
        device = self.device(client, seed)
        return download / device.down + upload / device.up

    def availability(self, client: int, seed: int) -> Availability | None:
        """Return when the device can be reached."""
        return self.device(client, seed).availability


@dataclass(frozen=True)
class DeviceTraces(DeviceLatency):
    """Devices from a file with one JSON object per line and client (docs/traces.md).

    If there are more clients than lines, they start over from the first.

    Arguments:
        path: the file.
        epoch_seconds: how long a normal device takes for an epoch over the mean client's examples.

    >>> import pathlib, tempfile
    >>> from asyncmanifold import DeviceTraces
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "devices.jsonl")
    ...     _ = path.write_text('{"speed": 2.0, "up": 1000, "down": 4000, "available": [[0, 600]]}')
    ...     phones = DeviceTraces(str(path), epoch_seconds=30.0)
    >>> phones.expected(1.0, client=0, seed=0) + phones.transfer(0, download=8000, upload=3000, seed=0)
    20.0
    """

    path: str

    def __post_init__(self) -> None:
        check(self, epoch_seconds="above 0 and finite")
        _ = self._devices  # so that a bad file is an error now, not in the middle of a run

    @cached_property
    def _devices(self) -> list[Device]:
        devices = list(read_devices(Path(self.path)))
        if not devices:
            raise InputError(f"{self.path}: has no device")
        return devices

    def device(self, client: int, seed: int) -> Device:
        return self._devices[client % len(self._devices)]


def read_devices(path: Path) -> Iterator[Device]:
    """Yield the devices of a file; an ``InputError`` names the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield device_from(json.loads(line))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: {error}") from error


def device_from(entry: Any) -> Device:
    """Return the device that a line's object describes."""
    if not isinstance(entry, Mapping):
        raise InputError("must be an object")
    if unknown := [key for key in entry if key not in KEYS]:
        raise InputError(f"unknown key {unknown[0]!r} (allowed: {', '.join(KEYS)})")
    rates = {name: entry[name] for name in RATES if name in entry}
    for name, rate in rates.items():
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0.0 < rate < inf:
            raise InputError(f"{name} is {rate!r}, must be a number above 0 and finite")
    if "available" not in entry:
        return Device(**rates)
    return Device(**rates, availability=Availability.of(entry["available"], entry.get("period")))


@dataclass(frozen=True)
class SyntheticDevices(DeviceLatency):
    """Phones that differ as published measurements say, drawn from the run's seed: nothing to download.

    Speeds and bandwidths are log-normal. A device can be reached in sessions of log-normal length; more of
    them begin at night than by day. docs/traces.md names the sources of the defaults.

    Arguments:
        epoch_seconds: how long a normal device takes for an epoch over the mean client's examples.
        speed_spread: the standard deviation of the logarithm of a device's speed.
        bandwidth: the median device's bytes per second, in both directions.
        bandwidth_spread: the standard deviation of the logarithm of a device's bandwidth.
        session_seconds: the median length of a session.
        session_spread: the standard deviation of the logarithm of a session's length.
        sessions_per_day: how many sessions begin in a day, on average; 0 for devices that are always there.
        daily_swing: how many times as many sessions begin at 2 o'clock as at 14 o'clock; the clock starts at
            midnight.
        days: the number of days after which sessions repeat.

    >>> from asyncmanifold import SyntheticDevices
    >>> alike = SyntheticDevices(epoch_seconds=10.0, speed_spread=0.0, bandwidth_spread=0.0)
    >>> alike.expected(2.0, client=0, seed=0), alike.transfer(0, download=625_000, upload=625_000, seed=0)
    (20.0, 2.0)
    """

    _: KW_ONLY
    speed_spread: float = 0.6
    bandwidth: float = 625_000.0
    bandwidth_spread: float = 1.0
    session_seconds: float = 300.0
    session_spread: float = 1.32
    sessions_per_day: float = 24.0
    daily_swing: float = 4.0
    days: int = 7

    def __post_init__(self) -> None:
        check(self, epoch_seconds="above 0 and finite", bandwidth="above 0 and finite", days="at least 1")
        check(self, session_seconds="above 0 and finite", sessions_per_day="at least 0 and finite")
        check(self, daily_swing="at least 1 and finite")
        check(self, **dict.fromkeys(("speed_spread", "bandwidth_spread"), "between 0 and 10"))
        check(self, session_spread="between 0 and 10")

    @cached_property
    def _known(self) -> dict[tuple[int, int], Device]:
        return {}

    def device(self, client: int, seed: int) -> Device:
        if (client, seed) not in self._known:
            speed, rate = derive(seed, Purpose.SPEED, client).standard_normal(2)
            bandwidth = float(self.bandwidth * np.exp(self.bandwidth_spread * rate))
            self._known[client, seed] = Device(
                float(np.exp(self.speed_spread * speed)), bandwidth, bandwidth, self._sessions(client, seed)
            )
        return self._known[client, seed]

    def _sessions(self, client: int, seed: int) -> Availability | None:
        """Return a device's sessions: a Poisson process whose rate swings with the time of day."""
        if self.sessions_per_day == 0.0:
            return None
        random = derive(seed, Purpose.MEMBERSHIP, client)
        swing = (self.daily_swing - 1.0) / (self.daily_swing + 1.0)
        period = self.days * DAY
        tried = random.random(random.poisson(self.sessions_per_day * self.days * (1.0 + swing))) * period
        rate = (1.0 + swing * np.cos(2.0 * np.pi * (tried / DAY - 2.0 / 24.0))) / (1.0 + swing)
        starts = tried[random.random(len(tried)) < rate]
        lengths = self.session_seconds * np.exp(self.session_spread * random.standard_normal(len(starts)))
        ends = np.minimum(starts + lengths, period)
        return Availability.of(zip(starts.tolist(), ends.tolist(), strict=True), period)
