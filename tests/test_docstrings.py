"""Everything exported is explained: its arguments, and an example that runs."""

import dataclasses
import doctest
import inspect

import pytest

import asyncmanifold
from asyncmanifold import LocalTraining, Method, Run, Schedule, checks, flower, metrics
from asyncmanifold.configuration import keys
from asyncmanifold.configuration.parts import PARTS, part_class
from asyncmanifold.geometry import bezier, crossing
from asyncmanifold.report import charts, curves, figure, result_table, score_layers, what_was_run

EXPORTED = {
    **{name: getattr(asyncmanifold, name) for name in asyncmanifold.__all__ if name != "__version__"},
    **{f"flower.{name}": getattr(flower, name) for name in flower.__all__},
}
EXPLAINED = {name: thing for name, thing in EXPORTED.items() if callable(thing)}
INSIDE = [bezier, checks, crossing, keys, metrics]
REPORT = [charts, curves, figure, result_table, score_layers, what_was_run]
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


@pytest.mark.parametrize("module", [*INSIDE, *REPORT])
def test_examples_inside_hold(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


NAMED_PARTS = [part_class(key, name) for key, choices in PARTS.items() for name in choices]


@pytest.mark.parametrize("section", [Method, LocalTraining, Schedule, Run, *NAMED_PARTS])
def test_every_configuration_key_has_a_type_a_default_and_a_meaning(section):
    explained = keys.explain_keys(section)
    assert [key.name for key in explained] == [field.name for field in dataclasses.fields(section)]
    assert all(key.type and key.default and key.meaning for key in explained)


def test_keys_are_described_in_words():
    described = {key.name: key for key in keys.explain_keys(Schedule)}
    assert described["kind"] == keys.ConfigurationKey(
        "kind", "'queue' or 'clock'", "queue", '``"queue"`` or ``"clock"``.'
    )
    assert described["latency"].type == "a part, by name"
    assert described["latency"].default.startswith("constant")
    assert described["concurrency"].type == "a whole number or none"
    assert described["concurrency"].default == "none"
    assert "drawn from [0, ``late_by``]" in described["late_fraction"].meaning
