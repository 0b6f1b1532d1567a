"""The figures of runs as Prometheus reads them (text format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from asyncmanifold.watch.followed_runs import FollowedRun

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_CLIENTS = 1_000
"""Clients per run that have series of their own: Prometheus keeps every series for ever."""
LabelledValue = tuple[Mapping[str, object], float | None]

RUN_METRICS = {
    "updates_total": ("counter", "Accepted updates.", "done"),
    "updates_wanted": ("gauge", "Updates at which the run ends.", "total"),
    "staleness": ("gauge", "Mean staleness of the last updates, in versions.", "staleness"),
    "updates_per_second": ("gauge", "Accepted updates per second, lately.", "rate"),
    "seconds_left": ("gauge", "Estimated wall time until the end.", "left"),
    "jobs_in_flight": ("gauge", "Jobs that are out.", "training"),
    "seconds_since_write": ("gauge", "Seconds since the run last wrote something.", "age"),
    "upload_bytes_total": ("counter", "Bytes of accepted updates.", "upload"),
    "download_bytes_total": ("counter", "Bytes of the jobs of accepted updates.", "download"),
    "controls_total": ("counter", "Requests of `asyncmanifold control` that were carried out.", "controls"),
}
CLIENT_METRICS = {
    "client_updates_total": ("counter", "Accepted updates of a client.", "updates"),
    "client_rests_total": ("counter", "How often a node was given a rest.", "rests"),
    "client_epsilon": ("gauge", "Privacy loss ε that a client has spent.", "epsilon"),
    "client_upload_bytes_total": ("counter", "Bytes of a client's accepted updates.", "upload_bytes"),
}
STATES = ("running", "paused", "silent", "stopped", "finished")


def prometheus_text(runs: Iterable[FollowedRun]) -> str:
    """Return all figures of all runs; a figure that is not known has no sample."""
    briefs = [(run, run.brief(), {"run": run.place}) for run in runs]
    lines: list[str] = []
    for name, (kind, help_line, key) in RUN_METRICS.items():
        lines += _family(name, kind, help_line, [(label, brief[key]) for _, brief, label in briefs])
    scores: list[LabelledValue] = [
        ({**label, "metric": brief["metric"]}, brief["score"])
        for _, brief, label in briefs
        if brief["metric"]
    ]
    lines += _family("score", "gauge", "The last evaluation's first score.", scores)
    states: list[LabelledValue] = [
        ({**label, "state": state}, float(brief["state"] == state))
        for _, brief, label in briefs
        for state in STATES
    ]
    lines += _family("state", "gauge", "1 for the state that a run is in.", states)
    failures: list[LabelledValue] = []
    each: dict[str, list[LabelledValue]] = {name: [] for name in CLIENT_METRICS}
    for run, _, label in briefs:
        for client in list(run.figures.clients.values())[:MOST_CLIENTS]:
            labels = {**label, "client": client.client, "name": client.name}
            for name, (_, _, key) in CLIENT_METRICS.items():
                each[name].append((labels, getattr(client, key)))
            for kind in ("failed", "rejected", "dropped"):
                failures.append(({**labels, "kind": kind}, float(getattr(client, kind))))
    for name, (kind, help_line, _) in CLIENT_METRICS.items():
        lines += _family(name, kind, help_line, each[name])
    lines += _family("client_failures_total", "counter", "Jobs without an update, by kind.", failures)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help_line: str, samples: Iterable[LabelledValue]) -> Iterator[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if known:
        yield f"# HELP asyncmanifold_{name} {help_line}"
        yield f"# TYPE asyncmanifold_{name} {kind}"
    for labels, value in known:
        pairs = ",".join(f'{key}="{_escape(str(word))}"' for key, word in labels.items())
        yield f"asyncmanifold_{name}{{{pairs}}} {float(value)!r}"


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
