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
from asyncmanifold.server.selection import check_choice
from asyncmanifold.session.idle import IdleClients
from asyncmanifold.session.packing import rebuild
from asyncmanifold.session.session import Session
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
        check_choice(session.method.selection, schedule.concurrency)
        self.session = session
        self._schedule, self._sizes, self._examples = schedule, sizes, sum(sizes)
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
        return flight, executor.result(flight.job, self.session.remaining)

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
            "flights": [vars(flight) | {"job": vars(flight.job)} for flight in self.flights.values()],
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore what ``pack`` returned."""
        self.session.unpack(packed)
        self.time = packed["time"]
        self.idle = IdleClients(packed["idle"])
        self.changes = [(time, kind, client) for time, kind, client in packed["changes"]]
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
        where = {"time": self.time, "dispatched": flight.dispatched}
        if flight.is_lost:
            self.session.drop(job)
            known = {"client": job.client, "job": job.number, "base_version": job.version}
            self.session.write("dropped", **where, **known)
            return
        if isinstance(outcome, Failure):
            record = self.session.refuse(job, "failed", outcome.reason, **where)
        else:
            weight = self._sizes[job.client] / self._examples
            record = self.session.accept(job, outcome, weight, **where, clients=len(self._sizes))
        executor.release(job)
        if record["kind"] == "update":
            self.session.evaluate_if_due(self.time)
            self._cancel_late_jobs(executor)

    def _cancel_late_jobs(self, executor: Executor) -> None:
        """Stop jobs whose models have become too old, and start their clients again from the current one."""
        limit = self.session.method.cancel_from
        while limit is not None and self.flights and not self.session.is_finished:
            flight = next(iter(self.flights.values()))  # the first that was sent, so from the oldest model
            job = flight.job
            if self.session.state.staleness(job.version) < limit:
                return
            del self.flights[job.client]
            if not flight.is_lost:
                executor.release(job)
            self.session.drop(job)
            known = {"client": job.client, "job": job.number, "base_version": job.version}
            self.session.write("cancelled", time=self.time, dispatched=flight.dispatched, **known)
            self._send(self.session.job(job.client), executor)

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
        is_lost = self._schedule.is_lost(job.client, job.number, seed)
        flight = SimulatedFlight(job, self.time, self.time + wait, is_lost)
        self.flights[job.client] = flight
        heapq.heappush(self._arrivals, (flight.arrival, job.number, job.client))
        if not is_lost:
            executor.submit(job, flight.arrival)
