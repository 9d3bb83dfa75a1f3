"""All six notebooks at the published sizes, which without a GPU run nothing: papermill, report."""

from __future__ import annotations

import html
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.offline import outside_addresses
from workbench import reproduce as module
from workbench.figures.exhibit import EXHIBITS, FIGURES, find, name_of, notebook_of
from workbench.reproduce import Reproduced, report, reproduce
from workbench.session import open_exhibit

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    if not open_exhibit("9", "paper", folder).simulated:
        pytest.skip("there is a GPU: the published sizes would be run for real, for an hour")
    return folder


@pytest.fixture(scope="module")
def done(results: Path) -> tuple[Reproduced, list[str]]:
    lines: list[str] = []
    return reproduce("paper", results, echo=lines.append), lines


def test_every_exhibit_leaves_figure_table_and_notebook(
    done: tuple[Reproduced, list[str]], results: Path
) -> None:
    reproduced, lines = done
    assert reproduced.ok
    folder = results / "reports" / "paper"
    for figure in EXHIBITS:
        for suffix in (".pdf", ".png", ".csv"):
            assert (folder / f"{name_of(figure)}{suffix}").stat().st_size > 300
        ran = nbformat.read(folder / f"{notebook_of(figure)}.ipynb", as_version=4)
        assert all(c.execution_count for c in ran.cells if c.cell_type == "code")
        assert not [o for c in ran.cells for o in c.get("outputs", ()) if o.output_type == "error"]
    assert not (results / "runs").exists(), "nothing runs"
    starts = [line for line in lines if line.startswith("[")]
    assert starts[0] == f"[1/{len(EXHIBITS)}] figure 6a: {find('6a').TITLE}"
    assert len(starts) == 2 * len(EXHIBITS)


def test_the_report_says_what_it_must(done: tuple[Reproduced, list[str]]) -> None:
    text = html.unescape(done[0].report.read_text())
    for figure in FIGURES:
        assert f"Figure {figure}: {find(figure).TITLE}" in text
    for words in (
        "simulated with constants of the published machine",
        "updates only as many elements",
        "does not hold",
        "README table",
        "workbench reproduce --size paper",
        "nothing was measured for this size",
        "Does the simulator explain the published numbers?",
        "calibrates the simulation; published run not sound",
    ):
        assert words in text


def test_the_report_opens_offline(done: tuple[Reproduced, list[str]]) -> None:
    assert outside_addresses(done[0].report) == []


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium on the PATH")
def test_a_browser_without_a_network_shows_it(done: tuple[Reproduced, list[str]]) -> None:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    options += ["--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND"]
    answer = subprocess.run(
        ["chromium", *options, "--dump-dom", done[0].report.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert answer.returncode == 0
    assert answer.stdout.count("<img") == answer.stdout.count("data:image/svg+xml;base64,") >= 5
    assert "ERR_" not in answer.stdout


def test_the_second_time_changes_nothing_but_dates(
    done: tuple[Reproduced, list[str]], results: Path
) -> None:
    folder = results / "reports" / "paper"
    before = {path.name: path.read_bytes() for path in folder.glob("fig9.*")}
    again = reproduce("paper", results, only=["fig9"], echo=lambda line: None)
    assert again.ok
    assert list(again.outcomes) == ["9"]
    assert {path.name: path.read_bytes() for path in folder.glob("fig9.*")} == before
    path = report(results, echo=lambda line: None)
    assert path == str(again.report)
    assert "Not run yet" not in Path(path).read_text(), "the other exhibits are still there"


def test_one_that_fails_stops_no_other_and_the_report_says_why(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in module.NOTEBOOKS.glob("*.py"):
        shutil.copy(path, tmp_path)
    broken = tmp_path / "stronghold_8b.py"
    broken.write_text(broken.read_text().replace("rows = exhibit", "1 / 0\nrows = exhibit"))
    monkeypatch.setattr(module, "NOTEBOOKS", tmp_path)
    out = tmp_path / "out"
    reproduced = reproduce("paper", out, only=["8b", "9"], echo=lambda line: None)
    assert not reproduced.ok
    assert [outcome.ok for outcome in reproduced.outcomes.values()] == [False, True]
    text = reproduced.report.read_text()
    assert "Not all exhibits ran to their end" in text
    assert text.count("ZeroDivisionError: division by zero") >= 2
