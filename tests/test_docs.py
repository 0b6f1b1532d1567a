"""The generated pages of the documentation are complete: methods, keys and public names."""

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import asyncmanifold
from asyncmanifold import METHODS, flower
from asyncmanifold.commands.cli import main
from asyncmanifold.configuration.parts import PARTS, part_class
from asyncmanifold.server.method_notes import METHOD_NOTES
from asyncmanifold.session.recorded_arithmetic import explain_other_arithmetic
from tiny import of_kind, trace_of

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

import reference_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    reference_pages.write_pages(folder)
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.md")}


def test_every_public_name_is_in_the_api_reference(pages):
    listed = re.findall(r"^\.\. (?:auto\w+|py:data):: asyncmanifold\.(.*)$", pages["api.md"], re.MULTILINE)
    assert sorted(listed) == sorted(
        [name for name in asyncmanifold.__all__ if name != "__version__"]
        + [f"flower.{name}" for name in flower.__all__]
    )


def test_every_method_has_a_note_and_a_page(pages):
    assert list(METHOD_NOTES) == list(METHODS)
    for name, note in METHOD_NOTES.items():
        page = pages[f"methods/{name}.md"]
        assert all(text in page for text in (note.rule, note.reference, note.differs))
        assert f"(methods/{name}.md)" in pages["methods.md"]


def test_a_method_page_says_what_is_sent_and_kept(pages):
    assert "| sent back, per update | 8 P bytes |" in pages["methods/asyncbezier.md"]
    assert "| kept by the server besides the model, in numbers | nothing |" in pages["methods/asyncbezier.md"]
    assert "| kept by the server besides the model, in numbers | P |" in pages["methods/dcasgd.md"]
    assert "| sent back, per update | 4 P bytes |" in pages["methods/fedbuff.md"]
    assert "| kept by the server besides the model, in numbers | P held |" in pages["methods/fedbuff.md"]
    assert "in numbers | P |" in pages["methods/orthomean.md"]
    assert "in numbers | 2 P + n × P |" in pages["methods/ca2fl.md"]
    assert "in numbers | P + 5 × P |" in pages["methods/fedfa.md"]


def test_a_method_written_out_is_that_method(pages, tmp_path):
    from asyncmanifold.configuration.config import load_config

    for name, method in METHODS.items():
        (written,) = re.findall(r"```toml\n(.*?)```", pages[f"methods/{name}.md"], re.DOTALL)
        (tmp_path / "mine.toml").write_text('[task]\nname = "digits"\n' + written)
        assert load_config(str(tmp_path / "mine.toml"), f"like-{name}").method == method


def test_every_configuration_key_is_in_the_reference(pages):
    page = pages["configuration.md"]
    classes = [*reference_pages.SECTIONS.values()]
    classes += [part_class(key, name) for key, choices in PARTS.items() for name in choices]
    for cls in classes:
        assert all(f"| `{field.name}` | " in page for field in fields(cls))


def test_the_recorded_deployment_of_the_tutorial_is_repeated(tmp_path):
    """To rounding on the kind of processor that made it; elsewhere differences grow with every update."""
    recorded = Path(reference_pages.__file__).parent / "tutorials" / "recorded-deployment"
    command = ["run", str(recorded / "config.toml"), "--replay", str(recorded / "trace.jsonl")]
    assert main([*command, "--out", str(tmp_path / "again"), "--quiet"]) == 0
    made, expected = (of_kind(trace_of(folder), "update") for folder in (tmp_path / "again", recorded))
    assert len(made) == len(expected) == 24
    compared = 3 if explain_other_arithmetic(recorded) else 24
    for one, other in zip(made[:compared], expected, strict=False):
        assert one["step_norm"] == pytest.approx(other["step_norm"], rel=1e-5)
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
