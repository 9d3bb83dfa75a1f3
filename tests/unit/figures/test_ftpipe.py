"""Exhibits of FTPipe: values of its released code beside partitions and schedules."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from tests.unit.figures.records import record
from tests.unit.figures.test_varuna_exhibits import judged
from workbench.exhibits import FTPIPE, find, open_exhibit
from workbench.exhibits.ftpipe import base, blocks, partitions, target
from workbench.figures.rows import ESTIMATED, MEASURED, PUBLISHED, SIMULATED, pick
from workbench.figures.verdict import FAILS, HOLDS, UNTESTED
from workbench.published.tables import FOLDER
from workbench.runs.store import Store


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens an exhibit at the size tiny: its session and its rows."""
    shown = {}

    def open_one(figure: str):
        if figure not in shown:
            session = open_exhibit(figure, "tiny", tmp_path_factory.mktemp("results"))
            shown[figure] = session, session.rows()
        return shown[figure]

    return open_one


@pytest.mark.parametrize("figure", FTPIPE)
def test_every_exhibit_is_drawn_and_says_where_its_numbers_are_from(figure, opened):
    session, rows = opened(figure)
    ours = {ESTIMATED, SIMULATED, MEASURED}
    assert set(rows["source"]) <= {PUBLISHED, *ours}
    assert set(rows["how"]) - {""}
    assert find(figure).system == "FTPipe"
    drawn = session.draw(rows)
    words = " ".join(text.get_text() for text in drawn.legends[0].get_texts())
    assert PUBLISHED in words
    assert ours & {*words.replace(":", "").split()}
    assert all(axes.get_xlabel() or axes.get_ylabel() or axes.get_title() for axes in drawn.axes)


def test_published_values_are_those_of_the_reference(reference):
    file = reference / "ftpipe" / "published.csv"
    if not file.exists():
        pytest.skip(f"the published values are not there: {file}")
    every = pd.read_csv(file, keep_default_na=False, dtype=str)
    told = {*zip(every["value"], every["source"], strict=True)}
    ours = pd.read_csv(FOLDER / "ftpipe.csv", keep_default_na=False, dtype=str)
    ours = ours[ours["metric"] != "string"]
    assert {*zip(ours["value"], ours["source"], strict=True)} <= told
    assert len(ours) > 150


def test_devices_are_busy_and_even_under_mixed_stages_alone(opened):
    session, rows = opened("ftpipe_balance")
    ours = pick(rows, source=ESTIMATED)
    assert pick(ours, quantity="memory")["value"].max() <= base.MEMORY / 2**30
    busy = pick(ours, quantity="utilization").groupby("method")["value"]
    assert busy.max().to_dict() == pytest.approx({base.CUT: 100, base.MIXED: 100})
    assert busy.min()[base.MIXED] > 90 > busy.min()[base.CUT]
    theirs = pick(rows, source=PUBLISHED, variant="newer plot", quantity="utilization")
    assert theirs.groupby("method")["value"].mean()[base.MIXED] == pytest.approx(96, abs=0.5)
    assert set(judged(session, rows)) == {HOLDS}


def test_inputs_in_flight_are_memory_of_a_device():
    """A stage holds the inputs that the schedule declares."""
    plain, full = (base.cut("T5-3B", False, base.CUT, in_flight=count) for count in (0, 5))
    assert sum(full.memory_bytes) > sum(plain.memory_bytes)


def test_a_slower_number_of_blocks_is_told(opened):
    session, rows = opened("ftpipe_blocks")
    assert set(judged(session, rows)) == {HOLDS}
    speed = (rows["quantity"] == blocks.SPEED) & (rows["method"] == base.MIXED) & (rows["x"] == 16)
    slower = rows.assign(value=rows["value"].where(~speed, 0.9))
    assert judged(session, slower)[0] == FAILS
    assert rows[rows["source"] == PUBLISHED]["value"].max() == pytest.approx(1.67)


