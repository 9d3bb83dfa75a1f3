"""The manual: made pages are up to date, links lead somewhere, examples are true."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
WORDS = 900
"""The most that README.md may have, marks of its tables among them."""


@pytest.fixture(scope="module")
def docs(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_script", root / "scripts" / "docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_as_their_sources_make_them(docs: ModuleType) -> None:
    assert docs.stale() == [], "run `make docs`"


def test_a_changed_row_of_the_table_of_methods_makes_the_readme_stale(docs, monkeypatch) -> None:
    row = docs.methods.find("fsdp")
    other = {"fsdp": docs.methods.Method(name="fsdp", label="", module=row.module, summary="")}
    monkeypatch.setattr(docs.methods, "PEERS", docs.methods.PEERS | other)
    assert docs.stale() == ["README.md"]


def test_the_readme_is_short(root: Path) -> None:
    assert len((root / "README.md").read_text().split()) <= WORDS


def test_links_of_all_pages_lead_to_files(root: Path) -> None:
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text())]
    assert len(links) > 30
    assert not [(page, link) for page, link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("builder", ["html", "doctest"])
def test_the_manual_builds_without_a_warning(builder: str, root: Path, tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser"):
        pytest.importorskip(package)
    words = ["-q", "-W", "-b", builder, "-d", str(tmp_path / "trees"), "docs", str(tmp_path)]
    answer = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], cwd=root, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    if builder == "html":
        assert "RunSpec" in (tmp_path / "api.html").read_text()
