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
from asyncmanifold.commands.printing import print_study, print_summary
from asyncmanifold.commands.supervise import SupervisedRun
from asyncmanifold.configuration.config import (
    Config,
    find_key,
    load_config,
    read_scenario,
    scenario_title,
    with_setting,
)
from asyncmanifold.devices import find_device
from asyncmanifold.errors import InputError
from asyncmanifold.execution.placement import Placement, available_cores
from asyncmanifold.experiments.compare import compare
from asyncmanifold.experiments.many_runs import run_config, say_cautions
from asyncmanifold.experiments.terminal_tables import (
    comparison_notes,
    comparison_table,
    search_notes,
    search_table,
)
from asyncmanifold.experiments.tune import tune
from asyncmanifold.progress import RunWatcher, display
from asyncmanifold.session.journal import Records
from asyncmanifold.session.recorded_arithmetic import warn_of_other_arithmetic
from asyncmanifold.session.trace import read_trace
from asyncmanifold.simulation.replay import recorded_updates
from asyncmanifold.sinks import open_sinks


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
    config, changed = _apply_wishes(config, options)
    replay = None if options.replay is None else _read_replay(options.replay)
    if options.replay is not None and not options.quiet:
        warn_of_other_arithmetic(options.replay.parent)
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
        say_cautions([config], shown)
        sinks = open_sinks(options.sinks, out.name)
        records = Records(
            out=out,
            resume=options.resume,
            change=changed,
            back_to=options.back_to,
            observer=[RunWatcher(shown), *sinks],
        )
        summary = run_config(config, records, placement, replay).summary
    if options.json:
        print(json.dumps(summary))
    elif not options.quiet:
        print_summary(summary, out)
    return 0


def _apply_wishes(config: Config, options: argparse.Namespace) -> tuple[Config, list[str]]:
    """Return the configuration with --from and --change, and the paths of the keys that --change names."""
    if (options.changes or options.back_to is not None) and not options.resume:
        raise InputError("--change and --back-to continue a run: add --resume")
    if options.initial is not None:
        config = with_setting(config, "run.initial_model", options.initial)
    changed = []
    for key, value in options.changes:
        changed.append(".".join(find_key(config, key)))
        config = with_setting(config, key, value)
    return config, changed


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
    out: Path = options.out or Path("runs") / f"{_title(options.scenario)}-compare"
    with _resumable(out):
        found = compare(
            options.scenario,
            options.methods,
            seeds=options.seeds,
            sinks=options.sinks,
            **_study(options, out),
        )
    if options.json:
        print((out / "compare.json").read_text(), end="")
    elif not options.quiet:
        print_study(comparison_table(found), comparison_notes(found))
    return _exit_code(found.failures, options)


def tune_command(options: argparse.Namespace) -> int:
    """Search for each method's best values of keys on the clients' validation data."""
    out: Path = options.out or Path("runs") / f"{_title(options.scenario)}-tune"
    searched = {"key": _keys(options), "values": options.values, "factors": options.factors}
    searched |= {"halving": options.halving, "seeds": options.seeds}
    with _resumable(out):
        found = tune(options.scenario, options.methods, **searched, **_study(options, out))
    if options.json:
        print((out / "tune.json").read_text(), end="")
    elif not options.quiet:
        print_study(search_table(found), search_notes(found))
    return _exit_code(found.failures, options)


def _keys(options: argparse.Namespace) -> str | list[str] | dict[str, list[str]]:
    """Return the keys of a search: one, several with factors for all, or all with values of their own."""
    given: list[tuple[str, list[str] | None]] = options.keys or [("global_lr", None)]
    names = [name for name, _ in given]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--key {twice[0]}: given twice")
    own = {name: values for name, values in given if values is not None}
    if not own:
        return names[0] if len(names) == 1 else names
    if options.factors or "values" in getattr(options, "given", ()):
        raise InputError(f"--key {next(iter(own))} has values of its own: leave out --values and --factors")
    if without := [name for name in names if name not in own]:
        raise InputError(f"--key {without[0]}: give its values too, as --key {without[0]}=1,2")
    return own


def _title(scenario: str) -> str:
    """Return a scenario's name for its directory."""
    tree, _ = read_scenario(scenario)
    return str(tree.get("scenario", scenario_title(scenario)))


def _study(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Return the arguments that comparisons and searches share."""
    return {
        "out": out,
        "resume": options.resume,
        "workers": options.workers or available_cores(),
        "progress": not (options.quiet or options.json),
        "data": options.data,
        "settings": _given_settings(options),
    }


def _exit_code(failures: Sequence[str], options: argparse.Namespace) -> int:
    """Return 1 if runs failed, and name them if no progress was shown."""
    for failure in failures if options.quiet or options.json else []:
        print(f"asyncmanifold: {failure}", file=sys.stderr)
    return 1 if failures else 0


def report_command(options: argparse.Namespace) -> int:
    """Write the page, tables and figures about finished runs."""
    from asyncmanifold.report import write_report

    page = write_report(options.directory, options.out)
    if not options.quiet:
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
        task_place=options.task,
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


def supervise_command(options: argparse.Namespace) -> int:
    """Keep a run on Flower going until it has finished."""
    given = options.app, options.superlink, options.out, options.run_config, options.attempts
    return SupervisedRun(*given).supervise()


def completion_command(options: argparse.Namespace) -> int:
    """Print the script that completes commands, options, scenarios and methods in a shell."""
    from asyncmanifold.commands.completion import completion_script

    print(completion_script(options.shell))
    return 0


def list_command(options: argparse.Namespace) -> int:
    """Show scenarios, methods and their parts."""
    if options.json:
        print(json.dumps(catalogue(), indent=2))
    else:
        print_catalogue()
    return 0


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Print how to continue if the work in this block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted: the same command with --resume continues {out}", file=sys.stderr)
        raise


def _given_settings(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings of --set and --device; refuse a key that is given twice."""
    keys = [key for key, _ in options.settings]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise InputError(f"--set {twice[0]}: given twice")
    settings = dict(options.settings)
    if options.device is not None:
        find_device(options.device)  # refused before any work
        settings["run.device"] = options.device
    return settings
