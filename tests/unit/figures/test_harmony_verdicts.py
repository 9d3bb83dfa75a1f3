"""Harmony's claims hold where they should, fail where they should, and are not judged where nobody
can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.unit.figures.harmony_runs import SMOKE, nowhere, rows_of, run, runs
from workbench.exhibits import find
from workbench.exhibits.harmony import sizes
from workbench.figures import rows as tidy
from workbench.figures.verdict import FAILS, HOLDS, MISSING, UNTESTED, Verdict


def judged(name: str, rows: pd.DataFrame, words: str) -> Verdict:
    """The one verdict whose claim has these words."""
    (found,) = [v for v in find(name).verdicts(rows) if words in v.claim]
    return found


def changed(rows: pd.DataFrame, factor: float, **where: Any) -> pd.DataFrame:
    """The rows, the values of some of them times a factor."""
    part = tidy.pick(rows, **where)
    assert len(part)
    out = rows.copy()
    out.loc[part.index, "value"] = part["value"] * factor
    return out


def on_gpus(records: list) -> list:
    """As if they had run on GPUs."""
    return [replace(record, spec=record.spec | {"device": "cuda"}) for record in records]


# -- figure 8 --------------------------------------------------------------------------------------


def test_8_needs_the_uneven_setting_to_be_clearly_slower(tmp_path: Path) -> None:
    rows = rows_of("harmony_8", [], nowhere(tmp_path))
    even = judged("harmony_8", rows, "uneven setting")
    assert even.verdict == HOLDS
    assert even.published == pytest.approx(65.98 / 37.90)
    slower = changed(rows, 1.5, setting="50/25, packs of 2", quantity="iteration_s")
    assert judged("harmony_8", slower, "uneven setting").verdict == FAILS
    mine = changed(rows, 1.5, variant=tidy.OUR_PLAN, quantity="iteration_s", ranks=4)
    assert judged("harmony_8", mine, "our search's plan").verdict == FAILS


def test_8_does_not_judge_a_processor(tmp_path: Path) -> None:
    uneven, even = find("harmony_8").specs(SMOKE)
    made = [run(uneven, 1.0), run(even, 2.0)]
    words = "takes at least as long as"
    here = judged("harmony_8", rows_of("harmony_8", made, nowhere(tmp_path)), f"packs of 4 {words}")
    assert (here.verdict, here.here) == (UNTESTED, pytest.approx(0.5))
    assert "bytes" not in here.why
    assert "leaves its share to the others" in here.why


# -- figure 10 -------------------------------------------------------------------------------------


def test_10_is_judged_by_plans_and_not_by_a_processor(tmp_path: Path) -> None:
    rows = rows_of("harmony_10", runs("harmony_10"), nowhere(tmp_path))
    words = "GPT2-XL, minibatch 16: Harmony-PP is at least"
    place = {"model": "gpt2_xl", "minibatch": 16, "variant": tidy.OUR_PLAN}
    faster = changed(rows, 10, **place, method="harmony-pp")
    assert judged("harmony_10", faster, words).verdict == HOLDS
    slower = changed(rows, 0.1, **place, method="harmony-pp")
    told = judged("harmony_10", slower, words)
    assert (told.verdict, bool(told.why)) == (FAILS, True)
    assert told.published == pytest.approx(16.07 / 12.33)
    for name in ("Harmony-DP", "PP Swap", "DP Swap"):
        claim = f"GPT, minibatch 8: Harmony-PP is at least as fast as {name}"
        assert judged("harmony_10", rows, claim).verdict == UNTESTED


def test_10_says_why_by_what_the_estimate_says(tmp_path: Path) -> None:
    rows = rows_of("harmony_10", [], nowhere(tmp_path))
    slow = changed(rows, 0.1, variant=tidy.OUR_PLAN, method="harmony-pp")
    claim = "GPT2-XL, minibatch 16: Harmony-PP is at least"
    assert judged("harmony_10", slow, claim).why.startswith("our runtime loads")
    neither = changed(slow, 0.1, source=tidy.REFERENCE, method="harmony-pp")
    assert judged("harmony_10", neither, claim).why.startswith("neither is it in the estimate; in")
    alone = neither.assign(
        setting=neither["setting"].where(neither["source"] != tidy.REFERENCE, "1/1, 0 and 1 packs")
    )
    why = judged("harmony_10", alone, claim).why
    assert "the published search gives Harmony-PP one GPU" in why


def test_10_judges_gpus(tmp_path: Path) -> None:
    spec = SMOKE.spec("harmony-pp", SMOKE.text, 2)
    others = [spec.with_(method="harmony-dp"), SMOKE.spec("torch-gpipe", SMOKE.text, 2)]
    made = on_gpus([run(spec, 0.5), run(others[0], 0.4), run(others[1], 0.8)])
    rows = rows_of("harmony_10", made, nowhere(tmp_path))
    dp = judged(
        "harmony_10", rows, "GPT, minibatch 8: Harmony-PP is at least as fast as Harmony-DP"
    )
    assert (dp.verdict, dp.here) == (FAILS, pytest.approx(0.8))
    assert judged("harmony_10", rows, "as fast as torch GPipe").verdict == HOLDS


def test_10_leaves_a_model_without_plans_open(tmp_path: Path) -> None:
    rows = rows_of("harmony_10", [], nowhere(tmp_path))
    rows = rows[~((rows["model"] == "vgg416") & (rows["variant"] == tidy.OUR_PLAN))]
    assert judged("harmony_10", rows, "VGG416").verdict == MISSING


# -- figure 12 -------------------------------------------------------------------------------------


def test_12_has_a_reference_for_4_devices_alone(tmp_path: Path) -> None:
    rows = rows_of("harmony_12", runs("harmony_12"), nowhere(tmp_path))
    words = "Harmony-PP moves fewer bytes than Harmony-DP on the most devices"
    told = judged("harmony_12", rows, words)
    assert told.published is None
    assert "of weights and gradients alone 1.67 on 2 devices" in told.claim
    of_two = rows[(rows["source"] != tidy.MEASURED) | (rows["ranks"] == 2)]
    moved = of_two.assign(ranks=of_two["ranks"].where(of_two["source"] != tidy.MEASURED, 4))
    assert judged("harmony_12", moved, words).published == pytest.approx(2.004, abs=1e-3)


def test_12_holds_for_runs_that_move_what_they_should(tmp_path: Path) -> None:
    rows = rows_of("harmony_12", runs("harmony_12"), nowhere(tmp_path))
    found = find("harmony_12").verdicts(rows)
    assert len(found) == 11
    assert {verdict.verdict for verdict in found} == {HOLDS}


@pytest.mark.parametrize("mode", ["PP", "DP"])
def test_12_fails_where_swapping_moves_less(mode: str, tmp_path: Path) -> None:
    rows = rows_of("harmony_12", runs("harmony_12"), nowhere(tmp_path))
    less = changed(rows, 0.1, source=tidy.MEASURED, method=f"{mode.lower()}-swap")
    words = f"Harmony-{mode} moves fewer bytes than {mode} Swap"
    assert judged("harmony_12", rows, words).verdict == HOLDS
    assert judged("harmony_12", less, words).verdict == FAILS


@pytest.mark.parametrize(
    ("words", "quantity"),
    [
        (f"every run counted are {what} {whose}", quantity)
        for whose in ("the formula of its packs", "its plan")
        for what, quantity in (("what", "load"), ("each what", "weights_in"))
    ],
)
def test_12_fails_where_one_run_counted_two_percent_more(
    words: str, quantity: str, tmp_path: Path
) -> None:
    rows = rows_of("harmony_12", runs("harmony_12"), nowhere(tmp_path))
    place = {"source": tidy.MEASURED, "method": "harmony-pp", "ranks": 2, "quantity": quantity}
    assert judged("harmony_12", changed(rows, 1.02, **place), words).verdict == FAILS
    assert judged("harmony_12", changed(rows, 1.005, **place), words).verdict == HOLDS


def test_12_fails_where_pp_loads_as_dp_does(tmp_path: Path) -> None:
    rows = rows_of("harmony_12", runs("harmony_12"), nowhere(tmp_path))
    more = changed(rows, 3.0, source=tidy.MEASURED, method="harmony-pp", quantity="load")
    for words in ("both ran on", "than one device does"):
        assert judged("harmony_12", rows, words).verdict == HOLDS
        assert judged("harmony_12", more, words).verdict == FAILS
    fewer = changed(rows, 0.1, variant=tidy.OUR_PLAN, method="harmony-dp", model="gpt2_xl")
    assert judged("harmony_12", fewer, "GPT2-XL on 4 GPUs").verdict == FAILS


def test_12_without_runs_is_open(tmp_path: Path) -> None:
    rows = rows_of("harmony_12", [], nowhere(tmp_path))
    found = {
        v.claim: v.verdict for v in find("harmony_12").verdicts(rows) if v.judged == "measured"
    }
    assert set(found.values()) == {MISSING}


# -- figures 13 and 21 -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["harmony_13", "harmony_21"])
def test_curves_hold_when_they_coincide_and_fail_when_they_do_not(
    name: str, tmp_path: Path
) -> None:
    store = nowhere(tmp_path)
    plain, pp, dp = runs(name)
    found = find(name).verdicts(rows_of(name, [plain, pp, dp], store))
    assert [verdict.verdict for verdict in found] == [HOLDS, HOLDS]
    near = replace(pp, losses=[loss * (1 + 8e-6) for loss in pp.losses])
    off = replace(dp, losses=[*dp.losses[:-1], dp.losses[-1] * (1 + 2e-5)])
    found = find(name).verdicts(rows_of(name, [plain, near, off], store))
    assert [verdict.verdict for verdict in found] == [HOLDS, FAILS]
    assert "2.0e-05" in found[1].why
    assert [verdict.here for verdict in found] == [None, None], "a difference is no ratio"


def test_curves_that_end_early_are_not_judged(tmp_path: Path) -> None:
    plain, pp, dp = runs("harmony_21")
    short = replace(pp, losses=pp.losses[:-2])
    rows = rows_of("harmony_21", [plain, short, dp], nowhere(tmp_path))
    assert [v.verdict for v in find("harmony_21").verdicts(rows)] == [MISSING, HOLDS]
    rows = rows_of("harmony_21", [pp, dp], nowhere(tmp_path))
    assert [v.verdict for v in find("harmony_21").verdicts(rows)] == [MISSING, MISSING]


# -- figures 17 and 18 -----------------------------------------------------------------------------


def test_17_fails_where_one_number_of_devices_is_slower(tmp_path: Path) -> None:
    rows = rows_of("harmony_17", [], nowhere(tmp_path))
    words = "GPT2-10B: Harmony-PP takes no longer"
    ours = {"model": "gpt2_10b", "variant": tidy.OUR_PLAN}
    better = changed(rows, 0.5, **ours, method="harmony-pp")
    assert judged("harmony_17", better, words).verdict == HOLDS
    worse = changed(better, 5.0, **ours, method="harmony-pp", ranks=4)
    assert judged("harmony_17", worse, words).verdict == FAILS
    assert judged("harmony_17", rows, words).published == pytest.approx(201.1 / 192.1)
    slow = changed(rows, 5.0, **ours)
    assert judged("harmony_17", slow, "GPT2-10B: our plans").verdict == FAILS
    lacking = rows[~((rows["variant"] == tidy.OUR_PLAN) & (rows["ranks"] == 8))]
    assert judged("harmony_17", lacking, words).verdict == MISSING


def test_18_tells_scaling_from_saturation(tmp_path: Path) -> None:
    rows = rows_of("harmony_18", [], nowhere(tmp_path))
    place = {"model": "gpt2_40b", "variant": tidy.OUR_PLAN, "ranks": 8}
    pp, dp = "GPT2-40B: Harmony-PP on 8", "GPT2-40B: Harmony-DP saturates"
    both = "GPT2-40B: from 4 to 8 devices Harmony-PP gains more"
    assert judged("harmony_18", rows, both).verdict == HOLDS
    gains = judged("harmony_18", changed(rows, 0.1, **place, method="harmony-dp"), dp)
    assert (gains.verdict, "in the estimate: our replicas" in gains.why) == (FAILS, True)
    lost = changed(rows, 3.0, **place, method="harmony-pp")
    assert judged("harmony_18", lost, both).verdict == FAILS
    assert judged("harmony_18", rows, pp).published == pytest.approx(1463.0 / 215.0)
    assert judged("harmony_18", lost, pp).verdict == FAILS
    fast = changed(rows, 0.3, **place, method="harmony-pp")
    assert judged("harmony_18", fast, pp).verdict == HOLDS
    steady = changed(rows, 3.0, **place, method="harmony-dp")
    assert judged("harmony_18", steady, dp).verdict == HOLDS


@pytest.mark.parametrize("name", ["harmony_17", "harmony_18"])
def test_scaling_is_judged_on_gpus_alone(name: str, tmp_path: Path) -> None:
    made = [run(spec, 1 / spec.ranks) for spec in find(name).specs(SMOKE)]
    words = "GPT: Harmony-PP"
    assert judged(name, rows_of(name, made, nowhere(tmp_path)), words).verdict == UNTESTED
    assert judged(name, rows_of(name, on_gpus(made), nowhere(tmp_path)), words).verdict == HOLDS
    slow = [run(s, s.ranks * (2 if "pp" in s.method else 1)) for s in find(name).specs(SMOKE)]
    assert judged(name, rows_of(name, on_gpus(slow), nowhere(tmp_path)), words).verdict == FAILS


# -- table 1 ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table_1(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Rows of table 1 where nothing ran; do not change them."""
    return rows_of("harmony_table1", [], nowhere(tmp_path_factory.mktemp("table")))


