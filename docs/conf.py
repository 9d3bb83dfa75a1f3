"""Sphinx: Markdown by MyST, API pages from docstrings, doctests; offline and without warnings."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import workbench  # noqa: E402

# Public names are imported when they are used; autodoc lists those that a module holds.
public = getattr(workbench, "__all__", ())
vars(workbench).update({name: getattr(workbench, name) for name in public})

project = "Workbench"
author = "The Workbench authors"
copyright = "The Workbench authors, MIT licence"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
]
exclude_patterns = ["*.in"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
doctest_test_doctest_blocks = ""
html_theme = "alabaster"
html_theme_options = {
    "description": "Train models larger than the GPUs at hand, and see why.",
    "page_width": "1150px",
    "fixed_sidebar": True,
}
html_copy_source = False
html_show_sourcelink = False
linkcheck_ignore = [r"https?://.*"]
