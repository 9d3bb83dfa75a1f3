"""Rows say what was obtained and how; what gave no number keeps its place and its reason."""

from __future__ import annotations

import io

import pandas as pd
import pytest

from tests.unit.figures.records import SMOKE, out_of_memory, paper_rows, record
from workbench.exhibits import STRONGHOLD, find
from workbench.figures import rows as tidy
from workbench.runs.store import row as store_row

SPEC = SMOKE.timed("stronghold", window=4)


def test_the_first_step_does_not_count_and_the_spread_is_the_quartiles() -> None:
    row = tidy.measured(record(SPEC, 0.5), "ms")
    assert row["value"] == pytest.approx(500)
    assert row["low"] < 500 < row["high"] < 1000  # the first step took nine seconds
    speed = tidy.measured(record(SPEC, 0.5), "samples/s")
    assert speed["value"] == pytest.approx(SPEC.batch / 0.5)
    assert speed["low"] < speed["value"] < speed["high"]
    assert "median of 3 steady steps" in speed["how"]


@pytest.mark.parametrize("hang", [1.0, 60.0])
def test_a_hang_in_one_of_two_steady_steps_stays_within_what_was_seen(hang: float) -> None:
    ran = record(SPEC, step_seconds=[9.0, 0.01, hang])

    for quantity, slow, fast in (
        ("ms", hang * 1e3, 10.0),
        ("samples/s", SPEC.batch / hang, SPEC.batch / 0.01),
    ):
        row = tidy.measured(ran, quantity)
        assert min(slow, fast) <= row["low"] <= row["value"] <= row["high"] <= max(slow, fast)


def test_out_of_memory_is_a_row_without_a_value_but_with_a_reason() -> None:
    row = tidy.measured(out_of_memory(SPEC), "ms")
    assert row["value"] is None
    assert row["status"] == "oom_host"
    assert "out of memory" in row["note"]


def test_a_prediction_is_its_own_source_and_never_measured() -> None:
    measured, predicted = tidy.both(record(SPEC, 0.5), "ms", x=12)
    assert (measured["source"], predicted["source"]) == ("measured", "simulated")
    assert predicted["value"] == pytest.approx(550)
    assert predicted["variant"] == tidy.HERE
    assert len(tidy.both(record(SPEC, predicted={}), "ms")) == 1


def test_an_unknown_quantity_is_named() -> None:
    with pytest.raises(KeyError, match="furlongs"):
        tidy.measured(record(SPEC), "furlongs")


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_published_and_simulated_values_come_with_what_is_wrong_with_them(figure: str) -> None:
    published, simulated = (
        paper_rows(figure).query("source == @source") for source in ("published", "simulated")
    )
    assert list(published.columns) == list(tidy.COLUMNS)
    assert set(simulated["variant"]) == {"as published", "as this code runs it"}
    stronghold = published[published["method"] == "stronghold"]
    assert not stronghold["sound"].any()
    assert stronghold["note"].str.contains("updates only as many elements").all()
    assert published["value"].notna().all()
    assert simulated["value"].notna().all()
    assert published["how"].str.contains("README|log").all()
    if figure == "6a":
        assert set(simulated["bound"]) == {"device", "host"}
        assert simulated[simulated["calibrated"] == True]["method"].tolist() == ["zero-infinity"]  # noqa: E712
    else:
        assert (published["low"].dropna() < published["value"][published["low"].notna()]).all()


def test_a_table_survives_its_csv_and_is_found_again_by_figure_and_size() -> None:
    own = tidy.table(tidy.both(record(SPEC), "ms", x=4), figure="9", size="paper")
    whole = tidy.join(own, paper_rows("9"))
    back = pd.read_csv(io.StringIO(whole.to_csv(index=False)))
    again = tidy.kept_here(back, "9", "paper")
    assert again["value"].tolist() == own[own["source"] == "measured"]["value"].tolist()
    assert set(again["source"]) == {"measured"}
    assert tidy.kept_here(back, "9", "smoke").empty
    assert tidy.kept_here(pd.DataFrame(), "9", "paper").empty
    assert tidy.kept_here(pd.DataFrame([store_row(record(SPEC))]), "9", "paper").empty


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_rows_of_no_records_are_an_empty_table(figure: str) -> None:
    assert find(figure).rows([]).empty
    assert list(tidy.join().columns) == list(tidy.COLUMNS)
