"""Varuna's exhibit of morphing: the trace, what is shown of a job, and when it says no."""

from __future__ import annotations

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


def test_the_trace_is_the_references_and_a_round_takes_all_hosts(reference, tmp_path):
    told = reference / "varuna" / "availability_trace.csv"
    if told.is_file():
        assert (FOLDER / "varuna_trace.csv").read_text() == told.read_text()
    session = open_exhibit("varuna_morphing", "smoke", tmp_path)
    (spec,) = session.exhibit.specs(session.size)
    assert spec.options.trace == "0:4 10.5:2 28.35:3"
    assert morphing.trace(1, 10, 9999) == "0:1"
    assert [str(shape(n, 1, spec=spec)) for n in (1, 2, 3, 4)] == ["1x1", "2x1", "3x1", "2x2"]
    with pytest.raises(ValueError, match="trace is '0:9'; it must have 1 to 4 hosts each"):
        spec.with_(trace="0:9")


def shown(folder, steps=range(1, 13), third=3, wrong=0.0):
    """Rows of a made-up job: a step a second, 2 x 2, from the 5th step on 2 x 1, then 3 x 1."""
    session = open_exhibit("varuna_morphing", "smoke", folder)
    made = record(session.exhibit.specs(session.size)[0])
    place = session.store.folder(made.key) / JOB
    place.mkdir(parents=True)

    def write(name, **columns):
        pd.DataFrame(columns).to_json(place / name, orient="records", lines=True)

    write(EDITS, at=[991.0, 1003.5, 1008.5], hosts=[4, 2, 3])
    losses = [5.0 - step / 10 + wrong * (step == 7) for step in steps]
    stages, replicas = [2] * 9 + [third] * 3, [2] * 4 + [1] * 8
    at = [1000.0 + second for second in range(12)]
    write(LOSSES, step=[*steps], loss=losses, at=at, stages=stages, replicas=replicas, seconds=0.5)
    wanted = range(1, max(steps) + 1)
    write(ALONE, step=[*wanted], loss=[5.0 - step / 10 for step in wanted], at=2000.0)
    return session, session.rows([made])


def test_a_job_is_shown_beside_its_undisturbed_run(tmp_path):
    session, rows = shown(tmp_path)
    assert judged(session, rows) == [HOLDS] * 3
    assert "after 0.5, 0.5 s" in session.verdict(rows)["why"].iloc[-1]
    rounds = pick(rows, quantity=morphing.ROUND)
    assert [*rounds["pair"]] == ["2 x 2", "2 x 1", "3 x 1"]
    assert rounds[["x", "step", "value"]].to_numpy().tolist() == [
        [0, 1, 24],
        [4, 5, 24],
        [9, 10, 24],
    ]
    assert all(each in words_in(session.draw(rows)) for each in ("2 x 2", "3 x 1", "measured"))


@pytest.mark.parametrize(
    ("wrong", "verdicts"),
    [
        ({"wrong": 1e-3}, [FAILS, HOLDS, HOLDS]),
        ({"steps": [*range(1, 10), 9, 10, 11]}, [FAILS, FAILS, HOLDS]),
        ({"third": 2}, [HOLDS, HOLDS, FAILS]),
    ],
)
def test_another_loss_a_step_done_again_and_a_change_not_followed_fail(tmp_path, wrong, verdicts):
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
    while not any("step 1:" in event.get("text", "") for event in stage.new_events()):
        stage.poll()
        time.sleep(0.05)
    stage.cancel()
    assert [record.status for record in stage.run()] == ["cancelled"]
    assert left_behind(tmp_path) == []
    rows = session.run()
    assert judged(session, rows) == [HOLDS] * 3
    pd.testing.assert_frame_equal(session.run(), rows)
    assert left_behind(tmp_path) == []
