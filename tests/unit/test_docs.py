"""The manual: made pages are up to date, links lead somewhere, examples are true."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import real_cases, real_models
from benchmarks.offload import OFFLOAD, make_parser
from benchmarks.pipelines import PIPELINES
from benchmarks.servers import SERVERS

LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
SOURCE = re.compile(r"(?<![\w./'\"-])[a-z_][\w/]*\.(?:py|cpp)\b")


def test_pages_are_as_their_sources_make_them(root: Path) -> None:
    words = [sys.executable, "scripts/docs.py", "check"]
    answer = subprocess.run(words, cwd=root, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert len((root / "README.md").read_text().split()) <= 900


def test_links_of_all_pages_lead_to_files(root: Path) -> None:
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text())]
    assert len(links) > 30
    assert not [(page, link) for page, link in links if not (page.parent / link).exists()]


def test_sources_name_files_that_are_there(root: Path) -> None:
    """Docstrings lead from file to file, and moves leave them behind."""
    names = ("workbench", "baselines", "tests", "benchmarks", "examples", "scripts")
    folders = [root / name for name in names]
    files = [path for each in folders for end in ("py", "cpp") for path in each.rglob(f"*.{end}")]
    there = "\n".join(f"/{path}\n" for path in files)
    ours = [path for path in files if {*folders[:2]} & {*path.parents}]
    named = [(path, name) for path in ours for name in SOURCE.findall(path.read_text())]
    assert len(named) > 300
    assert not [(path, name) for path, name in named if f"/{name}\n" not in there]


def test_the_manual_builds_without_a_warning(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    html, tests = (["-q", "-W", "-b", name, "docs", str(tmp_path)] for name in ("html", "doctest"))
    code = f"from sphinx.cmd.build import main; exit(main({html}) or main({tests}))"
    words = [sys.executable, "-c", code]
    answer = subprocess.run(words, cwd=root, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "0 failures in tests" in (tmp_path / "output.txt").read_text()


def test_the_quickstart_runs(root: Path, tmp_path: Path, measured: Path) -> None:
    shutil.copytree(measured, tmp_path / "profiles")
    source = (root / "notebooks" / "quickstart.py").read_text()
    for name, value in {"layers": 2, "hidden": 32, "window": 2, "steps": 2}.items():
        source = re.sub(rf"^{name}: int = \d+", f"{name} = {value}", source, flags=re.MULTILINE)
    names = {}
    exec(source.replace('"results"', f'"{tmp_path}"'), names)
    assert names["record"].status == "ok"
    assert names["planned"].step_seconds > 0


def test_commands_of_the_ten_numbers_pick_runs(root: Path) -> None:
    text = (root / "docs" / "artifact.md").read_text().partition("ten numbers\n")[2]
    found = re.findall(r"`python -m benchmarks\.(.+?)`", text)
    suites = {"offload": OFFLOAD, "servers": SERVERS, "pipelines": PIPELINES}
    for name, *words in map(shlex.split, found):
        if name == "real_models":
            assert real_cases.rows(real_models.make_parser().parse_args(words).only)
            continue
        for only in make_parser(suites[name]).parse_args(words).only:
            assert suites[name].cases.entries("paper", warmup=1, measured=1, only=[only]), only
    assert len(found) == 9
