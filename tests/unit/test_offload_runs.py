"""The offload benchmark for real: tiny runs of every method, on any machine."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from benchmarks.offload import main
from benchmarks.offload_cases import OFFLOAD as CASES
from tests.forks.server import fork
from tests.runs.helpers import left_behind
from workbench.published.here import OFFLOAD, Run

CHOSEN = ("--only", "plain", "--only", "stronghold")


def run_tiny(tmp_path: Path, *words: str) -> int:
    folders = ["--out", str(tmp_path / "out"), "--results", str(tmp_path / "results")]
    return main(["--size", "tiny", "--warmup", "1", "--measured", "2", *folders, *words])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, measured: Path) -> tuple[Path, str]:
    """A folder with two real runs, and what was printed meanwhile."""
    folder, printed = tmp_path_factory.mktemp("ran"), io.StringIO()
    shutil.copytree(measured, folder / "results" / "profiles")
    with redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
        fork(patch)
        assert run_tiny(folder, *CHOSEN) == 0
    return folder, printed.getvalue()


def test_a_list_runs_nothing(tmp_path, capsys):
    assert run_tiny(tmp_path, *CHOSEN, "--list") == 0
    assert "stronghold" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_it_runs_end_to_end_on_any_machine(ran, capsys):
    folder, printed = ran
    assert "of plain" in printed
    assert "100.0%" in printed
    rows = runs_in(folder)
    assert [row.method for row in rows] == ["plain", "stronghold"]
    plain, *others = rows
    for row in others:
        assert row.final_loss == pytest.approx(plain.final_loss, rel=1e-6)
        assert row.host_gib > 0
    assert min(row.samples_per_second for row in rows) > 0
    assert left_behind(folder) == []
    assert_alike(folder, 2)
    assert run_tiny(folder, *CHOSEN) == 0
    assert capsys.readouterr().out.count("done before") == 2


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.deepspeed
def test_every_method_trains_alike(ran):
    """Each is asked alone by its own tests, and four of these by test_end_to_end.py."""
    folder, _ = ran
    assert run_tiny(folder) == 0
    runs = runs_in(folder)
    assert {run.named for run in runs} == set(CASES.by_size["tiny"][0].methods)
    assert_alike(folder, len(runs))


def runs_in(folder: Path) -> list[Run]:
    return OFFLOAD.read(folder / "out" / "offload.jsonl")


def assert_alike(folder: Path, count: int) -> None:
    """All have trained to the same losses; of ours it is told how, and what was planned."""
    runs = runs_in(folder)
    assert [run.status for run in runs] == ["ok"] * count
    for run in runs:
        assert run.record.losses == pytest.approx(runs[0].record.losses, rel=3e-6), run.named
    (ours,) = (run for run in runs if run.method == "stronghold")
    assert ours.predicted_step_seconds > 0
    facts = ours.record.bench
    assert facts["lanes"]["predicted"]["compute"] > 0
    assert facts["lanes"]["measured"]["compute"] > 0
    assert ours.record.predicted["settings"]


def test_a_users_mistake_is_one_sentence(tmp_path, capsys):
    assert run_tiny(tmp_path, "--only", "nothing") == 2
    assert "nothing matches 'nothing'" in capsys.readouterr().err
