"""Measured rows beside published ones: only what is comparable, and what differs is said."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.unit.figures.offload import benchmark, line, runs_of, write
from tests.unit.figures.paper import assert_nothing_leaves, flat, printed
from tests.unit.figures.records import paper_rows, record
from workbench.exhibits import STRONGHOLD, find
from workbench.exhibits.stronghold import fig6a, measured_here, sizes
from workbench.figures import rows as tidy
from workbench.figures.style import COLUMN_IN, bar_look, line_look
from workbench.figures.verdict import HOLDS, MISSING, UNTESTED, series_to_judge

SERIES = ("measured", "bf16")


def rows_of(figure: str, folder: Path, lines: list[dict] | None = None) -> pd.DataFrame:
    """Published and simulated rows, and those measured."""
    runs = runs_of(folder, benchmark() if lines is None else lines)
    return tidy.join(paper_rows(figure), measured_here.rows(figure, runs))


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["source"] == "measured"]


def drawn(figure: str, rows: pd.DataFrame) -> Figure:
    return printed(find(figure).draw, rows, width=COLUMN_IN, same_scale=True)


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_measured_rows_name_their_hardware_date_and_setting(figure: str, tmp_path: Path) -> None:
    part = measured(rows_of(figure, tmp_path))
    assert len(part) >= 3
    assert set(part["variant"]) == {"bf16"}
    assert set(part["hardware"]) == {"Made-up GPU, 2026-11-21"}
    assert part["note"].str.contains("bf16, published fp32").all()
    assert part["how"].str.contains("commit 0123abc").all()
    assert not part["method"].str.contains("disk|plain|fsdp").any()


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_what_differs_stands_on_the_paper_and_nothing_leaves_it(
    figure: str, tmp_path: Path
) -> None:
    paper = drawn(figure, rows_of(figure, tmp_path))
    words = flat(paper)
    assert "measured: bf16 (Made-up GPU, 2026-11-21)" in words
    assert "Measured on Made-up GPU, 2026-11-21: bf16, published fp32" in words
    assert "device capped at 32 GiB" in words
    assert "published run not sound" in words
    assert_nothing_leaves(paper)


@pytest.mark.parametrize("figure", [f for f in STRONGHOLD if f != "6a"])
def test_speeds_of_two_machines_never_share_axes_but_their_ratios_do(
    figure: str, tmp_path: Path
) -> None:
    there, here, ratios = drawn(figure, rows_of(figure, tmp_path)).axes
    assert there.get_title() == "on V100 32 GB"
    assert here.get_title() == "on Made-up GPU"
    assert "ratios" in ratios.get_title()
    assert there.get_ylabel() == here.get_ylabel() != ratios.get_ylabel()


def test_sizes_share_axes_since_budgets_are_the_same(tmp_path: Path) -> None:
    rows = rows_of("6a", tmp_path)
    (axes,) = drawn("6a", rows).axes
    heights = [patch.get_height() for patch in axes.patches]
    assert max(heights) == pytest.approx(measured(rows)["value"].max())
    assert axes.get_ylabel() == "size (billion parameters)"


def test_sizes_of_runs_here_are_drawn_in_the_unit_of_the_published_ones() -> None:
    spec = next(s for s in find("6a").specs(sizes.named("paper")) if s.method == "stronghold")
    own = find("6a").rows([record(spec)])
    assert own["value"].iloc[0] == pytest.approx(spec.model.parameters / 1e6)
    both = fig6a.in_billions(tidy.join(own, tidy.published("6a")))
    assert both["value"].max() < 10


def test_6a_is_the_largest_within_both_budgets_and_the_tier_that_was_full(tmp_path: Path) -> None:
    part = measured(rows_of("6a", tmp_path)).set_index("method")
    assert part["layers"].to_dict() == {
        "megatron-lm": 34, "l2l": 110, "zero-offload": 90, "stronghold": 190,
    }  # fmt: skip
    assert part.loc["stronghold", "bound"] == "host"
    assert "191 layers ended with status oom_host" in part.loc["stronghold", "how"]
    assert part.loc["l2l", "bound"] == ""


def test_6a_keeps_a_method_of_which_nothing_fitted(tmp_path: Path) -> None:
    lines = [line("zero-offload", 32, host_cap_gib=90.0)]
    (row,) = measured(rows_of("6a", tmp_path, lines)).itertuples()
    assert (row.method, row.status) == ("zero-offload", "oom_device")
    assert "out of device memory" in flat(drawn("6a", rows_of("6a", tmp_path, lines)))


def test_8a_takes_the_run_without_a_cap_where_megatron_does_not_fit(tmp_path: Path) -> None:
    part = measured(rows_of("8a", tmp_path)).set_index("method")
    assert part["value"].notna().all()
    assert "device not capped" in part.loc["megatron-lm", "note"]
    assert "device capped at 32 GiB" in part.loc["stronghold", "note"]
    assert part.loc["stronghold", "value"] == pytest.approx(0.97 * 30)


def test_8a_compares_ratios_within_the_measured_series(tmp_path: Path) -> None:
    verdicts = {v.claim: v for v in find("8a").verdicts(rows_of("8a", tmp_path), *SERIES)}
    kept = verdicts["STRONGHOLD keeps at least 80% of Megatron-LM's throughput"]
    assert (kept.verdict, kept.judged) == (HOLDS, "measured: bf16")
    assert kept.here == pytest.approx(0.97)
    assert kept.published == pytest.approx(0.89, abs=0.005)
    without = [row for row in benchmark() if row["method"] != "megatron-core"]
    rows = rows_of("8a", tmp_path, without)
    assert find("8a").verdicts(rows, *SERIES)[0].verdict == MISSING


def test_7a_compares_at_the_deepest_model_both_were_measured_on(tmp_path: Path) -> None:
    rows = rows_of("7a", tmp_path)
    depths = measured(rows).groupby("pair")["layers"].agg(lambda n: sorted(set(n)))
    assert depths.to_dict() == {
        "megatron-lm": [32], "l2l": [100], "zero-offload": [78], "zero-infinity": [100],
    }  # fmt: skip
    offload = find("7a").verdicts(rows, *SERIES)[2]
    assert offload.here == pytest.approx(0.97 / 0.15)
    assert offload.why == "at 78 layers here, at 48 in the paper"
    assert "48, here 78 layers" in flat(drawn("7a", rows))


def test_8b_is_not_judged_where_the_planner_chose_the_windows(tmp_path: Path) -> None:
    auto = [row for row in benchmark() if "w4" not in row["method"]]
    rows = rows_of("8b", tmp_path, auto)
    assert measured(rows)["x"].tolist() == [32, 78, 100]
    (verdict,) = find("8b").verdicts(rows, *SERIES)
    assert verdict.verdict == UNTESTED
    assert "chose the window" in verdict.why


def test_8b_does_not_mix_windows_chosen_and_pinned(tmp_path: Path) -> None:
    few = [row for row in benchmark() if "stash" not in row["method"] or row["layers"] < 80]
    rows = rows_of("8b", tmp_path, few)
    assert measured(rows)["x"].tolist() == [32, 78, 100]


def test_a_limit_that_never_fires_does_not_stand_for_the_method(tmp_path: Path) -> None:
    calm = [line("stronghold", 78, speed=99.0, clip=1e6)]
    part = measured(rows_of("7a", tmp_path, benchmark() + calm))
    assert part["value"].max() < 99.0


def test_8b_prefers_one_fixed_window_where_it_has_enough_depths(tmp_path: Path) -> None:
    rows = rows_of("8b", tmp_path)
    assert measured(rows)["x"].tolist() == [40, 60, 80]
    assert measured(rows)["note"].str.contains("window 4, published 15").all()
    assert find("8b").verdicts(rows, *SERIES)[0].verdict == HOLDS


def test_9_is_drawn_over_the_windows_asked_for(tmp_path: Path) -> None:
    other = [line("stronghold (w4)", 78, speed=9.0), line("stronghold (w4, host)", 32, speed=1.0)]
    part = measured(rows_of("9", tmp_path, benchmark() + other))
    assert part["x"].tolist() == [2, 4, 8, 15]
    assert set(part["layers"]) == {32}
    assert part["value"].max() < 1000, "the plain window, not a variant of it"


def test_another_batch_cap_or_model_is_no_point_of_a_published_figure(tmp_path: Path) -> None:
    lines = [
        line("stronghold", 32, 16, speed=30.0),
        line("stronghold", 32, 4, 24, speed=30.0),
        line("stronghold", 32, speed=30.0, hidden=1024),
        line("stronghold-disk", 32, speed=30.0),
    ]
    for figure in STRONGHOLD:
        assert measured(rows_of(figure, tmp_path, lines)).empty


def test_each_type_of_numbers_is_a_series_of_its_own(tmp_path: Path) -> None:
    lines = [line("stronghold", 32, speed=30.0), line("stronghold", 32, speed=6.0, dtype="fp32")]
    part = measured(rows_of("8a", tmp_path, lines))
    assert dict(zip(part["variant"], part["value"], strict=True)) == {"bf16": 30.0, "fp32": 6.0}


def test_a_peer_stands_there_at_its_best_and_ours_as_it_plans(tmp_path: Path) -> None:
    lines = [
        line("stronghold", 32, speed=30.0), line("stronghold (w4)", 32, speed=31.0),
        line("megatron-core", 32, cap=None, speed=20.0),
        line("megatron-core (keep)", 32, cap=None, speed=29.0),
        line("zero-offload", 32, speed=4.0), line("zero-offload (twin-flow)", 32, speed=9.0),
    ]  # fmt: skip
    part = measured(rows_of("8a", tmp_path, lines)).set_index("method")
    assert part["value"].to_dict() == {"megatron-lm": 29.0, "zero-offload": 9.0, "stronghold": 30.0}
    assert part.loc["zero-offload", "note"].endswith("; twin-flow")


def test_a_run_that_failed_says_why_in_its_place(tmp_path: Path) -> None:
    lines = [line("stronghold", 32, speed=30.0), line("zero-offload", 32)]
    assert "out of device memory" in flat(drawn("8a", rows_of("8a", tmp_path, lines)))


def test_they_are_judged_beside_simulations_and_replace_none(tmp_path: Path) -> None:
    assert series_to_judge(rows_of("8a", tmp_path)) == [
        ("simulated", "as published"), ("simulated", "as this code runs it"), SERIES,
    ]  # fmt: skip


def test_they_look_measured_and_not_like_the_machine_at_hand() -> None:
    ours, here = bar_look("red", "measured"), bar_look("red", *SERIES)
    assert ours["facecolor"] == here["facecolor"] == "red"
    assert ours != here
    assert not {"hatch"} & set(here)
    assert line_look("l2l", "measured") != line_look("l2l", *SERIES)


def test_of_two_machines_the_one_with_most_runs_is_shown(tmp_path: Path) -> None:
    write(tmp_path, [line("stronghold", 32, speed=99.0)], device="another")
    part = measured(rows_of("8a", tmp_path))
    assert 99.0 not in set(part["value"])
    assert len(part) == len(part["method"].unique())


def test_beside_runs_of_the_machine_at_hand_each_series_keeps_its_own_ratios(
    tmp_path: Path,
) -> None:
    """At size paper on a GPU there are both."""
    specs = {spec.method: spec for spec in find("8a").specs(sizes.named("paper"))}
    own = find("8a").rows([record(specs["megatron-lm"], 1.0), record(specs["stronghold"], 2.0)])
    without = [row for row in benchmark() if row["method"] != "megatron-core"]
    rows = tidy.join(own, rows_of("8a", tmp_path, without))
    assert series_to_judge(rows) == [("measured", ""), SERIES]
    ours, here = (find("8a").verdicts(rows, *series)[0] for series in series_to_judge(rows))
    assert ours.here == pytest.approx(0.5)
    assert here.verdict == MISSING, "no ratio mixes two machines"
    assert "measured (Made-up" in flat(drawn("8a", rows))
