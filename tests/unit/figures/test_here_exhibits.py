"""Exhibits of committed rows are alike at every size, and tell in words what keeps them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.unit.figures import lanes, offload, servers
from tests.unit.figures.paper import flat, in_report
from workbench.exhibits import open_exhibit
from workbench.figures.verdict import MISSING

pytestmark = pytest.mark.usefixtures("nothing_committed")
GOALS = ["goal", "measured", "verdict", "why"]
BOUNDS = ["case", "measured", "goal", "at the bound", "bound by", "host memory", "so"]
FILLED = [
    ("here_offload", lambda at: offload.write(at, offload.benchmark()), GOALS),
    ("here_servers", lambda at: servers.write(at, servers.benchmark((4,))), GOALS),
    ("here_lanes", lanes.write_step, BOUNDS),
]
"""Exhibit, how its file is made, and the columns of its judgement."""


@pytest.mark.parametrize(
    ("name", "fill", "columns"),
    [FILLED[0], pytest.param(*FILLED[1], marks=pytest.mark.thorough), FILLED[2]],
)
def test_it_is_the_same_at_every_size_and_runs_nothing(name, fill, columns, tmp_path: Path) -> None:
    fill(tmp_path)
    found = []
    for size in ("smoke", "small", "paper"):
        session = open_exhibit(name, size, tmp_path)
        assert session.preview()["note"].tolist() == ["nothing runs: these rows are committed"]
        found.append(session.run(force=True))
        pd.testing.assert_frame_equal(found[-1], found[0])
    names = {path.name for path in session.figure(found[0]).paths}
    assert names == {f"{name}{suffix}" for suffix in (".pdf", ".png", ".csv")}
    assert list(session.verdict(found[0]).columns) == columns
    told = session.provenance().to_string()
    assert "0123abc" in told
    count = len(found[0])
    assert f"{count} {session.exhibit.counted} in results/published-here/made-up/" in told
    assert session.exhibit.file in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("name", "fill", "columns"), FILLED)
def test_without_rows_it_ends_well_and_says_so(name, fill, columns, tmp_path: Path) -> None:
    session = open_exhibit(name, "smoke", tmp_path)
    assert "nothing to show" in session.preview()["note"].iloc[0]
    rows = session.run()
    assert session.figure(rows).paths[0].exists()
    assert "nothing to show" in flat(session.draw(rows))
    judged = session.verdict(rows)
    assert judged.empty if columns is BOUNDS else set(judged["verdict"]) == {MISSING}
    assert "nothing to show" in session.provenance().to_string()
    section = in_report([(session, session.rows())])
    assert "data:image" not in section
    assert section.count("nothing to show") == 1


def test_the_machine_with_most_rows_is_shown(tmp_path: Path) -> None:
    offload.write(tmp_path, offload.benchmark())
    offload.write(tmp_path, [offload.line("plain", 32, cap=None, speed=1.0)], device="another")
    session = open_exhibit("here_offload", "smoke", tmp_path)
    assert set(session.rows()["device"]) == {"made-up"}
    assert session.preview()["machine"].tolist() == ["another", "made-up"]


@pytest.mark.parametrize(("name", "fill", "columns"), FILLED)
def test_a_bad_line_stops_it_with_the_sentence(name, fill, columns, tmp_path: Path) -> None:
    file = fill(tmp_path)
    file.write_text(file.read_text().replace('"dtype": "bf16"', '"dtype": "int8"', 1))
    words = r"made-up/.*\.jsonl, line 1: .*dtype is 'int8'"
    for key in (name, "8a") if name == "here_offload" else (name,):
        with pytest.raises(ValueError, match=words):
            open_exhibit(key, "paper", tmp_path).rows()
