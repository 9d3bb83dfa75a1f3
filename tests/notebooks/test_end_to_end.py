"""Notebooks that really run: killed without warning, resumed, and reported."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.notebooks.offline import outside_addresses
from tests.runs.helpers import HANG_S, left_behind, processes_of, role, wait_for
from workbench import reproduce as module
from workbench.exhibits import STRONGHOLD, open_exhibit
from workbench.reproduce import reproduce

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, measured: Path) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tiny")
    shutil.copytree(measured, folder / "profiles")
    yield folder
    assert left_behind(folder) == []


@pytest.fixture
def forked_kernels(forked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of kernels that this process starts are forked, too."""
    monkeypatch.setattr("jupyter_client.launcher.Popen", subprocess.Popen)


def papermill(root: Path, results: Path) -> subprocess.Popen[bytes]:
    """As somebody would run the notebook who has never heard of `workbench reproduce`."""
    source = root / "notebooks" / "figures" / "stronghold_9.ipynb"
    target = results / "by-hand.ipynb"
    parameters = ["-p", "size", "tiny", "-p", "results", str(results)]
    return subprocess.Popen(
        [sys.executable, "-m", "papermill", str(source), str(target), *parameters],
        cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip


def test_sigkill_of_papermill_leaves_no_process(root: Path, results: Path, answered) -> None:
    killed = papermill(root, results)
    wait_for(lambda: role("worker", results))
    kernels = psutil.Process(killed.pid).children()
    assert kernels
    killed.kill()
    killed.wait(HANG_S)
    with answered("papermill: killed, until nothing that it started is left", 8):
        assert left_behind(results) == []
        _, alive = psutil.wait_procs(kernels, timeout=HANG_S)
    assert alive == []


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.thorough), signal.SIGINT]
)
def test_a_polite_end_leaves_no_process_and_exit_code_130(
    root: Path, results: Path, number: int
) -> None:
    words = ("figure", "fig9", "-p", "size=tiny", "--results", str(results))
    # A shell's background process ignores Ctrl-C; one in the foreground does not.
    code = f"import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); \
from workbench.cli import main; sys.exit(main({list(words)!r}))"
    ended = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    wait_for(lambda: role("worker", results))
    ended.send_signal(number)
    _, complaint = ended.communicate(timeout=HANG_S)
    assert ended.returncode == 130
    assert b"everything that was running has been ended" in complaint
    assert processes_of(results) == [], "it is true when it is said"


@pytest.mark.usefixtures("forked_kernels")
def test_what_was_killed_is_resumed_and_ends(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The report is read below, and in test_paper.py.
    monkeypatch.setattr(module, "write_report", lambda size, results, echo: results / "report.html")
    lines: list[str] = []
    values = {"size": "tiny"}
    assert reproduce("smoke", results, only=["fig9"], parameters=values, echo=lines.append).ok
    session = open_exhibit("9", "tiny", results)
    assert [record.status for record in session.records()] == ["ok", "ok"]
    assert any("left" in line or "a step" in line for line in lines), "progress is passed on"
    assert "finished" in session.preview()["state"].iloc[-1], "nothing would run again"


@pytest.mark.deepspeed
@pytest.mark.usefixtures("forked_kernels")
def test_all_methods_train_and_the_report_shows_it(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All exhibits are read in test_paper.py.
    monkeypatch.setattr("workbench.report.EXHIBITS", STRONGHOLD)
    reproduced = reproduce(
        "smoke", results, only=["fig8a"], parameters={"size": "tiny"}, echo=lambda line: None
    )
    assert reproduced.ok
    text = reproduced.report.read_text()
    assert outside_addresses(reproduced.report) == []
    start = text.index("Does every method train?")
    losses = text[start : text.index("Do plans come true?")]
    off = re.findall(r"<td>(equal|\d\.\de[-+]\d+)</td>", losses)
    assert len(off) == 5
    assert all(value == "equal" or float(value) < 1e-5 for value in off)
    assert "deepspeed 0." in losses
    assert "<span>Megatron-LM</span>" in text[text.index("Where the numbers come from") :]
    assert re.search(r"bytes moved equal in (\d+) of \1\.", text)
    assert "One run, predicted above measured" in text
    assert text.count("cannot be told here") >= 4, "DeepSpeed's speed is not judged on a CPU"
    rows = open_exhibit("8a", "tiny", results).rows()
    measured = rows[rows["source"] == "measured"]
    assert len(measured) == 5
    assert measured["value"].gt(0).all()
    shutil.rmtree(results / "profiles")  # predictions are those of the runs' time
    again = open_exhibit("8a", "tiny", results).rows()
    assert again[again["source"] == "simulated"]["value"].gt(0).sum() == 5
    assert again.to_csv(index=False) == (results / "reports" / "tiny" / "fig8a.csv").read_text()
