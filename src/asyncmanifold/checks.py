"""Rules for settings, written in words: the same words check a value and explain what is allowed."""

from __future__ import annotations

import re
from math import inf
from typing import Any

from asyncmanifold.errors import InputError

NUMBER = r"(-?[\d.e-]+)"


def check(settings: Any, **rules: str) -> None:
    """Raise ``InputError`` if a field breaks its rule; the message names the call, the value and the rule.

    Rules are ``at least 0``, ``above 0``, either of them ``and finite``, ``between 0 and 1``, ``above 0 and
    below 1``, ``in [0, 1)``, ``one of 16, 32``, or the allowed strings, such as ``'adam' or 'sgd'``. A field
    that is None is unset and passes.

    >>> from asyncmanifold import OrthoDC
    >>> OrthoDC(threshold=2)
    Traceback (most recent call last):
    asyncmanifold.errors.InputError: OrthoDC(threshold=2) must be between -1 and 1
    """
    for name, rule in rules.items():
        value = getattr(settings, name)
        if value is not None and not _is_right(value, rule):
            raise InputError(f"{type(settings).__name__}({name}={value!r}) must be {rule}")


def _is_right(value: Any, rule: str) -> bool:
    try:
        return _holds(value, rule)
    except TypeError:  # what cannot be compared with a number is none
        return False


def _holds(value: Any, rule: str) -> bool:
    if "'" in rule:
        return value in re.findall(r"'([\w.-]+)'", rule)
    if numbers := re.fullmatch("one of (.*)", rule):
        return value in map(float, numbers[1].split(", "))
    if bounds := re.fullmatch(rf"between {NUMBER} and {NUMBER}", rule):
        return bool(float(bounds[1]) <= value <= float(bounds[2]))
    if bounds := re.fullmatch(rf"above {NUMBER} and below {NUMBER}", rule):
        return bool(float(bounds[1]) < value < float(bounds[2]))
    if bounds := re.fullmatch(rf"in \[{NUMBER}, {NUMBER}\)", rule):
        return bool(float(bounds[1]) <= value < float(bounds[2]))
    bounds = re.fullmatch(rf"(at least|above) {NUMBER}( and finite)?", rule)
    assert bounds is not None, rule
    least, is_finite = float(bounds[2]), value < inf or not bounds[3]
    return bool(is_finite and (value >= least if bounds[1] == "at least" else value > least))
