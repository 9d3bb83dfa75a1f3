"""benchmarks.real_models trains rows one by one, each in a process, whatever becomes of others."""

import json
import re
import sys

import pytest

from benchmarks import real_cases, real_models, whole_way
from benchmarks.real_runs import process

ROW = {"case": "spread-1b", "model": "llama-1b"}


def test_rows_are_made_of_each_combination_and_chosen_by_patterns():
    every = real_cases.rows()
    assert len({row.label for row in every}) == len(every)
    found = real_cases.rows(["ours-1b/run-*-m4"])
    assert [(row.gib, row.microbatches) for row in found] == [(8, 4), (4, 4), (0, 4)]
    assert found[-1].label == "ours-1b/run-free-m4"
    assert found[-1].cap is None
    assert [row.case for row in real_cases.rows(["save-*", "torch-*"])] == ["save-3b", "torch-1b"]
    small = real_cases.rows(smoke=True)
    assert {row.how for row in small} == {row.how for row in every}
    assert {row.method for row in small} == {row.method for row in every}


def test_patterns_that_match_nothing_are_refused(capsys):
    assert real_models.main(["--only", "ours-9b"]) == 2
    assert "nothing matches 'ours-9b'" in capsys.readouterr().err


def test_a_process_is_ended_at_its_limit():
    ended = process([sys.executable, "-c", "import time; print(1); time.sleep(600)"], 1)
    assert ended.code == 124
    assert "ended after" in ended.told


def test_losses_of_long_runs_are_compared_with_the_first(tmp_path, capsys):
    rows = [{**ROW, "name": "a", "losses": [3.0, 2.0]}, {**ROW, "name": "b", "failed": "no room"}]
    rows.append({**ROW, "name": "c", "losses": [3.0, 2.5]})
    rows.append({**ROW, "name": "d-fp32", "losses": [3.25]})
    (tmp_path / "theirs.json").write_text(json.dumps({"rows": rows}))
    given = ["--out", str(tmp_path / "out"), "--take", str(tmp_path / "theirs.json")]
    assert real_models.main(given) == 0
    told = capsys.readouterr().out
    assert re.search("spread-1b/b +failed: no room", told)
    assert "spread-1b/c beside a: losses of 2 steps differ by 0.5000 at most, 0.25000 in" in told
    assert "spread-1b/c beside d-fp32: losses of 1 steps differ by 0.2500 at most" in told
    assert "d-fp32 beside" not in told
    assert real_models.main([*given[:2], "--take", str(tmp_path / "none.json")]) == 0
    assert capsys.readouterr().out == told  # from our file


def trained(folder, *labels, code=0) -> dict:
    given = ["--smoke", "--out", str(folder), "--work", str(folder / "work"), "--only", *labels]
    assert real_models.main(given) == code
    rows = json.loads((folder / real_models.FILE).read_text())["rows"]
    return {row["name"]: row for row in rows}


@pytest.mark.thorough
def test_an_engine_of_a_folder_trains_as_torch_and_a_row_that_fails_stops_none(tmp_path):
    pytest.importorskip("transformers")
    rows = ["torch-1b", "trainstream-1b/all-on-host", "ours-1b/engine-8g-m2"]
    found = trained(tmp_path, *rows, code=3)
    assert "trainstream" in found["all-on-host"]["failed"].lower()  # there is no CUDA for it
    losses = found["engine-8g-m2"]["losses"]
    assert losses == pytest.approx(found["torch"]["losses"], abs=2e-3)


@pytest.mark.thorough
def test_runs_and_the_ordinary_loop_of_a_folder_are_rows(tmp_path):
    pytest.importorskip("transformers")
    found = trained(tmp_path, "ours-1b/run-8g-m2", "ours-1b/wrap-8g-m2", "export-8b")
    assert found["run-8g-m2"]["lanes"]["measured"]["compute"] > 0
    assert found["engine"]["written_bytes"] > 2 * found["engine"]["parameters"]
    assert min(row["tokens_per_s"] for row in found.values()) > 0


@pytest.mark.thorough
def test_the_whole_way_from_a_folder_to_a_folder_by_commands(tmp_path, capsys):
    work = str(tmp_path / "work")
    assert whole_way.main([work, "--smoke", "--log", ""]) == 0
    assert "'missing_keys': 0, 'unexpected_keys': 0" in capsys.readouterr().out
    assert whole_way.main([work, "--smoke"]) == 2
    assert "name a new folder" in capsys.readouterr().err
