"""The event loop: arrivals on a virtual clock, each absorbed the moment it arrives.

A run is a pure function of its configuration and seed. Time is virtual, ties break by dispatch number,
and a job's result depends only on the job, so the trace is the same for any executor.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncmanifold.errors import RunError
from asyncmanifold.execution.executors import Executor
from asyncmanifold.execution.training_worker import Outcome
from asyncmanifold.server.protocol import Failure, Job
from asyncmanifold.session.idle import IdleClients
from asyncmanifold.session.packing import rebuild
from asyncmanifold.session.session import Session
from asyncmanifold.simulation.attacker import Attacker
from asyncmanifold.simulation.schedules import Schedule


@dataclass(frozen=True)
class SimulatedFlight:
    """A job in flight on the virtual clock."""

    job: Job
    dispatched: float
    arrival: float
    is_lost: bool


class Simulation:
    """Decides which update arrives when, on a virtual clock; the session does everything else.

    A checkpoint holds the public attributes and the session.
    """

    def __init__(self, session: Session, schedule: Schedule, sizes: list[int]) -> None:
        """Start with all clients idle; ``sizes`` are their numbers of examples."""
        self.session = session
        self._schedule, self._sizes, self._examples = schedule, sizes, sum(sizes)
        self._attacker = Attacker(schedule.attack, len(sizes), session)
        self._shares = self._attacker.shares(sizes, schedule.claim_limit)
        self._mean_length = float(session.training.point_epochs + session.curve_epochs)
        present, changes = schedule.membership(len(sizes), session.run.seed)
        self.time = 0.0
        self.idle = IdleClients(present)
        self.changes = changes[::-1]
        """Clients that will join or leave, in descending order of time."""
        self.flights: dict[int, SimulatedFlight] = {}

    def start(self, executor: Executor) -> None:
        """Send the first jobs, or again those that were in flight at a checkpoint."""
        self._arrivals = [(f.arrival, f.job.number, client) for client, f in self.flights.items()]
        heapq.heapify(self._arrivals)
        for flight in self.flights.values():
            if not flight.is_lost:
                executor.submit(flight.job, flight.arrival)
        if self.session.dispatched == 0:
            self.session.evaluate(self.time)
            self._dispatch(executor)

    def next_arrival(self, executor: Executor) -> tuple[SimulatedFlight, Outcome] | None:
        """Return the next arrival with its outcome, without changing any state.

        None if a client joins or leaves before it.
        """
        while self._arrivals and not self._is_current(self._arrivals[0]):
            heapq.heappop(self._arrivals)
        if not self._arrivals and not self.changes:
            raise RunError("no client is left")
        if not self._arrivals or (self.changes and self.changes[-1][0] <= self._arrivals[0][0]):
            return None
        flight = self.flights[self._arrivals[0][2]]
        if flight.is_lost:
            return flight, Failure("lost")
        outcome = executor.result(flight.job, self.session.remaining)
        return flight, self._attacker.send(flight.job, outcome)

    def advance(self, arrival: tuple[SimulatedFlight, Outcome] | None, executor: Executor) -> None:
        """Process one event, record it, and send the jobs that follow."""
        if arrival is None:
            self._change_membership(executor)
        elif not self.session.is_over(arrival[0].arrival):
            self._arrive(*arrival, executor)
        if not self.session.is_finished:
            self._dispatch(executor)

    def pack(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on.

        Results of jobs that have not arrived are left out: they are trained again, to the same bits.
        """
        return {
            **self.session.pack(),
            "time": self.time,
            "idle": list(self.idle),
            "changes": self.changes,
            "known": self._attacker.known,
            "flights": [vars(flight) | {"job": vars(flight.job)} for flight in self.flights.values()],
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore what ``pack`` returned."""
        self.session.unpack(packed)
        self.time = packed["time"]
        self.idle = IdleClients(packed["idle"])
        self.changes = [(time, kind, client) for time, kind, client in packed["changes"]]
        self._attacker.known = packed.get("known", {})
        self.flights = {}
        for entry in packed["flights"]:
            job = rebuild(Job, self.session.place(entry["job"]))
            self.flights[job.client] = SimulatedFlight(**{**entry, "job": job})
            self.session.adopt(job)

    def _is_current(self, entry: tuple[float, int, int]) -> bool:
        _, number, client = entry
        return client in self.flights and self.flights[client].job.number == number

    def _change_membership(self, executor: Executor) -> None:
        self.time, kind, client = self.changes.pop()
        if kind == "joined":
            self.idle.add(client)
        elif client in self.flights:
            job = self.flights.pop(client).job
            executor.release(job)
            self.session.drop(job)
        else:
            self.idle.remove(client)
        self.session.write(kind, time=self.time, client=client)

    def _arrive(self, flight: SimulatedFlight, outcome: Outcome, executor: Executor) -> None:
        job = flight.job
        heapq.heappop(self._arrivals)
        del self.flights[job.client]
        self.idle.add(job.client)
        self.time = flight.arrival
        where: dict[str, Any] = {"time": self.time, "dispatched": flight.dispatched}
        where |= self._attacker.marks(job.client)
        if flight.is_lost:
            self.session.drop(job)
            known = {"client": job.client, "job": job.number, "base_version": job.version}
            self.session.write("dropped", **where, **known)
            return
        if isinstance(outcome, Failure):
            record = self.session.refuse(job, "failed", outcome.reason, **where)
        else:
            record = self.session.accept(job, outcome, self._shares[job.client], **where)
            self._attacker.note(job, outcome, record)
        executor.release(job)
        if record["kind"] == "update":
            self.session.evaluate_if_due(self.time)

    def _dispatch(self, executor: Executor) -> None:
        """Send jobs to idle clients up to the concurrency limit."""
        if self.session.method.synchronous and self.flights:
            return  # the round is not over
        limit = self._schedule.concurrency or len(self._sizes)
        while self.idle and len(self.flights) < limit:
            client = self.idle.take(self.session.choose(self.idle))
            self._send(self.session.job(client), executor)

    def _send(self, job: Job, executor: Executor) -> None:
        relative = self._sizes[job.client] * len(self._sizes) / self._examples
        seed = self.session.run.seed
        wait = self._schedule.duration(job.epochs * relative, self._mean_length, job.client, job.number, seed)
        wait /= self._attacker.pace(job.client)
        is_lost = self._schedule.is_lost(job.client, job.number, seed)
        flight = SimulatedFlight(job, self.time, self.time + wait, is_lost)
        self.flights[job.client] = flight
        heapq.heappush(self._arrivals, (flight.arrival, job.number, job.client))
        if not is_lost:
            executor.submit(job, flight.arrival)