def test_a_method_without_a_partition_says_why(opened, monkeypatch):
    def found(*asked):
        if asked[2] == "acyclic":
            raise ValueError("no 8 stages were found that fit in memory")
        return cut(*asked)

    cut = base.cut
    monkeypatch.setattr(base, "cut", found)
    session = opened("ftpipe_partitions")[0]
    rows = session.rows()
    row = pick(rows, method="acyclic", source=ESTIMATED).iloc[0]
    assert (row["status"], pd.isna(row["value"])) == ("nothing fits", True)
    assert set(judged(session, rows)) == {HOLDS}
    assert partitions.SUPPORTED in set(rows["note"])


def test_a_wrong_string_and_a_fresher_weight_are_told(opened):
    session, rows = opened("ftpipe_schedules")
    assert set(judged(session, rows)) == {HOLDS}
    wrong = rows.assign(sound=rows["sound"].where(rows.index != 3, False))
    assert judged(session, wrong)[0] == FAILS
    stale = rows["quantity"] == "staleness"
    fresher = rows.assign(value=rows["value"].where(~stale, rows["value"] - 1))
    assert judged(session, fresher)[1] == FAILS


def test_accuracy_is_judged_against_synchronous_training(opened):
    session, rows = opened("ftpipe_quality")
    assert judged(session, rows) == [HOLDS, HOLDS, FAILS, FAILS]
    every = pick(rows, source=MEASURED)
    assert (every["low"] <= every["value"]).all()
    assert (every["value"] <= every["high"]).all()
    equal = rows.assign(value=rows["value"].where(rows["quantity"] != "fine-tuning", 95.0))
    assert judged(session, equal)[2:] == [HOLDS, HOLDS]


def test_accuracy_and_time_are_of_one_run(tmp_path):
    """The first evaluation at the target counts, evaluations take no time, and processors that
    ranks share tell nothing of speed."""
    exhibit = find("ftpipe_target")
    session = open_exhibit("ftpipe_target", "tiny", tmp_path)
    at = exhibit.opened("tiny", Store(tmp_path), "stdlib", "")
    gpipe, ftpipe = exhibit.specs(at.size)
    assert (gpipe.options.stage_order, ftpipe.options.map) == ("gpipe-lifo", "0 1 0 1")
    seen = {gpipe: (1.0, 0.04, 0.5), ftpipe: (0.5, 0.06, 0.49)}
    records = [
        record(
            spec, step_seconds=[seconds] * 4, predicted={"step_seconds": 0.25},
            evaluations=[
                {"step": step, "epoch": step / 2, "accuracy": accuracy, "seconds": 9.0}
                for step, accuracy in zip((2, 4), accuracies, strict=True)
            ],
        )
        for spec, (seconds, *accuracies) in seen.items()
    ]  # fmt: skip
    rows = exhibit.table(at, records)
    times = pick(rows, quantity=target.TIME, pair="digits")
    assert [*times["value"]] == [4.0, 1.0, 1.0, 0.5]
    assert [*times["source"]] == [MEASURED, SIMULATED] * 2
    assert [*pick(rows, quantity=target.CURVE)["seconds"]] == [2.0, 4.0, 1.0, 2.0]
    assert judged(session, rows) == [HOLDS, UNTESTED]
    on_gpus = session.verdict(rows.assign(device="cuda"))
    assert [*on_gpus["verdict"]] == [HOLDS, HOLDS], "no claim of a way that has not run"
    assert [*on_gpus["published ratio"]][1:] == pytest.approx([4.10], abs=0.005)
    words = " ".join(text.get_text() for text in session.draw(rows).legends[0].get_texts())
    assert all(source in words for source in (MEASURED, SIMULATED, PUBLISHED, *target.WAYS))
    missed = [replace(records[0], evaluations=records[0].evaluations[:1]), records[1]]
    assert target.MISSED in {*exhibit.table(at, missed)["status"]}
    assert judged(session, exhibit.table(at, missed))[0] == HOLDS, "no worse than 4 %"
