"""Everything exported is explained: its arguments, and an example that runs."""

import dataclasses
import doctest
import inspect

import pytest

import asyncmanifold
from asyncmanifold import checks, flower, metrics
from asyncmanifold.geometry import bezier, crossing

EXPORTED = {
    **{name: getattr(asyncmanifold, name) for name in asyncmanifold.__all__ if name != "__version__"},
    **{f"flower.{name}": getattr(flower, name) for name in flower.__all__},
}
EXPLAINED = {name: thing for name, thing in EXPORTED.items() if callable(thing)}
FINDER = doctest.DocTestFinder(recurse=False)


def arguments_of(thing):
    """Return the names of what a caller gives."""
    if dataclasses.is_dataclass(thing):
        return {field.name for field in dataclasses.fields(thing) if field.init}
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return set()
    return set(inspect.signature(thing).parameters)


def test_what_cannot_be_called_is_a_table_of_names():
    assert set(EXPORTED) - set(EXPLAINED) == {"METHODS", "PARTS"}


@pytest.mark.parametrize("name", EXPLAINED)
def test_every_argument_is_explained(name):
    thing = EXPLAINED[name]
    explained = explained_by(thing)
    if isinstance(thing, type):
        explained |= {word for base in thing.__mro__ for word in explained_by(base)}
    if name == "flower.evaluate_reply":
        explained |= explained_by(flower.train_reply)
    assert arguments_of(thing) <= explained


def explained_by(thing):
    lines = (inspect.getdoc(thing) or "").splitlines()
    return {line.strip().partition(":")[0] for line in lines if ":" in line}


@pytest.mark.parametrize("name", EXPLAINED)
def test_every_example_runs(name):
    thing = EXPLAINED[name]
    (found,) = FINDER.find(thing, name, globs={})
    assert found.examples, f"{name} has no example"
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found).failed == 0


@pytest.mark.parametrize("module", [bezier, checks, crossing, metrics])
def test_examples_inside_hold(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
