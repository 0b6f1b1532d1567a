"""docs/paper.md: every file and name in it exists, and every command line in it is accepted."""

import re
import shlex
from pathlib import Path

import pytest

from asyncmanifold import METHODS
from asyncmanifold.commands.cli import build_parser
from asyncmanifold.configuration.config import load_config, scenario_names

HERE = Path(__file__).parents[1]
PAGE = (HERE / "docs" / "paper.md").read_text()
TABLE, OPEN = PAGE.split("## What the paper leaves open")
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")]
SCRIPT = (HERE / "results" / "run.sh").read_text()


def column(number):
    return [found for row in ROWS for found in re.findall(r"`([^`]+)`", row.split("|")[number])]


def files_and_names():
    """Pairs of a file and a name in parentheses after it, or None."""
    pattern = re.compile(r"`([\w/.-]+\.(?:py|toml|sh))`(?: \(((?:`\w+`(?:, )?)+)\))?")
    for row in ROWS:
        for path, names in pattern.findall(row):
            for name in re.findall(r"`(\w+)`", names) or [None]:
                yield path, name


def test_the_page_has_rows_for_every_section():
    for section in ("1 ", "2.1", "2.2", "3 ", "3.1", "4 ", "4.1", "4.2", "5 ", "A ", "B "):
        assert any(re.match(rf"\| (\*\*)?{re.escape(section)}", row) for row in ROWS), section


@pytest.mark.parametrize(("path", "name"), sorted(set(files_and_names()), key=str))
def test_every_file_and_name_exists(path, name):
    place = HERE / path if (HERE / path).exists() else HERE / "src" / "asyncmanifold" / path
    assert place.exists()
    assert name is None or re.search(rf"\b{name}\b", place.read_text())


@pytest.mark.parametrize("line", sorted({found for found in column(3) if " " in found}))
def test_every_command_line_is_accepted(line):
    words = shlex.split(line)
    if words[0] == "results/run.sh":
        assert all(re.search(rf"^{step}\(\)", SCRIPT, re.MULTILINE) for step in words[3:])
        return
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (HERE / "Makefile").read_text(), re.MULTILINE)
        return
    options = build_parser().parse_args(words[1:])
    if options.command in {"run_command", "compare_command", "tune_command"}:
        assert options.scenario in scenario_names()
        method = options.method if isinstance(getattr(options, "method", None), str) else None
        load_config(
            options.scenario, method, settings=dict(entry.split("=", 1) for entry in settings_of(words))
        )
    if options.command == "theory_command":
        assert options.method in METHODS


def settings_of(words):
    return [words[place + 1] for place, word in enumerate(words) if word == "--set"]


def test_every_setting_in_the_table_of_open_choices_exists():
    keys = {name for name in re.findall(r"`(\w+)`", OPEN) if "_" in name}
    known = " ".join(path.read_text() for path in (HERE / "src" / "asyncmanifold").rglob("*.py"))
    assert all(re.search(rf"^    {key}: ", known, re.MULTILINE) for key in keys)
