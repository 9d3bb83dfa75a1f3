"""The benchmarks of jobs measure one, and kill its parts."""

import json

import pytest

from benchmarks import jobs, kills


@pytest.mark.thorough
def test_saves_and_a_loss_are_measured_in_parts_that_make_up_the_whole(tmp_path, capsys):
    assert jobs.main(["--out", str(tmp_path), "--size", "tiny"]) == 0
    found = json.loads((tmp_path / "jobs.json").read_text())
    assert found["saved_bytes"] > 100_000
    assert sum(found["parts"].values()) == pytest.approx(found["next_step_seconds"])
    assert min(found["parts"].values()) > 0
    assert "after a worker was killed" in capsys.readouterr().out
    assert str(jobs.ROOT) not in json.dumps(found["words"])


@pytest.mark.thorough
def test_a_job_whose_parts_are_killed_does_each_step_once(tmp_path, capsys):
    assert kills.main(["--out", str(tmp_path / "job"), "--kills", "4"]) == 0
    assert "flag, log, checkpoint and steps agree in each round" in capsys.readouterr().out
