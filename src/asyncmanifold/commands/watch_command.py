"""The commands that look at a running run or talk to it: quick to start, for they load no torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from asyncmanifold.commands.argument_types import read_natural


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


def watch_command(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from asyncmanifold.watch.watch_server import WatchServer, read_token  # not needed for --help

    token = None if options.token_file is None else read_token(options.token_file)
    with WatchServer(options.directory, options.host, options.port, token) as server:
        print(f"watching {options.directory}: {server.address} (Ctrl-C ends it, not the run)", flush=True)
        server.serve_forever()
    return 0
