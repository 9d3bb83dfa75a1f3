"""Figure 12 judges weights and gradients as they were counted, at every size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.figures.harmony_runs import nowhere, rows_of, run
from tests.unit.figures.test_harmony_drawing import drawn
from tests.unit.figures.test_harmony_verdicts import changed, judged
from workbench.core.record import BETWEEN, PARTS, RunRecord
from workbench.exhibits import find
from workbench.exhibits.harmony import fig12, sizes, volumes
from workbench.figures import rows as tidy
from workbench.figures.verdict import FAILS, HOLDS, MISSING

BOUNDS = {
    "harmony-pp": "Harmony-PP moves weights and gradients of at most three times the weights",
    "harmony-dp": "Harmony-DP moves weights and gradients of at most 2 N + 1 times the weights",
}
EACH = (
    "weights, gradients, activations, sums and messages that every run counted are each what its "
    "plan says"
)
ALL = "all bytes that every run counted are what its plan says"


@pytest.fixture(params=["smoke", pytest.param("small", marks=pytest.mark.thorough), "paper"])
def dials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> sizes.HarmonySize:
    monkeypatch.setattr("workbench.exhibits.harmony.sizes.gpus", lambda: ("gpu",) * 4)
    return sizes.named(request.param)


@pytest.fixture
def made(dials: sizes.HarmonySize) -> list[RunRecord]:
    return [run(spec) for spec in find("harmony_12").specs(dials)]


@pytest.fixture
def shown(dials: sizes.HarmonySize, made: list[RunRecord], tmp_path: Path) -> pd.DataFrame:
    return rows_of("harmony_12", made, nowhere(tmp_path), dials)


@pytest.mark.parametrize("method", BOUNDS)
def test_weights_within_the_bound_hold_at_every_size(shown: pd.DataFrame, method: str) -> None:
    assert judged("harmony_12", shown, BOUNDS[method]).verdict == HOLDS
    ours = {"source": tidy.MEASURED, "method": method}
    most = max(tidy.pick(shown, **ours)["ranks"])
    for part, verdict in (("weights_in", FAILS), ("activations_in", HOLDS)):
        more = changed(shown, 9.0, **ours, quantity=part, ranks=most)
        assert judged("harmony_12", more, BOUNDS[method]).verdict == verdict


def test_every_part_is_held_against_the_plan(shown: pd.DataFrame) -> None:
    assert judged("harmony_12", shown, EACH).verdict == HOLDS
    place = {"source": tidy.MEASURED, "method": "pp-swap"}
    for part in ("weights_in", "gradients_out", "sums_in"):
        off = changed(shown, 1.02, **place, quantity=part)
        assert judged("harmony_12", off, EACH).verdict == FAILS
        assert judged("harmony_12", off, ALL).verdict == HOLDS
        near = changed(shown, 1.005, **place, quantity=part)
        assert judged("harmony_12", near, EACH).verdict == HOLDS


@pytest.mark.parametrize(("method", "part"), [("harmony-pp", "p2p"), ("dp-swap", "all_reduced")])
def test_what_devices_exchange_is_held_against_the_plan(
    shown: pd.DataFrame, method: str, part: str
) -> None:
    off = changed(shown, 1.02, source=tidy.MEASURED, method=method, quantity=part)
    assert judged("harmony_12", off, EACH).verdict == FAILS
    assert judged("harmony_12", off, ALL).verdict == HOLDS


def test_records_from_before_devices_exchanges_were_counted_are_judged_by_the_rest(
    dials: sizes.HarmonySize, made: list[RunRecord], tmp_path: Path
) -> None:
    def link(parts: dict[str, int]) -> dict[str, int]:
        return {part: nbytes for part, nbytes in parts.items() if part in PARTS}

    old = [
        replace(
            record,
            moved_parts=link(record.moved_parts),
            predicted=record.predicted | {"moved_parts": link(record.predicted["moved_parts"])},
        )
        for record in made
    ]
    rows = rows_of("harmony_12", old, nowhere(tmp_path), dials)
    assert tidy.pick(rows, source=tidy.MEASURED, quantity=BETWEEN).empty
    assert judged("harmony_12", rows, EACH).verdict == HOLDS
    drawn("harmony_12", rows)


def test_bytes_that_no_plan_has_are_not_equal_to_it(shown: pd.DataFrame) -> None:
    sums = tidy.pick(shown, source=tidy.MEASURED, method="harmony-pp", quantity="sums_out")
    assert (sums["value"] == 0).all()
    some = shown.copy()
    some.loc[sums.index, "value"] = 5
    assert judged("harmony_12", some, EACH).verdict == FAILS


def test_records_from_before_are_shown_and_not_judged_by_parts(
    dials: sizes.HarmonySize, made: list[RunRecord], tmp_path: Path
) -> None:
    old = [
        replace(
            record,
            moved_parts={},
            predicted={k: v for k, v in record.predicted.items() if k != "moved_parts"},
        )
        for record in made
    ]
    rows = rows_of("harmony_12", old, nowhere(tmp_path), dials)
    measured = tidy.pick(rows, source=tidy.MEASURED)
    assert set(measured["quantity"]) == {"load", "store"}
    for claim in (*BOUNDS.values(), EACH):
        assert judged("harmony_12", rows, claim).verdict == MISSING
    assert judged("harmony_12", rows, ALL).verdict == HOLDS


def test_weights_are_drawn_apart_from_what_crosses_with_them(shown: pd.DataFrame) -> None:
    alone = fig12.weights_alone(shown)
    assert set(alone["method"]) == set(sizes.HARMONY)
    every = tidy.pick(fig12.per_weights(shown), source=tidy.MEASURED)
    for row in alone.itertuples():
        assert 0 < row.value <= volumes.bound(row.method, row.ranks)
        assert row.value <= tidy.one(every, key=row.key)
    strokes = [line for line in drawn("harmony_12", shown).axes[1].lines
               if line.get_marker() == "_"]  # fmt: skip
    assert [line.get_ydata()[0] for line in strokes] == alone["value"].tolist()


def test_what_libraries_do_not_tell_apart_has_no_rows(
    shown: pd.DataFrame, dials: sizes.HarmonySize
) -> None:
    parts = tidy.pick(shown, source=tidy.MEASURED, quantity=PARTS + BETWEEN)
    assert set(parts["method"]) == {*sizes.HARMONY, *sizes.SWAPPED}
    assert set(parts["unit"]) == {"bytes"}
    library = tidy.pick(shown, source=tidy.MEASURED, method=sizes.PEERS)
    assert len(library) == 2 * len(dials.known_peers())
