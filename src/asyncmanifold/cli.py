"""The command line. Heavy imports wait until a command needs them, so that --help is quick."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

INTERRUPTED = 130

DESCRIPTION = "Asynchronous federated optimisation: compare methods, run them, resume them."
EXAMPLES = """\
examples:
  asyncmanifold compare digits                     every method on scikit-learn's digits
  asyncmanifold run digits --method asyncbezier    one run
  asyncmanifold run digits --method fedasync --set global_lr=2 --set concurrency=8
  asyncmanifold list                               scenarios, methods and their parts
"""


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the line and end with exit code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class UsageError(Exception):
    """A call that cannot be carried out; one line says why."""


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
    except Exception as error:
        if _is_expected(error):
            print(f"asyncmanifold: {error}", file=sys.stderr)
            return 2 if isinstance(error, (UsageError, ValueError)) else 1
        raise


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
    run.set_defaults(command=run_command)

    compare = commands.add_parser("compare", help="run several methods and seeds and print the table")
    _add_common(compare)
    compare.add_argument("--methods", help="names, separated by commas (default: all)")
    compare.add_argument("--seeds", type=_seeds, default=[0, 1], help="separated by commas (default: 0,1)")
    compare.add_argument("--workers", type=_positive, help="runs side by side (default: one a core)")
    compare.set_defaults(command=compare_command)

    listing = commands.add_parser("list", help="show scenarios, methods and their parts")
    listing.add_argument("--json", action="store_true", help="print JSON for scripts")
    listing.set_defaults(command=list_command)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", metavar="SCENARIO", help="a preset's name or a TOML file")
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
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run_command(options: argparse.Namespace) -> int:
    """Run one method on a scenario."""
    from asyncmanifold.compare import run_config
    from asyncmanifold.config import load_config
    from asyncmanifold.printing import print_summary
    from asyncmanifold.progress import RunWatcher, display

    config = load_config(options.scenario, options.method, seed=options.seed, settings=dict(options.settings))
    name = f"{config.scenario}-{config.method_name}-{config.run.seed}"
    out = options.out or Path("runs") / name
    try:
        with display(config.method_name, config.run.updates, quiet=options.quiet or options.json) as shown:
            summary = run_config(
                config,
                out,
                resume=options.resume,
                workers=options.workers,
                observer=RunWatcher(shown),
            )
    except KeyboardInterrupt:
        print(f"interrupted: the same command with --resume continues {out}", file=sys.stderr)
        raise
    if options.json:
        print(json.dumps(summary))
    elif not options.quiet:
        print_summary(summary, out)
    return 0


def compare_command(options: argparse.Namespace) -> int:
    """Run several methods and seeds side by side and print the table."""
    from asyncmanifold.compare import run_all, tabulate, write_table
    from asyncmanifold.config import ConfigError
    from asyncmanifold.printing import print_table
    from asyncmanifold.progress import display
    from asyncmanifold.simulation.directory import DirectoryError

    configs = _comparison(options)
    first = next(iter(configs.values()))
    out: Path = options.out or Path("runs") / f"{first.scenario}-compare"
    _check_out(out, [method for method, _ in configs], options.resume)
    reached = dict.fromkeys(configs, 0)
    failures: list[str] = []
    total = sum(config.run.updates for config in configs.values())
    workers = options.workers or len(os.sched_getaffinity(0))
    quiet = options.quiet or options.json
    title = f"{len(configs)} runs on {first.scenario}"
    try:
        with display(title, total, quiet=quiet) as shown:

            def on_progress(key: tuple[str, int], update: int) -> None:
                reached[key] = update
                shown.show(sum(reached.values()), "")

            def on_end(key: tuple[str, int], ended: Any) -> None:
                method, seed = key
                if isinstance(ended, (ConfigError, DirectoryError)):
                    raise ended  # wrong input, the same for every run
                if isinstance(ended, BaseException):
                    failures.append(f"{method}, seed {seed}: {ended or type(ended).__name__}")
                    shown.say(failures[-1])
                    return
                score = "not a number" if ended["final"] is None else f"{ended['final']:.4f}"
                shown.say(f"{method}, seed {seed}: {ended['metric']} {score}")
                on_progress(key, configs[key].run.updates)

            summaries = run_all(
                configs,
                out,
                resume=options.resume,
                workers=workers,
                on_progress=on_progress,
                on_end=on_end,
            )
    except KeyboardInterrupt:
        print(f"interrupted: the same command with --resume continues {out}", file=sys.stderr)
        raise
    if summaries:
        metric = next(iter(summaries.values()))["metric"]
        table = tabulate(summaries.values())
        write_table(out, first.scenario, metric, table)
        if options.json:
            print((out / "compare.json").read_text(), end="")
        else:
            print_table(first, metric, table, out)
    for failure in failures if quiet else []:
        print(f"asyncmanifold: {failure}", file=sys.stderr)
    return 1 if failures else 0


def list_command(options: argparse.Namespace) -> int:
    """Show scenarios, methods and their parts."""
    from asyncmanifold.catalogue import catalogue, print_catalogue

    if options.json:
        print(json.dumps(catalogue(), indent=2))
    else:
        print_catalogue()
    return 0


def _comparison(options: argparse.Namespace) -> dict[tuple[str, int], Any]:
    """Return the configuration of every run, by method and seed.

    A setting goes to the methods that have its key, and must go to one of them.
    """
    from asyncmanifold.config import ConfigError, find_key, load_config, method_names

    methods = options.methods.split(",") if options.methods else method_names(options.scenario)
    settings = dict(options.settings)
    unused = dict.fromkeys(settings)
    configs = {}
    for method in dict.fromkeys(methods):
        plain = load_config(options.scenario, method)
        fitting = {}
        for key, value in settings.items():
            try:
                find_key(plain, key)
            except ConfigError as error:
                if key in unused:
                    unused[key] = error
                continue
            fitting[key] = value
            unused.pop(key, None)
        for seed in options.seeds:
            config = load_config(options.scenario, method, seed=seed, settings=fitting)
            configs[(config.method_name, seed)] = config
    for problem in unused.values():
        raise problem or UsageError("no method was named")
    return configs


def _check_out(out: Path, methods: Sequence[str], resume: bool) -> None:
    """Refuse, before any work, a directory that holds runs already."""
    if resume:
        return
    if taken := [method for method in methods if (out / method).exists()]:
        raise UsageError(
            f"{out}: holds runs of {taken[0]} already: choose another directory, or add --resume"
        )


def _is_expected(error: Exception) -> bool:
    """Whether an error is one that a user can mend, to be told in one line."""
    from asyncmanifold.config import ConfigError
    from asyncmanifold.simulation.directory import DirectoryError
    from asyncmanifold.simulation.engine import Stalled
    from asyncmanifold.simulation.executors import WorkerDied

    return isinstance(error, (UsageError, ConfigError, DirectoryError, Stalled, WorkerDied, OSError))


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


def _seeds(text: str) -> list[int]:
    return list(dict.fromkeys(_natural(part) for part in text.split(",")))
