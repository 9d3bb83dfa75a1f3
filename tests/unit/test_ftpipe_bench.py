"""benchmarks.ftpipe prints a line a figure, with what was aimed at."""

import json

import pytest

from benchmarks import ftpipe


@pytest.mark.thorough
def test_an_asynchronous_pipeline_of_ranks_that_sleep_takes_its_simulated_steps(capsys):
    assert ftpipe.main(["--only", "paced"]) == 0
    told = capsys.readouterr().out
    assert "6 stages on 4 ranks, map 0 1 2 3 0 2" in told
    assert "(3 %)" in told


def test_the_cut_alone_pays_for_a_limit_of_memory(monkeypatch):
    monkeypatch.setattr(ftpipe, "DEVICES", (2,))
    free, *limited = ftpipe.memory()
    assert "no limit: cut 1.0" in free
    assert all("mixed 1.0" in line and "cut 1.0" not in line for line in limited)


def test_devices_of_a_pipeline_are_measured_one_by_one_and_once(capsys, tmp_path):
    given = ["--only", "gpu-stages", "--size", "smoke", "--out", str(tmp_path)]
    assert ftpipe.main(given) == 0
    rows = json.loads((tmp_path / "gpu-stages.json").read_text())["rows"]
    measured = [row for row in rows if "cut" in row]
    assert {row["what"].split(",")[0] for row in measured} == {"pipedream", "mpipe"}
    for row in measured:
        devices = len({*row["map"].split()})
        assert len(row["load_ms"]) == len(row["peak_bytes"]) == devices
        assert min(row["load_ms"]) > 0
        assert min(row["peak_bytes"]) > 0
        assert 0 < row["busiest_share"] <= 1.001
        assert "simulated" in row["source"]
    told = capsys.readouterr().out
    assert ftpipe.main(given) == 0  # from the file
    assert capsys.readouterr().out == told


@pytest.mark.thorough
def test_two_processes_of_one_device_train_as_the_reference(tmp_path):
    assert ftpipe.main(["--only", "gpu-large", "--size", "smoke", "--out", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "gpu-large.json").read_text())["rows"]
    assert row["apart"] < 1e-5


def test_unknown_figures_are_refused():
    with pytest.raises(SystemExit):
        ftpipe.main(["--only", "speed"])
