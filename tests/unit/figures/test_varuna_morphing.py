"""Varuna's exhibit of morphing: the trace, what is shown of a job, and when it says no."""

from __future__ import annotations

import json
import time

import pandas as pd
import pytest

from tests.runs.helpers import left_behind
from tests.unit.figures.records import record
from tests.unit.figures.test_varuna_exhibits import judged, words_in
from workbench.exhibits import open_exhibit
from workbench.exhibits.varuna import morphing
from workbench.figures.rows import pick
from workbench.figures.verdict import FAILS, HOLDS, MISSING
from workbench.methods.varuna.replay.job import ALONE, EDITS, JOB, LOSSES, shape
from workbench.published.tables import FOLDER


def test_the_trace_is_the_references(reference):
    told = reference / "varuna" / "availability_trace.csv"
    if not told.is_file():
        pytest.skip(f"Varuna's trace is not there: {told}")
    assert (FOLDER / "varuna_trace.csv").read_text() == told.read_text()
    assert morphing.trace(4, 60, 1764) == "0:4 10.5:2 28.35:3"
    assert morphing.trace(1, 10, 9999) == "0:1"
    assert len(morphing.trace(16, 10, 9999).split()) == len(told.read_text().split()) - 1


def test_a_round_takes_all_hosts(tmp_path):
    (spec,) = (session := open_exhibit("varuna_morphing", "smoke", tmp_path)).exhibit.specs(
        session.size
    )
    assert [str(shape(n, 1, spec=spec)) for n in (1, 2, 3, 4)] == ["1x1", "2x1", "3x1", "2x2"]
    with pytest.raises(ValueError, match="trace is '0:9'; it must have 1 to 4 hosts each"):
        spec.with_(trace="0:9")


def shown(folder, steps=range(1, 13), third=3, loss=lambda step: 5.0 - step / 10):
    """Rows of a made-up job: a step a second, 2 x 2, from the 5th second 2 x 1, then 3 x 1."""
    session = open_exhibit("varuna_morphing", "smoke", folder)
    made = record(session.exhibit.specs(session.size)[0])
    place = session.store.folder(made.key) / JOB
    place.mkdir(parents=True)

    def write(name, lines):
        (place / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    write(EDITS, ({"at": 1000 + at, "hosts": n} for at, n in [(-9, 4), (3.5, 2), (8.5, 3)]))
    shapes = [(2, 2)] * 4 + [(2, 1)] * 5 + [(third, 1)] * 3
    about = [{"at": 1000 + n, "seconds": 0.5} for n in range(len(shapes))]
    names = [{"stages": p, "replicas": d} for p, d in shapes]
    losses = [{"step": step, "loss": loss(step)} for step in steps]
    write(LOSSES, (a | b | c for a, b, c in zip(about, names, losses, strict=True)))
    wanted = [{"step": n, "loss": 5.0 - n / 10} for n in range(1, max(steps) + 1)]
    write(ALONE, ({"at": 2000, "seconds": 0.5} | line for line in wanted))
    return session, session.rows([made])


def test_a_job_is_shown_beside_its_undisturbed_run(tmp_path):
    session, rows = shown(tmp_path)
    assert judged(session, rows) == [HOLDS] * 3
    assert "after 0.5, 0.5 s" in session.verdict(rows)["why"].iloc[-1]
    rounds = pick(rows, quantity=morphing.ROUND)
    assert [*zip(rounds["pair"], rounds["x"], rounds["step"], strict=True)] == [
        ("2 x 2", 0, 1), ("2 x 1", 4, 5), ("3 x 1", 9, 10),
    ]  # fmt: skip
    assert [*rounds["value"]] == [12 / 0.5] * 3
    assert all(each in words_in(session.draw(rows)) for each in ("2 x 2", "3 x 1", "measured"))


@pytest.mark.parametrize(
    ("wrong", "verdicts"),
    [
        ({"loss": lambda step: 5.0 - step / 10 + 1e-3 * (step == 7)}, [FAILS, HOLDS, HOLDS]),
        ({"steps": [*range(1, 10), 9, 10, 11]}, [MISSING, FAILS, HOLDS]),
        ({"third": 2}, [HOLDS, HOLDS, FAILS]),
    ],
)
def test_what_a_disturbed_job_does_fails(tmp_path, wrong, verdicts):
    assert judged(*shown(tmp_path, **wrong)) == verdicts


def test_without_a_job_it_says_why(tmp_path):
    session = open_exhibit("varuna_morphing", "smoke", tmp_path)
    assert "not run yet" in words_in(session.draw(session.rows([])))
    rows = session.rows([record(session.exhibit.specs(session.size)[0])])
    assert judged(session, rows) == [MISSING] * 3
    assert "not usable" in words_in(session.draw(rows))


@pytest.mark.slow
@pytest.mark.thorough
def test_a_cancelled_job_leaves_nothing_and_one_that_ran_is_not_run_again(tmp_path):
    session = open_exhibit("varuna_morphing", "tiny", tmp_path)
    stage = next(session.stages())
    while not any(event["event"] == "step" for event in stage.new_events()):
        stage.poll()
        time.sleep(0.05)
    stage.cancel()
    assert [record.status for record in stage.run()] == ["cancelled"]
    assert left_behind(tmp_path) == []
    rows = session.run()
    assert judged(session, rows) == [HOLDS] * 3
    pd.testing.assert_frame_equal(session.run(), rows)
    assert left_behind(tmp_path) == []
