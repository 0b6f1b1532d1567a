"""Sphinx's settings. `make docs` builds the site: warnings are errors, tutorials are executed."""

import re
import sys
from pathlib import Path

import asyncmanifold

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference_pages  # noqa: E402 - it is beside this file

project = "asyncmanifold"
author = "The asyncmanifold authors"
version = release = asyncmanifold.__version__
copyright = author

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False
suppress_warnings = ["myst.header"]  # a generated page may start below the first level

nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True

html_theme = "furo"
html_title = "asyncmanifold"
html_static_path: list[str] = []

OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:(?:\.\./)+(?:src|examples|benchmarks|tests)[^)]*|[\w-]+\.(?:toml|py|sh))\)"
)
"""A link from a page to a file of the repository that is no page."""


def point_inside(app, name, source):
    """Turn links to files outside the site into plain text, and links to other documents into links here."""
    text = OUTSIDE.sub(r"\1", source[0])
    text = text.replace("](../results/README.md", "](generated/results/README.md")
    text = (
        text.replace("](../docs/", "](../../")
        .replace("](docs/", "](../")
        .replace("](../CONTRIBUTING.md)", "](generated/contributing.md)")
    )
    source[0] = text


def setup(app):
    """Write the generated pages before Sphinx looks for pages."""
    reference_pages.write_pages(HERE / "generated")
    app.connect("source-read", point_inside)
