"""The command line. Heavy imports wait until a command needs them, so that --help is quick."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from asyncmanifold.errors import AsyncManifoldError, InputError

INTERRUPTED = 130

DESCRIPTION = "Asynchronous federated optimisation: compare methods, run them, resume them."
EXAMPLES = """\
examples:
  asyncmanifold compare digits                     every method on scikit-learn's digits
  asyncmanifold run digits --method asyncbezier    one run
  asyncmanifold run digits --method fedasync --set global_lr=2 --set concurrency=8
  asyncmanifold tune digits --method fedasync      its best global learning rate
  asyncmanifold report runs/digits-compare         figures and tables, in one HTML page
  asyncmanifold landscape runs/my-run              the loss around a curve that a client learned
  asyncmanifold theory                             the convergence theorem against measured runs
  asyncmanifold data prepare femnist --source leaf/data/femnist --out femnist.npz
  asyncmanifold list                               scenarios, methods and their parts
"""


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the line and end with exit code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code: int = options.command(options)
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - nobody reads on; do not complain at exit
        return 1
    except AsyncManifoldError as error:
        print(f"asyncmanifold: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="asyncmanifold",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    from asyncmanifold import __version__

    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run one method on a scenario")
    _add_common(run)
    run.add_argument(
        "--method",
        help="a name, or a TOML file of parts (default: the scenario's, else asyncbezier)",
    )
    run.add_argument("--seed", type=_natural, help="the run's seed (default: the scenario's, else 0)")
    run.add_argument("--workers", type=_positive, default=1, help="processes that train (default: 1)")
    run.add_argument(
        "--executor",
        choices=("inline", "process", "ray"),
        help="where they are: here, in processes of this machine, on a Ray cluster; the result is the same "
        "(default: inline for one worker, else process)",
    )
    run.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="a running cluster, HOST:PORT or auto (default: a local Ray for this run alone)",
    )
    run.add_argument(
        "--replay",
        type=Path,
        metavar="TRACE",
        help="a run's trace.jsonl, from Flower or from here: its updates arrive again in their order",
    )
    run.set_defaults(command=run_command)

    compare = commands.add_parser("compare", help="run several methods and seeds and print the table")
    _add_common(compare)
    compare.add_argument("--methods", help="names, separated by commas (default: all)")
    compare.add_argument("--seeds", type=_numbers, default=[0, 1], help="separated by commas (default: 0,1)")
    compare.add_argument("--workers", type=_positive, help="runs side by side (default: one a core)")
    compare.set_defaults(command=compare_command)

    tune = commands.add_parser("tune", help="search for a key's best value on the clients' validation data")
    _add_common(tune)
    tune.add_argument("--method", help="a name, or several separated by commas (default: all)")
    tune.add_argument("--key", default="global_lr", help="what to search over (default: %(default)s)")
    tried = tune.add_mutually_exclusive_group()
    tried.add_argument(
        "--values", default="0.25,0.5,1,1.5,2,2.5,3,5", help="separated by commas (default: %(default)s)"
    )
    tried.add_argument(
        "--factors",
        type=_factors,
        help="in place of values: multiples of what each method has in the scenario",
    )
    tune.add_argument("--seeds", type=_numbers, default=[0], help="separated by commas (default: 0)")
    tune.add_argument("--workers", type=_positive, help="runs side by side (default: one a core)")
    tune.set_defaults(command=tune_command)

    report = commands.add_parser("report", help="write one HTML page about finished runs")
    report.add_argument(
        "directory", metavar="DIR", type=Path, help="a run, or a directory with runs below it"
    )
    report.add_argument("--out", type=Path, help="the directory to write to (default: DIR)")
    report.set_defaults(command=report_command)

    landscape = commands.add_parser(
        "landscape", help="draw the loss around one update: the plane of its curve, and along it"
    )
    landscape.add_argument("directory", metavar="DIR", type=Path, help="a run")
    landscape.add_argument(
        "--update", type=_positive, metavar="N", help="which accepted update (default: one in the middle)"
    )
    landscape.add_argument("--grid", type=_positive, default=25, help="points a side (default: %(default)s)")
    landscape.add_argument(
        "--examples", type=_positive, default=512, help="most examples for a loss (default: %(default)s)"
    )
    landscape.add_argument("--out", type=Path, help="the directory to write to (default: DIR)")
    landscape.add_argument("--data", metavar="PATH", help="the data file, where it is not where it was")
    landscape.add_argument(
        "--workers", type=_positive, default=1, help="processes that train (default: %(default)s)"
    )
    _add_quiet(landscape)
    landscape.set_defaults(command=landscape_command)

    _add_theory(
        commands.add_parser("theory", help="test the convergence theorem: gradient norms against the bound")
    )
    _add_data(commands.add_parser("data", help="turn public data into the files that scenarios read"))

    listing = commands.add_parser("list", help="show scenarios, methods and their parts")
    listing.add_argument("--json", action="store_true", help="print JSON for scripts")
    listing.set_defaults(command=list_command)
    return parser


def _add_theory(theory: argparse.ArgumentParser) -> None:
    theory.add_argument(
        "--method",
        default="asyncbezier",
        help="asyncsgd, fedortho, fedgs or asyncbezier (default: %(default)s)",
    )
    theory.add_argument(
        "--lengths",
        type=_numbers,
        default=[64, 128, 256, 512, 1024],
        help="numbers of updates T, separated by commas (default: 64,128,256,512,1024)",
    )
    theory.add_argument(
        "--seeds", type=_numbers, default=[0, 1, 2, 3], help="separated by commas (default: 0,1,2,3)"
    )
    theory.add_argument(
        "--out",
        type=Path,
        default=Path("runs/theory"),
        help="the directory to write to (default: %(default)s)",
    )
    theory.add_argument("--json", action="store_true", help="print the slopes as JSON for scripts")
    _add_quiet(theory)
    theory.set_defaults(command=theory_command)


def _add_data(data: argparse.ArgumentParser) -> None:
    actions = data.add_subparsers(title="commands", required=True, metavar="COMMAND")
    prepare = actions.add_parser("prepare", help="write a scenario's data file")
    prepare.add_argument("dataset", choices=("femnist", "shakespeare", "cxr8"))
    prepare.add_argument(
        "--source",
        required=True,
        help="LEAF's folder, NIH's folder of PNG files with Data_Entry_2017.csv, a folder of plays as .txt, "
        "parquet, .npz or .jsonl files, or a set of the Hugging Face Hub such as flwrlabs/femnist",
    )
    prepare.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=".npz, or .jsonl(.gz) for shakespeare"
    )
    _add_quiet(prepare)
    prepare.set_defaults(command=prepare_command)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO", help="a preset's name or a TOML file")
    parser.add_argument("--data", metavar="PATH", help="the scenario's data file, where it needs one")
    parser.add_argument("--out", type=Path, help="where to keep it (default: below runs/)")
    parser.add_argument("--resume", action="store_true", help="continue what was interrupted, exactly")
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        type=_setting,
        default=[],
        help="override any configuration key, by its name or its path; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON for scripts")
    _add_quiet(parser)


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run_command(options: argparse.Namespace) -> int:
    """Run one method on a scenario."""
    from asyncmanifold.config import load_config, with_setting
    from asyncmanifold.printing import print_summary
    from asyncmanifold.progress import RunWatcher, display
    from asyncmanifold.runs import run_config
    from asyncmanifold.simulation.placement import Placement

    settings = dict(options.settings)
    placement = Placement(workers=options.workers, executor=options.executor, ray_address=options.ray_address)
    config = load_config(
        options.scenario, options.method, seed=options.seed, data=options.data, settings=settings
    )
    replay = None if options.replay is None else _read_replay(options.replay)
    if replay is not None:
        config = with_setting(config, "run.updates", str(len(replay)))
    name = f"{config.scenario}-{config.method_name}-{config.run.seed}{'-replay' if replay else ''}"
    out = options.out or Path("runs") / name
    quiet = options.quiet or options.json
    with (
        _resumable(out),
        redirect_stdout(sys.stderr),  # stdout is for the result, but Ray tells there of lost workers
        display(config.method_name, config.run.updates, quiet=quiet) as shown,
    ):
        summary = run_config(
            config,
            out,
            resume=options.resume,
            placement=placement,
            observer=RunWatcher(shown),
            replay=replay,
        )
    if options.json:
        print(json.dumps(summary))
    elif not options.quiet:
        print_summary(summary, out)
    return 0


def _read_replay(path: Path) -> list[dict[str, Any]]:
    """Return the accepted updates of a trace."""
    from asyncmanifold.simulation.replay import recorded_updates
    from asyncmanifold.trace import read_trace

    try:
        return recorded_updates(read_trace(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path}: no trace that can be replayed: {error}") from error


def compare_command(options: argparse.Namespace) -> int:
    """Run several methods and seeds side by side and print the table."""
    from asyncmanifold.compare import tabulate, write_table
    from asyncmanifold.config import load_config, method_names
    from asyncmanifold.printing import print_table

    methods = options.methods.split(",") if options.methods else method_names(options.scenario)
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
    from asyncmanifold.config import load_config, method_names
    from asyncmanifold.printing import print_curves
    from asyncmanifold.tune import multiples, score_curves, search_configs, write_choice

    methods = options.method.split(",") if options.method else method_names(options.scenario)
    configs: dict[tuple[str, ...], Any] = {}
    for method, settings in _fitting_settings(options, methods).items():
        searched = load_config(options.scenario, method, data=options.data, settings=settings)
        values = options.values.split(",")
        if options.factors:
            values = multiples(searched, options.key, options.factors)
        configs |= search_configs(searched, options.key, list(dict.fromkeys(values)), options.seeds)
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
    """Measure gradient norms in runs of growing length and set them against the theorem's bound."""
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
    from asyncmanifold.progress import display
    from asyncmanifold.sources import prepare

    with display(options.dataset, None, quiet=options.quiet, unit="read") as shown:
        line = prepare(options.dataset, options.source, options.out, lambda done, _: shown.show(done))
    if not options.quiet:
        print(f"{line}: {options.out}")
    return 0


