"""Goals on servers of several GPUs: what holds, what does not, and what rows leave open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.unit.figures.servers import benchmark, line, runs_of, ten
from workbench.exhibits.hardware.servers import Servers
from workbench.exhibits.hardware.table import SERVERS, table
from workbench.figures.verdict import FAILS, HOLDS, MISSING

OVER_ZERO, SHARE, OVER_ZERO_SMALL, OVER_DP, OVER_DP_SMALL = range(5)
COUNTED, STEP, PEAK, CAP, SCALING, OUTGROWN, OUTGROWN_8 = range(5, 12)
"""Places of the goals."""


def rows_of(folder: Path, lines: list[dict] | None = None) -> pd.DataFrame:
    return table(runs_of(folder, benchmark() if lines is None else lines), SERVERS)


def judge(folder: Path, lines: list[dict], place: int) -> tuple[str, str, str]:
    """(measured value, verdict, reason) of a goal."""
    goal = Servers().goals(rows_of(folder, lines))[place]
    return goal.measured, goal.verdict, goal.why


def test_a_whole_campaign_decides_all_but_what_takes_8_gpus(tmp_path: Path) -> None:
    found = Servers().goals(rows_of(tmp_path))
    assert [goal.verdict for goal in found] == [*[HOLDS] * 9, MISSING, HOLDS, MISSING]
    assert [goal.measured for goal in found] == [
        "7.47 times", "70.0%", "5.23 times", "1.17 times", "1.17 times", "0.20%", "4.0%",
        "2.0% at most", "95.0% of the cap at most", "", "11.2 times", "",
    ]  # fmt: skip
    assert found[OVER_ZERO].goal.startswith("GPT-2 XL on 4 GPUs of 11 GiB, minibatch 64: ")
    assert "7.00 times this project's own ZeRO-Infinity, 16 samples/s" in found[OVER_ZERO].why


@pytest.mark.parametrize(
    ("place", "batch", "speed", "verdict"),
    [
        (OVER_ZERO, 64, 75.0, HOLDS),
        (OVER_ZERO, 64, 74.9, FAILS),
        (OVER_ZERO_SMALL, 16, 42.8, HOLDS),
        (OVER_ZERO_SMALL, 16, 42.7, FAILS),
    ],
)
def test_the_first_reference_decides_and_our_own_stands_beside_it(
    place: int, batch: int, speed: float, verdict: str, tmp_path: Path
) -> None:
    own = line("harmony-pp", batch=batch, speed=speed)
    measured, found, why = judge(tmp_path, [own], place)
    assert found == verdict
    assert f"no run of ZeRO-Infinity on 4 GPUs of 11 GiB at minibatch {batch}" in why
    zero = line("zero-infinity", batch=batch, speed=speed / 2)
    assert "2.00 times this project's own" in judge(tmp_path, [own, zero], place)[2]
    assert "ended with status oom_host" in judge(
        tmp_path, [own, line("zero-infinity", batch=batch, status="oom_host")], place
    )[2]  # fmt: skip
    unclipped = {**zero, "clip": ""}
    assert "no run of ZeRO-Infinity" in judge(tmp_path, [own, unclipped], place)[2]


def test_the_share_of_data_parallelism_stays_open_without_its_run(tmp_path: Path) -> None:
    own, roof = line("harmony-pp", speed=60.0), line("data-parallel", cap=None, speed=100.0)
    assert judge(tmp_path, [own, roof], SHARE)[:2] == ("60.0%", HOLDS)
    assert judge(tmp_path, [{**own, **line("harmony-pp", speed=59.9)}, roof], SHARE)[1] == FAILS
    _, verdict, why = judge(tmp_path, [own, {**roof, "ranks": 1}], SHARE)
    assert (verdict, "no run of data parallel without a cap on 4 GPUs" in why) == (MISSING, True)
    capped = {**roof, "device_cap_gib": 24}
    assert judge(tmp_path, [own, capped], SHARE)[1] == MISSING


def test_pp_against_dp(tmp_path: Path) -> None:
    pp, dp = line("harmony-pp", speed=70.0), line("harmony-dp", speed=70.0)
    assert judge(tmp_path, [pp, dp], OVER_DP)[:2] == ("1.00 times", HOLDS)
    faster = line("harmony-dp", speed=70.1)
    assert judge(tmp_path, [pp, faster], OVER_DP)[1] == FAILS
    assert judge(tmp_path, [pp], OVER_DP)[1:] == (
        MISSING, "no run of Harmony-DP on 4 GPUs of 11 GiB at minibatch 64",
    )  # fmt: skip
    assert judge(tmp_path, [pp, line("harmony-dp")], OVER_DP)[1] == MISSING
    assert judge(tmp_path, [line("harmony-pp"), dp], OVER_DP)[1] == FAILS, "it ran out of memory"
    assert judge(tmp_path, [line("harmony-pp", status="error"), dp], OVER_DP)[1] == MISSING


def test_what_two_rounds_measured_is_told_and_judges_nothing(tmp_path: Path) -> None:
    own = line("harmony-pp", speed=60.0)
    lines = [line("data-parallel", cap=None, speed=100.0), line("harmony-dp", speed=50.0)]
    for change in ({"commit": "another"}, {"measured_on": "2026-11-22 Made-up GPU"}):
        apart = [own, *(row | change for row in lines)]
        assert judge(tmp_path, apart, SHARE)[:2] == ("60.0%", MISSING)
        assert judge(tmp_path, apart, OVER_DP)[:2] == ("1.20 times", MISSING)


def test_two_methods_are_compared_in_the_last_round_that_has_both(tmp_path: Path) -> None:
    """A later measurement of one of them, on another machine or by other code, decides nothing."""
    later = {"commit": "later", "measured_on": "2026-11-22 Made-up GPU"}
    lines = [
        line("harmony-pp", speed=60.0), line("harmony-dp", speed=50.0),
        line("harmony-pp", ranks=2, speed=1.0), line("harmony-pp", speed=40.0) | later,
    ]  # fmt: skip
    runs = runs_of(tmp_path, lines)
    found = Servers().goals(table(runs, SERVERS), table(runs, SERVERS, repeated=True))[OVER_DP]
    assert (found.measured, found.verdict) == ("1.20 times", HOLDS)
    slower = runs_of(tmp_path, [*lines, line("harmony-dp", speed=41.0) | later])
    found = Servers().goals(table(slower, SERVERS), table(slower, SERVERS, repeated=True))[OVER_DP]
    assert (found.measured, found.verdict) == ("0.98 times", FAILS)


@pytest.mark.parametrize(
    "changes",
    [{"hidden": 2048, "heads": 16}, {"dtype": "fp32"}, {"seq": 512}, {"ranks": 2}, {"layers": 40}],
)
def test_goals_of_gpt2_xl_are_judged_in_their_setting_only(changes: dict, tmp_path: Path) -> None:
    lines = [line(method, speed=100.0) for method in ("harmony-pp", "harmony-dp")]
    lines.append(line("data-parallel", cap=None, speed=100.0))
    assert judge(tmp_path, lines, SHARE)[1] == judge(tmp_path, lines, OVER_DP)[1] == HOLDS
    others = Servers().goals(rows_of(tmp_path, [row | changes for row in lines]))
    assert {goal.verdict for goal in others[:5]} == {MISSING}


def test_another_cap_or_minibatch_is_another_setting(tmp_path: Path) -> None:
    lines = [line(method, cap=24, speed=100.0) for method in ("harmony-pp", "harmony-dp")]
    lines += [line(method, batch=32, speed=100.0) for method in ("harmony-pp", "harmony-dp")]
    assert {goal.verdict for goal in Servers().goals(rows_of(tmp_path, lines))[:5]} == {MISSING}


@pytest.mark.parametrize(
    ("changes", "measured", "verdict"),
    [
        ({"load_gib": 10.0, "planned_load_gib": 10.0}, "0.00%", HOLDS),
        ({"load_gib": 10.09, "planned_load_gib": 10.0}, "0.90%", HOLDS),
        ({"load_gib": 9.8, "planned_load_gib": 10.0}, "2.00%", FAILS),
        ({"store_gib": 0.1, "planned_store_gib": 0.0, "load_gib": 10.0, "planned_load_gib": 10.0},
         "inf%", FAILS),
        ({"store_gib": 0.0, "planned_store_gib": 0.0, "load_gib": 10.0, "planned_load_gib": 10.0},
         "0.00%", HOLDS),
        ({"load_gib": ""}, "", MISSING),
        ({"planned_store_gib": ""}, "", MISSING),
    ],
)  # fmt: skip
def test_counted_bytes_against_the_plan(
    changes: dict, measured: str, verdict: str, tmp_path: Path
) -> None:
    swap = line("pp-swap", speed=9.0, load_gib=99.0)
    found = judge(tmp_path, [line("harmony-dp", speed=70.0, **changes), swap], COUNTED)
    assert found[:2] == (measured, verdict)


def test_too_much_one_way_is_not_made_up_for_by_the_other(tmp_path: Path) -> None:
    moved = {"load_gib": 11.0, "planned_load_gib": 10.0, "store_gib": 9.0,
             "planned_store_gib": 10.0}  # fmt: skip
    row = line("harmony-pp", speed=70.0, **moved)
    assert judge(tmp_path, [row], COUNTED)[:2] == ("10.00%", FAILS)
    _, _, why = judge(tmp_path, [row, line("harmony-dp", speed=70.0, load_gib="")], COUNTED)
    assert why.endswith("; 1 run more without both")


def test_predictions_of_own_runs(tmp_path: Path) -> None:
    def lines(step: float, peak: float, **more: Any) -> list[dict]:
        told = {"predicted_step_seconds": 0.64 * step, "peak_device_gib": 10.0,
                "predicted_peak_device_gib": 10 * peak}  # fmt: skip
        return [
            line("harmony-pp", speed=100.0, **told, **more),
            line("dp-swap", speed=100.0, **told | {"predicted_step_seconds": 0.64 / 1.0}),
            line("zero-infinity", speed=100.0, **told | {"predicted_step_seconds": 64.0}),
        ]

    assert judge(tmp_path, lines(0.8, 1.0), STEP)[:2] == ("10.0%", HOLDS), "the mean of two"
    assert judge(tmp_path, lines(1.21, 1.0), STEP)[1] == FAILS
    assert judge(tmp_path, lines(1.0, 1.049), PEAK)[:2] == ("4.9% at most", HOLDS)
    assert judge(tmp_path, lines(1.0, 0.94), PEAK)[1] == FAILS, "every run, not the mean"
    assert judge(tmp_path, [line("torch-1f1b", cap=None, speed=9.0)], STEP)[1] == MISSING
    assert judge(tmp_path, [line("torch-1f1b", cap=None, speed=9.0)], PEAK)[1] == MISSING


def test_no_peak_above_its_cap(tmp_path: Path) -> None:
    full = line("harmony-pp", speed=70.0, peak_device_gib=11.0)
    assert judge(tmp_path, [full], CAP)[:2] == ("100.0% of the cap at most", HOLDS)
    over = line("harmony-dp", speed=70.0, peak_device_gib=11.01)
    measured, verdict, why = judge(tmp_path, [full, over], CAP)
    assert (measured, verdict) == ("100.1% of the cap at most", FAILS)
    assert "11.01 of 11 GiB, Harmony-DP with 48 layers on 4 GPUs at minibatch 64" in why
    free = line("harmony-pp", cap=None, speed=70.0)
    assert judge(tmp_path, [free], CAP)[1] == MISSING


def test_scaling_is_judged_on_8_gpus_and_told_on_fewer(tmp_path: Path) -> None:
    one, four = ten(1, 2.0), ten(4, 6.8)
    measured, verdict, why = judge(tmp_path, [one, four], SCALING)
    assert (measured, verdict) == ("", MISSING)
    assert why.startswith("4 GPUs are 3.4 times 1: 6.8 and 2 samples/s")
    assert judge(tmp_path, [one, four, ten(8, 10.0)], SCALING)[:2] == ("5.00 times", HOLDS)
    assert judge(tmp_path, [one, four, ten(8, 9.9)], SCALING)[:2] == ("4.95 times", FAILS)
    assert judge(tmp_path, [one, ten(8, None)], SCALING)[1] == FAILS, "out of memory"
    broken = [one, four, ten(8, None, status="error")]
    assert judge(tmp_path, broken, SCALING)[2].startswith("4 GPUs are 3.4 times 1")
    assert judge(tmp_path, [four, ten(8, 10.0)], SCALING)[1] == MISSING, "no run on one"
    for other in ({"device_cap_gib": 2}, {"clip": ""}, {"dtype": "fp32"}, {"layers": 90}):
        assert judge(tmp_path, [one, ten(8, 10.0, **other)], SCALING)[1] == MISSING
    dp = [ten(gpus, 2.0 * gpus, "harmony-dp") for gpus in (1, 8)]
    assert judge(tmp_path, dp, SCALING)[1] == MISSING


def test_of_several_models_that_scale_the_largest_is_judged(tmp_path: Path) -> None:
    small = [line("harmony-pp", gpus, speed=10.0 * gpus) for gpus in (1, 8)]
    large = [ten(1, 2.0), ten(8, 8.0)]
    assert judge(tmp_path, [*small, *large], SCALING)[:2] == ("4.00 times", FAILS)
    assert judge(tmp_path, [*small, *large[:1], ten(4, 8.0)], SCALING)[:2] == ("8.00 times", HOLDS)


def test_a_model_ten_times_as_large_as_its_gpus(tmp_path: Path) -> None:
    every = [ten(gpus, 2.0 * gpus) for gpus in (1, 2, 4)]
    assert judge(tmp_path, every, OUTGROWN)[:2] == ("11.2 times", HOLDS)
    measured, verdict, why = judge(tmp_path, every[:2], OUTGROWN)
    assert (measured, verdict) == ("", MISSING)
    assert why.endswith("trained on 1 and 2 GPUs, no run on 4 came to an end")
    assert judge(tmp_path, [*every[:2], ten(4, None, status="error")], OUTGROWN)[1] == MISSING
    measured, verdict, why = judge(tmp_path, [*every[:2], ten(4, None, parameters="")], OUTGROWN)
    assert (measured, verdict) == ("trained on 1 and 2 GPUs", FAILS)
    assert "Harmony-PP on 4 GPUs ended with status oom_device" in why
    roomy = [{**row, "device_cap_gib": 1.7} for row in every]
    assert judge(tmp_path, roomy, OUTGROWN)[1] == MISSING, "on 4 GPUs it is less than ten times"
    mixed = [*every[:2], ten(4, 2.0, layers=101)]
    assert judge(tmp_path, mixed, OUTGROWN)[1] == MISSING, "another model"
    assert judge(tmp_path, every, OUTGROWN_8)[1] == MISSING
    assert judge(tmp_path, [ten(8, 9.0, layers=200)], OUTGROWN_8)[:2] == ("11.1 times", HOLDS)


def test_fp32_states_are_larger(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [ten(1, 2.0), ten(1, 2.0, dtype="fp32")])
    states = rows["states_gib"] * 2**30 / rows["parameters"]
    assert states.tolist() == pytest.approx([14.0, 16.0])


def test_a_run_without_its_peak_is_named_where_peaks_are_judged(tmp_path: Path) -> None:
    lines = [line("harmony-pp", speed=70.0), line("harmony-dp", 2, speed=40.0, peak_device_gib="")]
    for place in (PEAK, CAP):
        why = judge(tmp_path, lines, place)[2]
        assert why.startswith("1 run on our own runtime")
        assert why.endswith("not measured: Harmony-DP with 48 layers on 2 GPUs at minibatch 64")
