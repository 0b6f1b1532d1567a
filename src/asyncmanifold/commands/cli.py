"""The command line. Slow imports wait until a command needs them, so that --help is quick."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from asyncmanifold.commands.argument_types import (
    read_names,
    read_natural,
    read_numbers,
    read_positive,
    read_setting,
)
from asyncmanifold.commands.one_line_parser import Parser
from asyncmanifold.commands.portable_option import choose_arithmetic
from asyncmanifold.commands.record_options import add_log_format, add_sinks
from asyncmanifold.commands.tune_options import add_tune_options
from asyncmanifold.commands.watch_command import add_control, add_watch
from asyncmanifold.errors import AsyncManifoldError, InputError
from asyncmanifold.json_log import VARIABLE as LOG_FORMAT

INTERRUPTED = 130

METHODS_HELP = "names, separated by commas, or all (default: those of the paper and of the scenario)"
DESCRIPTION = "Asynchronous federated optimisation: compare methods, run them, resume them."
EXAMPLES = """\
examples:
  asyncmanifold compare digits                     every method on scikit-learn's digits
  asyncmanifold run digits --method asyncbezier    one run
  asyncmanifold run digits --method fedasync --set global_lr=2 --set concurrency=8
  asyncmanifold tune digits --methods fedasync     its best global learning rate
  asyncmanifold tune digits --methods fedasync --key global_lr=1,2,3 --key local_lr=1e-3,5e-3 --halving
  asyncmanifold compare my.py:build                your own task: a function of the seed that returns it
  asyncmanifold report runs/digits-compare         figures and tables, in one HTML page
  asyncmanifold watch runs/my-run                  a page that follows a run while it goes on
  asyncmanifold control runs/my-run pause          and resume, exclude NODE, updates N, stop …
  asyncmanifold landscape runs/my-run              the loss around a curve that a client learned
  asyncmanifold theory                             the convergence theorem against measured runs
  asyncmanifold data prepare femnist --source leaf/data/femnist --out femnist.npz
  asyncmanifold flower supervise APP SUPERLINK --out /srv/runs/one     a run on Flower, resumed by itself
  asyncmanifold list                               scenarios, methods and their parts
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what could follow
        from asyncmanifold.commands.completion import complete

        complete(parser)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if "log_format" in options:
            os.environ[LOG_FORMAT] = options.log_format  # for worker processes too
        module = getattr(options, "module", "actions")  # slow to import, and not needed for --help
        if module == "actions":  # the others never load torch
            choose_arithmetic(options)
        return int(getattr(import_module(f"asyncmanifold.commands.{module}"), options.command)(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the reader is gone; no message at exit
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
        *("--method", "--methods"),
        help="a name, or a TOML file of parts (default: the scenario's, else asyncbezier)",
    )
    run.add_argument("--seed", type=read_natural, help="the run's seed (default: the scenario's, else 0)")
    run.add_argument("--workers", type=read_positive, default=1, help="training processes (default: 1)")
    run.add_argument(
        "--executor",
        choices=("inline", "process", "ray", "batched"),
        help="where to train: in this process, in others, or on a Ray cluster, with the same result; or many "
        "jobs as one program, faster for small models (default: inline for one worker, else process)",
    )
    run.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="a running cluster, HOST:PORT or auto (default: a local Ray just for this run)",
    )
    run.add_argument(
        "--replay",
        type=Path,
        metavar="TRACE",
        help="the trace.jsonl of a run, from Flower or the simulator: repeat its updates in the same order",
    )
    run.add_argument(
        "--change",
        dest="changes",
        metavar="KEY=VALUE",
        action="append",
        type=read_setting,
        default=[],
        help="with --resume: go on with another value of a bound, a rate or the run's length",
    )
    run.add_argument(
        "--back-to",
        type=read_natural,
        metavar="UPDATE",
        help="with --resume: go back to the model kept at this update (keep_models)",
    )
    run.add_argument(
        "--from", dest="initial", metavar="MODEL", help="start from a model.safetensors of the same task"
    )
    add_sinks(run)
    run.set_defaults(command="run_command")

    compare = commands.add_parser("compare", help="run several methods and seeds and print the table")
    _add_common(compare)
    compare.add_argument("--methods", type=read_names, help=METHODS_HELP)
    compare.add_argument(
        "--seeds", type=read_numbers, default=[0, 1], help="separated by commas (default: 0,1)"
    )
    compare.add_argument("--workers", type=read_positive, help="parallel runs (default: one per core)")
    add_sinks(compare)
    compare.set_defaults(command="compare_command")

    tune = commands.add_parser(
        "tune", help="search for the best values of keys on the clients' validation data"
    )
    _add_common(tune)
    add_tune_options(tune)
    tune.set_defaults(command="tune_command")

    report = commands.add_parser("report", help="write one HTML page about finished runs")
    report.add_argument(
        "directory", metavar="DIR", type=Path, help="a run, or a directory with runs below it"
    )
    report.add_argument("--out", type=Path, help="the directory to write to (default: DIR)")
    _add_quiet(report)
    report.set_defaults(command="report_command")

    add_watch(commands.add_parser("watch", help="serve a local page that follows runs while they go on"))

    add_control(commands.add_parser("control", help="pause, change or stop a run while it goes on"))

    landscape = commands.add_parser(
        "landscape", help="draw the loss around one update: on the plane of its curve, and along the curve"
    )
    landscape.add_argument("directory", metavar="DIR", type=Path, help="a run")
    landscape.add_argument(
        "--update", type=read_positive, metavar="N", help="which accepted update (default: one in the middle)"
    )
    landscape.add_argument(
        "--grid", type=read_positive, default=25, help="points per side (default: %(default)s)"
    )
    landscape.add_argument(
        "--examples",
        type=read_positive,
        default=512,
        help="the most examples per loss (default: %(default)s)",
    )
    landscape.add_argument("--out", type=Path, help="the directory to write to (default: DIR)")
    landscape.add_argument("--data", metavar="PATH", help="the data file, if it has moved")
    landscape.add_argument(
        "--task", metavar="PLACE", help="file.py:function that builds the task of a run made in Python"
    )
    landscape.add_argument(
        "--workers", type=read_positive, default=1, help="training processes (default: %(default)s)"
    )
    _add_quiet(landscape)
    landscape.set_defaults(command="landscape_command")

    _add_theory(
        commands.add_parser("theory", help="test the convergence theorem: gradient norms and the bound")
    )
    _add_data(commands.add_parser("data", help="turn public data into the files that scenarios read"))
    _add_flower(commands.add_parser("flower", help="keep a run on Flower going until it has finished"))

    completion = commands.add_parser("completion", help="print the script that completes commands in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(command="completion_command")

    listing = commands.add_parser("list", help="show scenarios, methods, their parts and all other keys")
    listing.add_argument("--json", action="store_true", help="print JSON for scripts")
    listing.set_defaults(command="list_command")
    return parser


def _add_theory(theory: argparse.ArgumentParser) -> None:
    theory.add_argument(
        *("--method", "--methods"),
        default="asyncbezier",
        help="any published method of points or Bézier curves (default: %(default)s)",
    )
    theory.add_argument(
        "--lengths",
        type=read_numbers,
        default=[64, 128, 256, 512, 1024],
        help="numbers of updates T, separated by commas (default: 64,128,256,512,1024)",
    )
    theory.add_argument(
        "--seeds", type=read_numbers, default=[0, 1, 2, 3], help="separated by commas (default: 0,1,2,3)"
    )
    theory.add_argument(
        "--out",
        type=Path,
        default=Path("runs/theory"),
        help="the directory to write to (default: %(default)s)",
    )
    theory.add_argument("--json", action="store_true", help="print the slopes as JSON for scripts")
    _add_quiet(theory)
    theory.set_defaults(command="theory_command")


def _add_data(data: argparse.ArgumentParser) -> None:
    actions = data.add_subparsers(title="commands", required=True, metavar="COMMAND")
    prepare = actions.add_parser("prepare", help="write a scenario's data file")
    prepare.add_argument("dataset", choices=("femnist", "shakespeare", "cxr8", "devices"))
    prepare.add_argument(
        "--source",
        required=True,
        help="LEAF's folder, NIH's folder of PNG files with Data_Entry_2017.csv, a folder of plays as .txt, "
        "parquet, .npz or .jsonl files, a Hugging Face dataset such as flwrlabs/femnist, or a folder with "
        "FedScale's device traces",
    )
    prepare.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help=".npz, or .jsonl for shakespeare and devices",
    )
    _add_quiet(prepare)
    prepare.set_defaults(command="prepare_command")


