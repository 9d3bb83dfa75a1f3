"""Notebooks at the published sizes, which without a GPU run nothing: papermill, report.

One of each kind: notebooks are alike (test_rules.py), and what each exhibit shows at that size is
asked of its session (tests/unit/figures). The report shows these and STRONGHOLD's. With --thorough
all.
"""

from __future__ import annotations

import html
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.notebooks.offline import outside_addresses
from tests.unit.figures.records import simulated
from workbench import reproduce as module
from workbench.core.notebook_files import quick_nbformat
from workbench.exhibits import EXHIBITS, STRONGHOLD, find, open_exhibit
from workbench.reproduce import Reproduced, report, reproduce

pytestmark = pytest.mark.slow

UNASKED = "Shown from stored results"
"""In the report, of an exhibit that has not been reproduced."""
KINDS = ("9", "harmony_8")


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return EXHIBITS if request.config.getoption("--thorough") else KINDS


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    if not open_exhibit("9", "paper", folder).simulated:
        pytest.skip("there is a GPU: the published sizes would be run for real, for an hour")
    return folder


@pytest.fixture(scope="module")
def done(results: Path, figures: tuple[str, ...]) -> tuple[Reproduced, list[str]]:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.report.EXHIBITS", dict.fromkeys([*STRONGHOLD, *figures]))
        patch.setattr("workbench.figures.rows.simulated", simulated)
        return reproduce("paper", results, only=[*figures], echo=lines.append), lines


def test_every_exhibit_leaves_figure_table_and_notebook(
    done: tuple[Reproduced, list[str]], results: Path, figures: tuple[str, ...]
) -> None:
    reproduced, lines = done
    assert reproduced.ok
    folder = results / "reports" / "paper"
    for figure in figures:
        for suffix in (".pdf", ".png", ".csv"):
            assert (folder / f"{find(figure).name}{suffix}").stat().st_size > 300
        ran = quick_nbformat().read(folder / f"{find(figure).notebook}.ipynb", as_version=4)
        assert all(c.execution_count for c in ran.cells if c.cell_type == "code")
        assert not [o for c in ran.cells for o in c.get("outputs", ()) if o.output_type == "error"]
    assert not (results / "runs").exists(), "nothing runs"
    starts = [line for line in lines if line.startswith("[")]
    assert starts[0] == f"[1/{len(figures)}] {find(figures[0]).words}: {find(figures[0]).title}"
    assert starts[1].startswith("[2/"), "the next one starts while a figure is drawn"
    assert len(starts) == 2 * len(figures)


def test_the_report_says_what_it_must(
    done: tuple[Reproduced, list[str]], figures: tuple[str, ...]
) -> None:
    assert outside_addresses(done[0].report) == []
    text = html.unescape(done[0].report.read_text())
    for figure in STRONGHOLD:
        assert f"Figure {figure}: {find(figure).title}" in text
    assert all(f'id="{find(figure).name}"' in text for figure in figures)
    assert text.count("data:image/svg+xml") >= len({*STRONGHOLD, *figures})
    first, shown, tabled = (text.index(mark) for mark in ("</ul>", "<figure", "<table"))
    summary = text[text.index("<h1") : first]
    assert first < shown < tabled < len(text), "a summary, then figures, then tables"
    assert summary.count("<li>") <= 10
    assert all(
        words in summary for words in ("hold", "Worst prediction", "Machine", "STRONGHOLD, ")
    )
    assert text.rindex("<figure") < tabled, "all figures come before the first table"
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


@pytest.fixture(scope="module")
def again(
    done: tuple[Reproduced, list[str]], results: Path, tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """Two exhibits a second time, one of them broken; `workbench report` writes the report of these
    and of two that nobody asked for."""
    files = results / "reports" / "paper"
    before = {path.name: path.read_bytes() for path in files.glob("fig9.*")}
    notebooks = tmp_path_factory.mktemp("notebooks")
    for path in module.NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(path, notebooks)
    broken = notebooks / "stronghold_8b.ipynb"
    broken.write_text(broken.read_text().replace("rows = exhibit", "1 / 0; rows = exhibit"))
    reported = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NOTEBOOKS", notebooks)
        patch.setattr(module, "write_report", lambda *asked: reported.append(asked[:2]))
        reproduced = reproduce("paper", results, only=["8b", "fig9"], echo=lambda line: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.report.EXHIBITS", ("7a", "8a", "8b", "9"))
        path = report(results, echo=lambda line: None)
    after = {path.name: path.read_bytes() for path in files.glob("fig9.*")}
    told = {"reproduced": reproduced, "reported": reported, "path": path}
    return SimpleNamespace(**told, before=before, after=after)


def test_the_second_time_changes_nothing_but_dates(
    done: tuple[Reproduced, list[str]], again: SimpleNamespace, figures: tuple[str, ...]
) -> None:
    assert len(again.before) == 3
    assert again.after == again.before
    assert again.path == str(done[0].report)
    text = Path(again.path).read_text()
    assert "Not run yet" not in text
    assert text.count(UNASKED) == len({"7a", "8a"} - {*figures}), "others are still there"


def test_one_that_fails_stops_no_other_and_the_report_says_why(
    again: SimpleNamespace, results: Path
) -> None:
    assert not again.reproduced.ok
    ended = {figure: outcome.ok for figure, outcome in again.reproduced.outcomes.items()}
    assert ended == {"8b": False, "9": True}
    assert again.reported == [("paper", results)], "a report is written all the same"
    text = Path(again.path).read_text()
    assert "Not all exhibits ran to their end" in text
    assert text.count("ZeroDivisionError: division by zero") >= 2
