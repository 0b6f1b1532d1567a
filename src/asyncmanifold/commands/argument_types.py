"""How the values of options are read; what is wrong with one is one line."""

from __future__ import annotations

import argparse


def read_setting(text: str) -> tuple[str, str]:
    """Return the key and the value of KEY=VALUE."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    return key.strip(), value.strip()


def read_positive(text: str) -> int:
    """Return a whole number, at least 1."""
    number = read_natural(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return number


def read_natural(text: str) -> int:
    """Return a whole number, at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 0")
    return int(text)


def read_factors(text: str) -> list[float]:
    """Return numbers above 0, separated by commas."""
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers separated by commas") from error
    if not all(0.0 < factor < float("inf") for factor in factors):
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and finite")
    return factors


def read_names(text: str) -> list[str]:
    """Return distinct names, separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name: must be names separated by commas")
    return list(dict.fromkeys(names))


def read_key(text: str) -> tuple[str, list[str] | None]:
    """Return the key and the values of KEY or KEY=VALUE,VALUE."""
    if "=" not in text:
        return text, None
    key, values = read_setting(text)
    return key, read_names(values)


def read_numbers(text: str) -> list[int]:
    """Return distinct whole numbers, separated by commas."""
    return list(dict.fromkeys(read_natural(part) for part in text.split(",")))