def _add_flower(flower: argparse.ArgumentParser) -> None:
    actions = flower.add_subparsers(title="commands", required=True, metavar="COMMAND")
    supervise = actions.add_parser(
        "supervise",
        help="run an app through `flwr run`, and resume it whenever it ends before its time",
        description="Ends with exit code 0 once the run has finished, and with 1 if it was given up.",
    )
    supervise.add_argument("app", metavar="APP", help="the Flower app's directory")
    supervise.add_argument(
        "superlink", metavar="SUPERLINK", help="the connection's name in Flower's config.toml"
    )
    supervise.add_argument(
        "--out", type=Path, required=True, help="the run's directory on this machine, an absolute path"
    )
    supervise.add_argument(
        "--run-config", default="", metavar="SETTINGS", help="the app's settings, as for `flwr run`"
    )
    supervise.add_argument(
        "--attempts",
        type=read_positive,
        default=5,
        help="failures in a row, without an update in between, until it is given up (default: %(default)s)",
    )
    supervise.set_defaults(command="supervise_command")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scenario",
        metavar="SCENARIO",
        help="a preset's name, a TOML file, or your own task as file.py:function or module:function",
    )
    parser.add_argument("--data", metavar="PATH", help="the scenario's data file, if it needs one")
    parser.add_argument("--out", type=Path, help="the output directory (default: below runs/)")
    parser.add_argument(
        "--device",
        help="where to train and evaluate: cpu, cuda, cuda:1, mps or auto (default: the scenario's)",
    )
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run exactly")
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        type=read_setting,
        default=[],
        help="override any configuration key, by its name or its path; may be repeated",
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="compute the same bits on every x86-64 processor with AVX2: short for --set arithmetic=portable",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON for scripts")
    add_log_format(parser)
    _add_quiet(parser)


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
