"""The command line that all scripts beside this one share."""

from __future__ import annotations

import argparse
from pathlib import Path

from problem import SIZES, Problem, read_problem


def parse() -> tuple[Problem, argparse.Namespace]:
    """Return the problem and what else the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", type=Path, help="the file with initial weights and shards")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--method", choices=("fedasync", "fedbuff"), default="fedasync")
    parser.add_argument("--at-once", type=int, default=1, help="clients trained at once, by its own means")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process")
    parser.add_argument("--channels-last", action="store_true", help="of this library and the bare loop")
    parser.add_argument("--optimize-memory", choices=("true", "false"), default="true", help="of APPFL")
    parser.add_argument("--generate", action="store_true", help="of FLGo: only write its task")
    options = parser.parse_args()
    return read_problem(options.problem, SIZES[options.size]), options