def list_command(options: argparse.Namespace) -> int:
    """Show scenarios, methods and their parts."""
    from asyncmanifold.catalogue import catalogue, print_catalogue

    if options.json:
        print(json.dumps(catalogue(), indent=2))
    else:
        print_catalogue()
    return 0


def _run_many(
    configs: dict[tuple[str, ...], Any], out: Path, options: argparse.Namespace, score: str = "final"
) -> tuple[dict[tuple[str, ...], dict[str, Any]], int]:
    """Run configurations side by side; return the summaries and the exit code."""
    from asyncmanifold.runs import run_directory, run_shown

    if not options.resume and (taken := [key for key in configs if run_directory(out, key).exists()]):
        held = ", ".join(taken[0])
        raise InputError(f"{out}: holds a run of {held} already: choose another directory, or add --resume")
    quiet = options.quiet or options.json
    with _resumable(out):
        summaries, failures = run_shown(
            configs, out, resume=options.resume, workers=options.workers, quiet=quiet, score=score
        )
    for failure in failures if quiet else []:
        print(f"asyncmanifold: {failure}", file=sys.stderr)
    return summaries, 1 if failures else 0


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Say, where the work in this block is interrupted, how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted: the same command with --resume continues {out}", file=sys.stderr)
        raise


def _fitting_settings(options: argparse.Namespace, methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of each method: those whose key it has. Each must go to one method at least."""
    from asyncmanifold.config import find_key, load_config

    plain = {method: load_config(options.scenario, method) for method in methods}
    fitting: dict[str, dict[str, str]] = {method: {} for method in plain}
    for key, value in options.settings:
        problem: InputError | None = None
        for method, config in plain.items():
            try:
                find_key(config, key)
                fitting[method][key] = value
            except InputError as error:
                problem = error
        if problem is not None and not any(key in settings for settings in fitting.values()):
            raise problem
    return fitting


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    return key.strip(), value.strip()


def _positive(text: str) -> int:
    number = _natural(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return number


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 0")
    return int(text)


def _factors(text: str) -> list[float]:
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers separated by commas") from error
    if not all(0.0 < factor < float("inf") for factor in factors):
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and finite")
    return factors


def _numbers(text: str) -> list[int]:
    return list(dict.fromkeys(_natural(part) for part in text.split(",")))
