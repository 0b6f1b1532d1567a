"""The commands that look at a running run or talk to it: quick to start, for they load no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import monotonic, sleep

from asyncmanifold.commands.argument_types import read_natural, read_positive
from asyncmanifold.errors import InputError

POLL_SECONDS = 0.1


def add_watch(watch: argparse.ArgumentParser) -> None:
    """Add the options of ``watch``."""
    watch.add_argument("directory", metavar="DIR", type=Path, help="a run, or a directory with runs below it")
    watch.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on; others than this machine's own can then read the page, without "
        "encryption, if they know its token (default: %(default)s)",
    )
    watch.add_argument("--port", type=read_natural, default=0, help="the port (default: any that is free)")
    watch.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a file with the token of the address, for bookmarks and Prometheus (default: a random one)",
    )
    watch.set_defaults(command="watch_command", module="watch_command")


def add_control(control: argparse.ArgumentParser) -> None:
    """Add the options of ``control``."""
    control.add_argument("directory", metavar="DIR", type=Path, help="the directory of a run, going on")
    control.add_argument(
        "words",
        metavar="REQUEST",
        nargs="+",
        help="pause, resume, stop, updates N, exclude NODE, readmit NODE, set policy.KEY=VALUE",
    )
    control.add_argument(
        "--seconds",
        type=read_positive,
        default=60,
        help="how long to wait for the answer; then the request is withdrawn (default: %(default)s)",
    )
    control.set_defaults(command="control_command", module="watch_command")


def control_command(options: argparse.Namespace) -> int:
    """Leave a request at a run, wait for its answer and print it."""
    from asyncmanifold.session.control import check_words
    from asyncmanifold.session.control_desk import ControlSlip
    from asyncmanifold.session.locks import is_locked

    run: Path = options.directory
    check_words(options.words)
    if not is_locked(run):
        raise InputError(f"{run}: no run is going on there")
    try:
        slip = ControlSlip(run, options.words)
    except OSError as error:
        raise InputError(f"{run}: takes no requests, a replay or a run that has just begun") from error
    until = monotonic() + options.seconds
    while (answer := slip.answer()) is None:
        is_late = monotonic() > until
        if (is_late or not is_locked(run)) and slip.withdraw():
            why = f"no answer in {options.seconds} s" if is_late else "the run has ended"
            raise InputError(f"{run}: {why}, the request is withdrawn")
        if not is_locked(run):
            answer = slip.answer() or (False, "the run has ended before it answered")
            break
        sleep(POLL_SECONDS)
    is_done, line = answer
    if not is_done:
        raise InputError(f"{run}: {line}")
    print(line)
    return 0


def watch_command(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from asyncmanifold.watch.watch_server import WatchServer, read_token  # not needed for --help

    token = None if options.token_file is None else read_token(options.token_file)
    with WatchServer(options.directory, options.host, options.port, token) as server:
        print(f"watching {options.directory}: {server.address} (Ctrl-C ends it, not the run)", flush=True)
        server.serve_forever()
    return 0
