"""Control of a simulation while it runs: it is then no longer a function of its configuration alone."""

from __future__ import annotations

from time import perf_counter, sleep
from typing import Any

from asyncmanifold.errors import InputError
from asyncmanifold.execution.executors import Executor
from asyncmanifold.session.control import Steward
from asyncmanifold.session.journal import Journal
from asyncmanifold.simulation.engine import Simulation

PAUSE_SECONDS = 0.1


class SimulationControl(Steward):
    """Carries out requests between two events; while the run is paused, nothing else happens."""

    def __init__(self, simulation: Simulation, executor: Executor, journal: Journal) -> None:
        super().__init__(simulation.session, journal.open_desk())
        self._simulation, self._executor, self._journal = simulation, executor, journal

    @property
    def time(self) -> float:
        return self._simulation.time

    def wait_while_paused(self) -> None:
        """Attend to requests; return when the run is to go on, or to end."""
        self.attend()
        start = perf_counter()
        while self.session.control.is_paused and not self.session.is_finished:
            sleep(PAUSE_SECONDS)
            self.attend()
        if (paused := perf_counter() - start) > PAUSE_SECONDS:
            self.session.set_clock_back(paused)

    def find_client(self, name: str) -> tuple[int, dict[str, Any]]:
        clients = self._simulation.clients
        if not name.isdecimal() or int(name) >= clients:
            raise InputError(f"{name}: no such client, must be a number from 0 to {clients - 1}")
        if self._simulation.active_clients == {int(name)}:
            raise InputError(f"client {name} is the last one: pause the run instead")
        return int(name), {}

    def find_setting(self, key: str, value: str) -> dict[str, Any]:
        raise InputError(f"set {key}: a simulation has no policy (allowed: {', '.join(ALLOWED)})")

    def follow(self) -> None:
        self._simulation.follow_exclusions(self._executor)

    def say(self, line: str) -> None:
        """Do nothing: the progress display is an observer, and sees the record."""

    def checkpoint(self) -> None:
        self._journal.checkpoint(self._simulation.pack())


ALLOWED = ("pause", "resume", "exclude", "readmit", "updates", "stop")
