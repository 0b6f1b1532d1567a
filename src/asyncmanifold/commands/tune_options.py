"""The options of a search: keys, values, and how they are tried."""

from __future__ import annotations

import argparse

from asyncmanifold.commands.argument_types import (
    read_factors,
    read_key,
    read_names,
    read_numbers,
    read_positive,
)


def add_tune_options(tune: argparse.ArgumentParser) -> None:
    """Add what only ``tune`` has."""
    tune.add_argument(
        *("--methods", "--method"), type=read_names, help="names, separated by commas (default: all)"
    )
    tune.add_argument(
        "--key",
        dest="keys",
        metavar="KEY[=VALUES]",
        action="append",
        type=read_key,
        help="what to search over (default: global_lr); may be repeated, as --key global_lr=1,2 --key "
        "local_lr=1e-3,5e-3, to try all combinations",
    )
    tried = tune.add_mutually_exclusive_group()
    tried.add_argument(
        "--values",
        type=read_names,
        default="0.25,0.5,1,1.5,2,2.5,3,5",
        help="of a single key, separated by commas (default: %(default)s)",
    )
    tried.add_argument(
        "--factors",
        type=read_factors,
        help="instead of values: multiples of each method's value in the scenario",
    )
    tune.add_argument(
        "--halving",
        action="store_true",
        help="successive halving, for long runs: the best third of each method's values, rounded up, is run "
        "again three times as long, until three or fewer are left, which run in full; the first lengths are "
        "updates/3, updates/9 … as needed",
    )
    tune.add_argument("--seeds", type=read_numbers, default=[0], help="separated by commas (default: 0)")
    tune.add_argument("--workers", type=read_positive, help="parallel runs (default: one per core)")
