"""The event loop: arrivals on a virtual clock, each absorbed the moment it arrives.

A run is a pure function of its configuration and seed. Time is virtual, ties break by dispatch number,
and a job's result depends only on the job, so the trace is the same for any executor.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncmanifold.errors import InputError, RunError
from asyncmanifold.execution.executors import Executor
from asyncmanifold.execution.training_worker import Outcome
from asyncmanifold.server.outgoing import outline_update
from asyncmanifold.server.protocol import Failure, Job
from asyncmanifold.server.selection import check_choice
from asyncmanifold.session.control import EXCLUDED
from asyncmanifold.session.idle import IdleClients
from asyncmanifold.session.live_jobs import LiveJobs
from asyncmanifold.session.packing import rebuild
from asyncmanifold.session.privacy_account import SPENT
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


LEAST_LOST = 1000
"""The run stops after this many consecutive jobs whose clients went away; more if there are many clients."""


class Simulation:
    """Decides which update arrives when, on a virtual clock; the session does everything else.

    A checkpoint holds the public attributes and the session.
    """

    def __init__(self, session: Session, schedule: Schedule, sizes: list[int]) -> None:
        """Start with all clients idle; ``sizes`` are their numbers of examples."""
        check_choice(session.method.selection, schedule.concurrency)
        self.session = session
        protection = session.method.protection
        if protection is not None and protection.least_clients > len(sizes):
            raise InputError(f"{protection} needs as many different clients, there are {len(sizes)} clients")
        self._schedule, self._sizes, self._examples = schedule, sizes, sum(sizes)
        self._attacker = Attacker(schedule.attack, len(sizes), session)
        self._shares = self._attacker.shares(sizes, schedule.claim_limit)
        self._mean_length = float(session.training.point_epochs + session.curve_epochs)
        present, changes = schedule.membership(len(sizes), session.run.seed)
        self.time = 0.0
        self.idle = IdleClients(present)
        self.changes = changes
        """Clients that will join or leave, as a heap: the next change is the first."""
        self.flights: dict[int, SimulatedFlight] = {}
        self._upload = self._upload_bytes() if schedule.has_bandwidth else 0
        self._lost = 0  # jobs in a row whose clients went away
        self.held: set[int] = set()
        """Clients that would be idle, but are excluded (``asyncmanifold control``)."""

    @property
    def clients(self) -> int:
        """The number of all clients."""
        return len(self._sizes)

    @property
    def active_clients(self) -> set[int]:
        """The clients that are present and not excluded."""
        return {*self.idle, *self.flights} - self.session.control.excluded

    def follow_exclusions(self, executor: Executor) -> None:
        """Let excluded clients wait, and readmitted ones be idle again; send the jobs that follow."""
        excluded = self.session.control.excluded
        for client in [client for client in self.idle if client in excluded]:
            self.idle.remove(client)
            self.held.add(client)
        for client in sorted(self.held - excluded):
            self.held.remove(client)
            self.idle.add(client)
        if not self.session.is_finished:
            self._dispatch(executor)

    def start(self, executor: Executor) -> None:
        """Send the first jobs, or again those that were in flight at a checkpoint.

        A run that had ended, and now goes on, has not yet sent the job after its last update.
        """
        self._arrivals = [(f.arrival, f.job.number, client) for client, f in self.flights.items()]
        heapq.heapify(self._arrivals)
        for flight in self.flights.values():
            if not flight.is_lost:
                executor.submit(flight.job, flight.arrival)
        if self.session.dispatched == 0:
            self.session.evaluate(self.time)
        if not self.session.is_finished:
            self._dispatch(executor)

    def next_arrival(self, executor: Executor) -> tuple[SimulatedFlight, Outcome] | None:
        """Return the next arrival with its outcome, without changing any state.

        None if a client joins or leaves before it.
        """
        while self._arrivals and not self._is_current(self._arrivals[0]):
            heapq.heappop(self._arrivals)
        if not self._arrivals and not self.changes:
            raise RunError("no client is left")
        if not self._arrivals or (self.changes and self.changes[0][0] <= self._arrivals[0][0]):
            return None
        flight = self.flights[self._arrivals[0][2]]
        if flight.is_lost:
            return flight, Failure("lost")
        if flight.job.client in self.session.control.excluded:
            return flight, Failure(EXCLUDED)
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

    def show_jobs(self, live: LiveJobs) -> None:
        """Tell whoever watches the run which jobs are out."""
        jobs = ((client, flight.dispatched) for client, flight in self.flights.items())
        live.show(self.time, len(self.flights), jobs)

    def pack(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on.

        Results of jobs that have not arrived are left out: they are trained again, to the same bits.
        """
        return {
            **self.session.pack(),
            "time": self.time,
            "idle": [*self.idle, *sorted(self.held)],
            "changes": self.changes,
            "known": self._attacker.known,
            "flights": [vars(flight) | {"job": vars(flight.job)} for flight in self.flights.values()],
        }

    def unpack(self, packed: Mapping[str, Any]) -> None:
        """Restore what ``pack`` returned."""
        self.session.unpack(packed)
        self.time = packed["time"]
        excluded = self.session.control.excluded
        self.idle = IdleClients(client for client in packed["idle"] if client not in excluded)
        self.held = {client for client in packed["idle"] if client in excluded}
        self.changes = [(time, kind, client) for time, kind, client in packed["changes"]]
        self._attacker.known = packed.get("known", {})
        self.flights = {}
        for entry in packed["flights"]:
            job = rebuild(Job, self.session.place(entry["job"]))
            self.flights[job.client] = SimulatedFlight(**{**entry, "job": job})
            self.session.adopt(job)

    def _upload_bytes(self) -> int:
        """Return the bytes of an update as it is sent, which its form alone decides."""
        method, state = self.session.method, self.session.state
        form = outline_update(method.embedding.points, state.theta, state.statistics, method.outgoing)
        if form is None:
            names = ", ".join(type(part).__name__ for part in method.outgoing)
            raise InputError(
                f"bandwidth is limited, and it is not known how much {names} send: define their outline"
            )
        return form.size

    def _is_current(self, entry: tuple[float, int, int]) -> bool:
        _, number, client = entry
        return client in self.flights and self.flights[client].job.number == number

    def _change_membership(self, executor: Executor) -> None:
        self.time, kind, client = heapq.heappop(self.changes)
        lost: dict[str, int] = {}
        if kind == "joined":
            self._make_idle(client)
        elif client in self.flights:
            flight = self.flights.pop(client)
            if not flight.is_lost:
                executor.release(flight.job)
            self.session.drop(flight.job)
            lost = {"job": flight.job.number}
            self._count_lost()
        elif client in self.held:
            self.held.remove(client)
        else:
            self.idle.remove(client)
        self.session.write(kind, time=self.time, client=client, **lost)
        following = self._schedule.next_change(self.time, client, self.session.run.seed)
        if following is not None:
            heapq.heappush(self.changes, following)

    def _count_lost(self) -> None:
        """End a run that would never end: one whose clients are never there for as long as a job takes."""
        self._lost += 1
        if self._lost >= max(LEAST_LOST, 10 * len(self._sizes)):
            raise RunError(f"{self._lost} jobs in a row were lost, because their clients went away before")

    def _make_idle(self, client: int) -> None:
        (self.held if client in self.session.control.excluded else self.idle).add(client)

    def _arrive(self, flight: SimulatedFlight, outcome: Outcome, executor: Executor) -> None:
        job = flight.job
        self._lost = 0
        heapq.heappop(self._arrivals)
        del self.flights[job.client]
        self._make_idle(job.client)
        self.time = flight.arrival
        where: dict[str, Any] = {"time": self.time, "dispatched": flight.dispatched}
        where |= self._attacker.marks(job.client)
        if flight.is_lost:
            self.session.drop(job)
            known = {"client": job.client, "job": job.number, "base_version": job.version}
            self.session.write("dropped", **where, **known)
            return
        if isinstance(outcome, Failure):
            kind = "rejected" if outcome.reason == EXCLUDED else "failed"
            record = self.session.refuse(job, kind, outcome.reason, **where)
        else:
            weight = self._shares[job.client]
            record = self.session.accept(job, outcome, weight, **where, clients=len(self._sizes))
            self._attacker.note(job, outcome, record)
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
        session = self.session
        while self.idle and len(self.flights) < limit:
            client = self.idle.take(session.choose(self.idle))
            if session.is_spent(client):
                session.retire(client, SPENT, self.time)
            else:
                self._send(session.job(client), executor)
        out = len(self.flights)
        if session.privacy.is_over(out + len(self.idle), out) and not self.changes:
            session.end(SPENT)

    def _send(self, job: Job, executor: Executor) -> None:
        relative = self._sizes[job.client] * len(self._sizes) / self._examples
        seed = self.session.run.seed
        transfer = 0.0
        if self._upload:
            transfer = self._schedule.transfer(job.client, job.size, self._upload, seed)
        wait = self._schedule.duration(
            job.epochs * relative, self._mean_length, job.client, job.number, seed, transfer
        )
        wait /= self._attacker.pace(job.client)
        change = self._schedule.next_change(self.time, job.client, seed)
        goes_away = change is not None and change[0] <= self.time + wait  # so it need not be trained
        is_lost = goes_away or self._schedule.is_lost(job.client, job.number, seed)
        flight = SimulatedFlight(job, self.time, self.time + wait, is_lost)
        self.flights[job.client] = flight
        heapq.heappush(self._arrivals, (flight.arrival, job.number, job.client))
        if not is_lost:
            executor.submit(job, flight.arrival)