def test_table_1_fails_for_a_long_search_and_a_slow_plan(table_1: pd.DataFrame) -> None:
    rows = table_1
    ours = {"model": "gpt2_xl", "variant": tidy.OUR_PLAN, "method": "harmony-pp", "minibatch": 64}
    search = ours | {"variant": tidy.OUR_SEARCH, "quantity": "search_s"}
    quick = changed(rows, 0.01, **search)
    assert judged("harmony_table1", quick, "GPT2-XL: searched").verdict == HOLDS
    assert judged("harmony_table1", quick, "GPT2-XL: searched").judged == "measured: our search"
    long = changed(rows, 100.0, **search)
    assert judged("harmony_table1", long, "GPT2-XL: searched").verdict == FAILS
    fast = changed(rows, 0.5, **ours, quantity="iteration_s")
    assert judged("harmony_table1", fast, "GPT2-XL: our plan").verdict == HOLDS
    slow = changed(rows, 2.0, **ours, quantity="iteration_s")
    assert judged("harmony_table1", slow, "GPT2-XL: our plan").verdict == FAILS
    assert judged("harmony_table1", slow, "in any of").verdict == FAILS


def test_table_1_counts_the_settings_in_which_ours_is_clearly_faster(table_1: pd.DataFrame) -> None:
    rows = table_1
    fast = changed(rows, 0.5, variant=tidy.OUR_PLAN, quantity="iteration_s")
    slow = changed(rows, 2.0, variant=tidy.OUR_PLAN, quantity="iteration_s")
    for against in ("packs under our runtime", "as its authors estimate it with overlap"):
        told = judged("harmony_table1", fast, against)
        assert (told.verdict, told.here) == (HOLDS, pytest.approx(2.0))
        assert judged("harmony_table1", slow, against).verdict == FAILS


def test_table_1_keeps_packs_and_schedules_apart(table_1: pd.DataFrame) -> None:
    rows = table_1
    quick = changed(rows, 0.1, source=tidy.REFERENCE, quantity="overlapped_estimate_s")
    assert judged("harmony_table1", quick, "packs under our runtime").verdict == HOLDS
    assert judged("harmony_table1", quick, "estimate it with overlap").verdict == FAILS


def test_every_exhibit_has_a_verdict_at_every_size(tmp_path: Path) -> None:
    for name in ("harmony_8", "harmony_10", "harmony_12", "harmony_13", "harmony_table1"):
        for size in (sizes.named("smoke"), sizes.named("paper")):
            assert find(name).verdicts(rows_of(name, [], nowhere(tmp_path), size))
