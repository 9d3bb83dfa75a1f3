"""Harmony's exhibits from parameters to verdict, where nothing has to run for it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.unit.figures.harmony_runs import EXHIBITS, run
from tests.unit.figures.paper import in_report
from workbench.core import host
from workbench.exhibits import HARMONY, open_exhibit
from workbench.exhibits.harmony import base, table
from workbench.exhibits.session import Session
from workbench.figures import rows as tidy
from workbench.published import harmony_plans
from workbench.report.sections import shown_exhibits, verdicts_of
from workbench.runs.resolve import key_of
from workbench.ui.evaluation import work as evaluation_work

SOME = ("harmony_10", "harmony_13", "harmony_table1")
"""Exhibits that simulate plans, that simulate nothing, and with a table of searches."""
SHORT = {"model": "bert_large_seq512", "figure": "stored", "mode": "pp"}


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about a machine without one, wherever they run, and about a project that has
    measured nothing yet."""
    monkeypatch.setattr(host, "resolve_device", lambda device: "cpu")
    monkeypatch.setattr("workbench.runs.store.REPOSITORY_RESULTS", tmp_path / "none")


def with_one_run(name: str, folder: Path) -> Session:
    """An exhibit at size tiny with the first of its runs done."""
    session = open_exhibit(name, "tiny", folder)
    spec = session.exhibit.specs(session.size)[0]
    session.store.write(run(spec, 0.2, key=key_of(spec)))
    return session


@pytest.mark.parametrize(
    "name",
    [name if name in SOME else pytest.param(name, marks=pytest.mark.thorough) for name in EXHIBITS],
)
def test_paper_without_a_gpu_is_estimated_and_says_so(name: str, tmp_path: Path) -> None:
    session = open_exhibit(name, "paper", tmp_path / "new")
    assert session.preview()["note"].str.contains("no GPU can be used here").all()
    losses = name in ("harmony_13", "harmony_21")  # which nothing estimates or simulates
    assert session.preview()["note"].str.contains("estimated and simulated").all() != losses
    assert list(session.stages()) == []
    assert not (tmp_path / "new").exists()
    rows = session.run()
    assert tidy.pick(rows, source=tidy.MEASURED, variant="")["value"].isna().all()
    assert (rows["figure"] == name).all()
    paths = session.figure(rows).paths
    assert [path.suffix for path in paths] == [".pdf", ".png", ".csv"]
    assert all(path.stat().st_size > 300 for path in paths)
    verdict = session.verdict(rows)
    assert "reference ratio" in verdict.columns
    assert "measured" not in set(verdict[verdict["verdict"] == "holds"]["judged"])
    told = session.provenance().set_index("what")["is"]
    assert told["reference"].startswith("none" if losses else "estimates")
    assert ("plans" in told) != losses


def test_what_is_done_is_shown_and_what_is_not_is_to_run(tmp_path: Path) -> None:
    session = with_one_run("harmony_12", tmp_path)
    preview = session.preview()
    assert preview["state"].tolist() == [
        "finished 2026-11-21 06:00", *["to run"] * 4, "1 finished, 4 to run"
    ]  # fmt: skip
    assert preview["ranks"].tolist() == [1, 2, 2, 2, 2, ""]
    assert preview["time"].tolist() == ["", *["?"] * 4, "?"]
    assert preview["note"].iloc[-1].startswith("4 of unknown time: not measured here yet")
    for tier in ("device", "host"):
        assert preview[tier].iloc[1:-1].str.contains("iB").all(), "packs are pinned, so it is known"
    rows = session.rows()
    assert set(rows.query("source == 'measured'")["ranks"]) == {1}
    assert set(session.verdict(rows).query("judged == 'measured'")["verdict"]) == {
        "holds",
        "no result",
    }


def test_measurements_kept_in_the_project_are_shown_as_measured(tmp_path: Path) -> None:
    session = open_exhibit("harmony_17", "paper", tmp_path)
    rows = session.rows()
    kept = rows[(rows["source"] == tidy.REFERENCE) & (rows["ranks"] <= 2)]
    kept = kept.assign(source="measured", variant="", hardware="NVIDIA H200", device="cuda")
    folder = tmp_path / "published-here" / "nvidia-h200"
    folder.mkdir(parents=True)
    kept.to_csv(folder / "harmony_17.csv", index=False)
    again = open_exhibit("harmony_17", "paper", tmp_path).run()
    own = again[again["source"] == tidy.MEASURED]
    assert len(own) == len(kept)
    assert own["value"].notna().all()
    assert "measured" in set(session.verdict(again)["judged"])
    assert len(open_exhibit("harmony_18", "paper", tmp_path).rows()) == len(rows)


def test_force_plans_again_where_the_profiles_are(
    tmp_path: Path, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (reference / "harmony" / "profile_bert_large_seq512.json").exists():
        pytest.skip("the artifact's profiles are not there")
    every = harmony_plans.questions()
    monkeypatch.setattr(
        harmony_plans, "questions",
        lambda figure: [q for q in every if {k: getattr(q, k) for k in SHORT} == SHORT]
        if figure == "stored" else [],
    )  # fmt: skip
    session = open_exhibit("harmony_table1", "smoke", tmp_path)
    before = len(harmony_plans.kept("stored"))
    session.run(force=True)
    assert len(tidy.pick(base.plans_of(session.store), figure="stored")) == 2 < before
    assert len(tidy.pick(base.plans_of(session.store), figure="10")) == len(
        harmony_plans.kept("10")
    )
    monkeypatch.setattr(base, "profiles_folder", lambda results: None)
    session.run(force=True)  # nothing is planned, and what there is stays
    assert len(tidy.pick(base.plans_of(session.store), figure="stored")) == 2


def test_the_evaluation_knows_what_runs(tmp_path: Path) -> None:
    told = evaluation_work.claim("harmony_12", "tiny", str(tmp_path))
    assert (told["runs"], told["published"]) == (True, [])
    assert "Harmony-PP" in told["claim"]
    assert evaluation_work.claim("harmony_12", "paper", str(tmp_path))["runs"] is False
    assert evaluation_work.claim("here_offload", "tiny", str(tmp_path))["runs"] is False


@pytest.mark.thorough
def test_the_report_has_a_section_an_exhibit(tmp_path: Path) -> None:
    session = with_one_run("harmony_21", tmp_path)
    exhibits = shown_exhibits(HARMONY, "tiny", session.store, {})
    text = in_report(exhibits)
    for name in EXHIBITS:
        assert f'id="{name}"' in text
    assert text.count("data:image/svg+xml") == len(EXHIBITS)
    verdicts = verdicts_of(exhibits)
    assert set(verdicts["exhibit"]) == set(EXHIBITS)
    assert {"holds", "does not hold", "no result"} == set(verdicts["verdict"])
    assert "They are not measurements" in text
    assert "<figcaption>They" not in text, "the first sentence stands in the drawing alone"


def test_rows_survive_their_csv(tmp_path: Path) -> None:
    session = with_one_run("harmony_17", tmp_path)
    rows = session.rows()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    back = table.table(pd.read_csv(tmp_path / "rows.csv").to_dict("records"))
    pd.testing.assert_frame_equal(back, rows, check_dtype=False)
