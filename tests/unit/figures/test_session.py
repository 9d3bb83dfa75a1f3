"""An exhibit from parameters to verdict, where nothing has to run for it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.unit.figures.records import record
from workbench.core import host
from workbench.exhibits import open_exhibit
from workbench.exhibits.session import Session
from workbench.exhibits.stronghold.fig9 import EXHIBIT as FIG9
from workbench.runs.resolve import key_of
from workbench.shown import Shown


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about a machine without one, wherever they run, and about a project that has
    measured nothing yet."""
    monkeypatch.setattr(host, "resolve_device", lambda device: "cpu")
    monkeypatch.setattr("workbench.exhibits.stronghold.base.offload_runs", lambda roots: [])


def with_records(figure: str, folder: Path) -> Session:
    """Figure 9 at size tiny with one of its two runs done."""
    session = open_exhibit(figure, "tiny", folder)
    spec = FIG9.specs(session.size)[0]
    session.store.write(record(spec, 0.2, key=key_of(spec)))
    return session


def test_wrong_parameters_are_answered_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown exhibit '10'"):
        open_exhibit("10", "smoke", tmp_path)
    with pytest.raises(ValueError, match="unknown size 'large'"):
        open_exhibit("9", "large", tmp_path)
    with pytest.raises(ValueError, match="'small' needs a GPU.*use smoke"):
        open_exhibit("9", "small", tmp_path)


def test_opening_an_exhibit_writes_nothing(tmp_path: Path) -> None:
    open_exhibit("9", "paper", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_relative_folder_lies_in_the_repository(root: Path) -> None:
    assert open_exhibit("9", "paper", "results").store.root == root / "results"


def test_paper_without_a_gpu_is_simulated_and_says_so(tmp_path: Path) -> None:
    session = open_exhibit("8b", "paper", tmp_path)
    assert session.preview()["note"].str.contains("nothing runs").all()
    assert list(session.stages()) == []
    rows = session.run()
    assert set(rows["source"]) == {"published", "simulated"}
    drawing = session.figure(rows)
    assert [path.suffix for path in drawing.paths] == [".pdf", ".png", ".csv"]
    png, options = drawing._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert options["width"] < 400  # a column
    assert set(session.verdict(rows)["verdict"]) == {"holds"}
    assert "nothing was measured" in session.provenance().to_string()


def test_measurements_kept_in_the_project_are_shown_as_measured(tmp_path: Path) -> None:
    session = open_exhibit("9", "paper", tmp_path)
    csv = session.figure(session.run()).paths[-1]
    kept = pd.read_csv(csv).query("source == 'simulated' and variant == 'ours, exact'")
    kept = kept.assign(source="measured", variant="", hardware="NVIDIA H200", device="cuda")
    folder = tmp_path / "published-here" / "nvidia-h200"
    folder.mkdir(parents=True)
    kept.to_csv(folder / "stronghold_9.csv", index=False)
    again = open_exhibit("9", "paper", tmp_path)
    rows = again.run()
    assert (rows["source"] == "measured").sum() == len(kept)
    assert set(again.verdict(rows)["judged"]) == {"measured"}


def test_what_is_done_is_shown_and_what_is_not_is_planned(tmp_path: Path) -> None:
    session = with_records("9", tmp_path)
    preview = session.preview()
    assert preview["state"].tolist()[:-1] == ["cached 2026-11-21 06:00", "to run"]
    assert preview["state"].iloc[-1] == "1 cached, 1 to run"
    assert "not measured here yet" in preview["note"].iloc[-1]
    assert all(word.endswith("iB") for word in preview["device"].iloc[1:-1])
    rows = session.rows()
    assert rows.query("source == 'measured'")["x"].tolist() == [2]
    assert session.verdict(rows)["verdict"].tolist() == ["no value", "no value"]


def test_records_of_other_code_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = with_records("9", tmp_path)
    monkeypatch.setattr("workbench.core.methods.code_version", lambda name: "changed")
    assert session.records() == []


def test_a_preview_of_a_search_says_what_will_not_fit(tmp_path: Path) -> None:
    preview = open_exhibit("6a", "smoke", tmp_path).preview()
    first = preview.iloc[0]
    assert first["run"] == "megatron-lm: largest model"
    assert f"at {first['layers'] + 1} layers device memory" in first["note"]
    assert "not measured yet" in first["note"]
    assert len(preview) == 6


def test_tables_show_all_of_their_text() -> None:
    long = " ".join(["word"] * 60)
    shown = Shown({"why": [long], "n": [0.123456]})
    html = shown._repr_html_()
    assert long in html
    assert "0.1235" in html
    assert isinstance(shown.head(1), Shown)
