"""One function for each command of the command line; each returns the exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from asyncmanifold.commands.catalogue import catalogue, print_catalogue
from asyncmanifold.commands.many_runs import run_config, run_directory, run_with_progress
from asyncmanifold.commands.printing import print_curves, print_summary, print_table
from asyncmanifold.commands.tune import multiples, score_curves, search_configs, write_choice
from asyncmanifold.configuration.config import (
    UnknownKeyError,
    find_key,
    load_config,
    method_names,
    with_setting,
)
from asyncmanifold.errors import InputError
from asyncmanifold.execution.placement import Placement
from asyncmanifold.progress import RunWatcher, display
from asyncmanifold.report.comparison import tabulate, write_table
from asyncmanifold.session.journal import Records
from asyncmanifold.session.trace import read_trace
from asyncmanifold.simulation.replay import recorded_updates


def run_command(options: argparse.Namespace) -> int:
    """Run one method on a scenario."""
    placement = Placement(workers=options.workers, executor=options.executor, ray_address=options.ray_address)
    config = load_config(
        options.scenario,
        options.method,
        seed=options.seed,
        data=options.data,
        settings=_given_settings(options),
    )
    replay = None if options.replay is None else _read_replay(options.replay)
    if replay is not None:
        config = with_setting(config, "run.updates", str(len(replay)))
    name = f"{config.scenario}-{config.method_name}-{config.run.seed}{'-replay' if replay else ''}"
    out = options.out or Path("runs") / name
    quiet = options.quiet or options.json
    with (
        _resumable(out),
        redirect_stdout(sys.stderr),  # stdout is for the result, but Ray reports lost workers there
        display(config.method_name, config.run.updates, quiet=quiet) as shown,
    ):
        records = Records(out=out, resume=options.resume, observer=RunWatcher(shown))
        summary = run_config(config, records, placement, replay)
    if options.json:
        print(json.dumps(summary))
    elif not options.quiet:
        print_summary(summary, out)
    return 0


def _read_replay(path: Path) -> list[dict[str, Any]]:
    """Return the accepted updates of a trace."""
    try:
        return recorded_updates(read_trace(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a trace that can be replayed: {error}") from error


def compare_command(options: argparse.Namespace) -> int:
    """Run several methods and seeds in parallel and print the table."""
    methods = options.methods or method_names(options.scenario)
    configs: dict[tuple[str, ...], Any] = {}
    for method, settings in _fitting_settings(options, methods).items():
        for seed in options.seeds:
            config = load_config(options.scenario, method, seed=seed, data=options.data, settings=settings)
            configs[(config.method_name, f"seed-{seed}")] = config
    first = next(iter(configs.values()))
    out: Path = options.out or Path("runs") / f"{first.scenario}-compare"
    summaries, code = _run_many(configs, out, options)
    if summaries:
        metric = next(iter(summaries.values()))["metric"]
        table = tabulate(summaries.values())
        write_table(out, first.scenario, metric, table)
        if options.json:
            print((out / "compare.json").read_text(), end="")
        elif not options.quiet:
            print_table(first, metric, table, out)
    return code


def tune_command(options: argparse.Namespace) -> int:
    """Search for each method's best value of a key on the clients' validation data."""
    methods = options.method or method_names(options.scenario)
    configs: dict[tuple[str, ...], Any] = {}
    for method, settings in _fitting_settings(options, methods).items():
        searched = load_config(options.scenario, method, data=options.data, settings=settings)
        values = options.values
        if options.factors:
            values = multiples(searched, options.key, options.factors)
        configs |= search_configs(searched, options.key, values, options.seeds)
    first = next(iter(configs.values()))
    out: Path = options.out or Path("runs") / f"{first.scenario}-tune"
    summaries, code = _run_many(configs, out, options, score="validation")
    if summaries:
        curves = score_curves(summaries)
        choice = write_choice(out, options.scenario, options.key, configs, curves)
        if options.json:
            print((out / "tune.json").read_text(), end="")
        elif not options.quiet:
            print_curves(options.key, curves, choice)
    return code


def report_command(options: argparse.Namespace) -> int:
    """Write the page, tables and figures about finished runs."""
    from asyncmanifold.report import write_report

    page = write_report(options.directory, options.out)
    print(f"report: {page}")
    return 0


def landscape_command(options: argparse.Namespace) -> int:
    """Repeat a run up to one update and write the page about the loss around it."""
    from asyncmanifold.landscape.draw import draw_landscape

    page = draw_landscape(
        options.directory,
        update=options.update,
        grid=options.grid,
        examples=options.examples,
        out=options.out,
        data=options.data,
        workers=options.workers,
        quiet=options.quiet,
    )
    if not options.quiet:
        print(f"landscape: {page}")
    return 0


def theory_command(options: argparse.Namespace) -> int:
    """Measure gradient norms in runs of growing length and compare them with the theorem's bound."""
    from asyncmanifold.theory.findings_table import print_findings
    from asyncmanifold.theory.study import study_convergence

    quiet = options.quiet or options.json
    findings = study_convergence(options.method, options.lengths, options.seeds, options.out, quiet=quiet)
    if options.json:
        print(json.dumps([finding.brief() for finding in findings], indent=2))
    elif not options.quiet:
        print_findings(findings, options.out)
    return 0


def prepare_command(options: argparse.Namespace) -> int:
    """Write a scenario's data file from a public form of the data."""
    from asyncmanifold.sources import prepare

    with display(options.dataset, None, quiet=options.quiet, unit="read") as shown:
        line = prepare(options.dataset, options.source, options.out, lambda done, _: shown.show(done))
    if not options.quiet:
        print(f"{line}: {options.out}")
    return 0


def list_command(options: argparse.Namespace) -> int:
    """Show scenarios, methods and their parts."""
    if options.json:
        print(json.dumps(catalogue(), indent=2))
    else:
        print_catalogue()
    return 0


def _run_many(
    configs: dict[tuple[str, ...], Any], out: Path, options: argparse.Namespace, score: str = "final"
) -> tuple[dict[tuple[str, ...], dict[str, Any]], int]:
    """Run configurations in parallel; return the summaries and the exit code."""
    if not options.resume and (taken := [key for key in configs if run_directory(out, key).exists()]):
        held = ", ".join(taken[0])
        raise InputError(f"{out}: holds a run of {held} already: choose another directory, or add --resume")
    quiet = options.quiet or options.json
    with _resumable(out):
        summaries, failures = run_with_progress(
            configs, out, resume=options.resume, workers=options.workers, quiet=quiet, score=score
        )
    for failure in failures if quiet else []:
        print(f"asyncmanifold: {failure}", file=sys.stderr)
    return summaries, 1 if failures else 0


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Print how to continue if the work in this block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted: the same command with --resume continues {out}", file=sys.stderr)
        raise


def _given_settings(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings of --set; refuse a key that is given twice."""
    keys = [key for key, _ in options.settings]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise InputError(f"--set {twice[0]}: given twice")
    return dict(options.settings)


def _fitting_settings(options: argparse.Namespace, methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings for each method: those whose key it has. Every key must fit at least one method."""
    plain = {method: load_config(options.scenario, method) for method in methods}
    fitting: dict[str, dict[str, str]] = {method: {} for method in plain}
    for key, value in _given_settings(options).items():
        problem: UnknownKeyError | None = None
        for method, config in plain.items():
            try:
                find_key(config, key)
                fitting[method][key] = value
            except UnknownKeyError as error:
                problem = error
        if problem is not None and not any(key in settings for settings in fitting.values()):
            raise problem
    return fitting
