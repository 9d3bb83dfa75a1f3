"""benchmarks.ftpipe prints a line a figure, with what was aimed at."""

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


def test_unknown_figures_are_refused():
    with pytest.raises(SystemExit):
        ftpipe.main(["--only", "speed"])
