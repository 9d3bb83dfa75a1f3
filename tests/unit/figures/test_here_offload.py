"""This project's own exhibit: shares of plain training, predictions, goals; nothing runs for it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.unit.figures.offload import benchmark, line, runs_of, write
from tests.unit.figures.paper import assert_nothing_leaves, flat, in_report, printed
from workbench.exhibits import find, open_exhibit
from workbench.exhibits.claims import goals_table
from workbench.exhibits.hardware import offload
from workbench.exhibits.hardware.table import OFFLOAD as COLUMNS
from workbench.exhibits.hardware.table import table
from workbench.figures.style import LOOKS
from workbench.figures.verdict import FAILS, HOLDS, MISSING
from workbench.published.here import OFFLOAD

pytestmark = pytest.mark.usefixtures("nothing_committed")


def rows_of(folder: Path, lines: list[dict] | None = None) -> pd.DataFrame:
    return table(runs_of(folder, benchmark() if lines is None else lines), COLUMNS)


def drawn(rows: pd.DataFrame) -> Figure:
    return printed(find("here_offload").draw, rows)


def judge(folder: Path, lines: list[dict]) -> dict[str, tuple[str, str]]:
    """Goal -> what was measured, and the verdict."""
    return {
        g.goal: (g.measured, g.verdict) for g in find("here_offload").goals(rows_of(folder, lines))
    }


# -- the table ------------------------------------------------------------------------------------


def test_shares_are_of_plain_training_of_the_same_model_and_batch(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    run = rows.query("method == 'stronghold' and layers == 78 and batch == 16").iloc[0]
    assert run["plain"] == 16.0
    assert run["share"] == pytest.approx(0.97)
    assert run["plain_label"] == "plain torch (kept)"
    assert run["step_ratio"] == pytest.approx(1.02)
    assert run["host_bytes_per_parameter"] == pytest.approx(12.0)
    capped = [line("plain", 32, speed=99.0), line("l2l", 32, speed=9.0)]
    assert rows_of(tmp_path / "capped", capped)["share"].isna().all(), "a cap is not plain"
    assert rows[rows["layers"] == 190]["share"].isna().all(), "no plain run of that model"


def test_plain_training_on_another_machine_or_type_is_not_compared_with(tmp_path: Path) -> None:
    lines = [line("plain", 32, cap=None, speed=30.0, dtype="fp32"), line("l2l", 32, speed=9.0)]
    assert rows_of(tmp_path, lines)["share"].notna().tolist() == [True, False]
    write(tmp_path, [line("plain", 32, cap=None, speed=30.0)], device="another")
    lines = [line("l2l", 32, speed=9.0)]
    assert not rows_of(tmp_path, lines).query("method == 'l2l'")["share"].notna().any()


# -- the drawing ----------------------------------------------------------------------------------


def test_every_method_of_the_benchmark_has_a_look() -> None:
    looks = [LOOKS[method] for method in OFFLOAD.labels]
    assert len({look.marker for look in looks}) == len(OFFLOAD.labels)
    assert len({(look.color, look.pale) for look in looks}) == len(OFFLOAD.labels)


def test_bars_are_as_high_as_the_shares_and_failures_say_why(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    paper = drawn(rows)
    four, sixteen, step, peak = paper.axes
    shown = offload.shares_of(rows)
    for axes, batch in ((four, 4), (sixteen, 16)):
        values = shown[shown["batch"] == batch]["share"].dropna()
        heights = [patch.get_height() for patch in axes.patches]
        assert sorted(heights) == pytest.approx(sorted(values))
    words = flat(paper)
    assert "out of device memory" in words
    assert "100% kept" in words
    assert "kept: activations" in words
    assert "100 layers, 5.1 B" in words
    assert "hidden size 1024, fp32" in words
    assert "plain: 10 samples/s" in words
    assert all(axes.get_ylabel() for axes in paper.axes)
    assert "(s, log)" in step.get_xlabel()
    assert "(GiB, log)" in peak.get_xlabel()
    assert not [patch for patch in four.patches if patch.get_hatch()], "all of it is measured"


def test_nothing_leaves_the_paper(tmp_path: Path) -> None:
    assert_nothing_leaves(drawn(rows_of(tmp_path)))


def test_searches_and_windows_are_no_bars_of_the_comparison(tmp_path: Path) -> None:
    shown = offload.shares_of(rows_of(tmp_path))
    assert set(shown["layers"]) == {16, 32, 78, 100}
    assert not shown["pinned"].any()
    keys = ["method", "variant", "layers", "batch", "device_cap_gib"]
    assert not shown.duplicated(keys).any(), "without clipping it is the same bar"
    sweep = [line(f"stronghold{pins}", 24, cap=8, speed=20.0) for pins in ("", " (p4)", " (w4 p8)")]
    assert 24 not in set(offload.shares_of(rows_of(tmp_path, benchmark() + sweep))["layers"])
    lines = [line("plain", 32, cap=None, speed=30.0), line("stronghold (w4)", 32, speed=20.0)]
    assert "stronghold" in set(offload.shares_of(rows_of(tmp_path, lines))["method"])


def test_a_missing_case_is_named_and_the_rest_is_drawn(tmp_path: Path) -> None:
    lines = [row for row in benchmark() if (row["layers"], row["batch"]) != (100, 16)]
    lines = [row for row in lines if (row["method"], row["layers"]) != ("plain", 78)]
    words = flat(drawn(rows_of(tmp_path, lines)))
    assert "Not measured: 100 layers at batch 16 (plain, stronghold)" in words
    assert "no plain run" not in words, "plain (keep) is one"
    lines = [row for row in lines if (row["method"], row["layers"]) != ("plain (keep)", 78)]
    words = flat(drawn(rows_of(tmp_path, lines)))
    assert "78 layers at batch 4 (plain)" in words
    assert "78 layers, 4.0 B no plain run" in words


@pytest.mark.parametrize(
    "lines",
    [
        [line("stronghold", 32, speed=30.0)],
        [line("plain", 32, cap=None, speed=30.0)],
        [line("zero-offload", 32)],
        [line("stronghold", 32, status="error", parameters="")],
        [line("stronghold", 190, speed=1.0, host_cap_gib=90.0)],
    ],
)
def test_any_part_of_a_campaign_is_drawn(lines: list[dict], tmp_path: Path) -> None:
    rows = rows_of(tmp_path, lines)
    paper = drawn(rows)
    assert_nothing_leaves(paper)
    assert "Not measured" in flat(paper)
    assert len(find("here_offload").goals(rows)) == 14


# -- goals ----------------------------------------------------------------------------------------


def test_a_whole_campaign_decides_every_goal(tmp_path: Path) -> None:
    found = judge(tmp_path, benchmark())
    shares = {goal: verdict for goal, (_, verdict) in found.items() if "of plain" in goal}
    assert list(shares.values()) == [FAILS, HOLDS, HOLDS, HOLDS, HOLDS]
    assert found["32 layers, batch 4: at least 99% of plain training at its best"][0] == "97.0%"
    assert found["78 layers, batch 4: at least 4.5 times ZeRO-Offload"] == ("6.47 times", HOLDS)
    assert found["clipping changes the throughput by at most 5%"] == ("1.4%", HOLDS)
    assert found["step time predicted within 5% on the mean"] == ("2.0%", HOLDS)
    assert found["device peak predicted within 5% on the mean"] == ("2.5%", HOLDS)
    assert found["at most 12.5 bytes of host memory per parameter"] == ("12.00 bytes", HOLDS)
    sweep, flat = (found[goal] for goal in found if "sweep" in goal or "grow with depth" in goal)
    assert sweep == ("1.7% behind", HOLDS)
    assert flat == ("0.0%", HOLDS)
    sizes = [found[goal] for goal in found if "largest" in goal]
    assert sizes == [("9.67 billion", HOLDS), ("15.21 billion", HOLDS)]


def test_plain_training_counts_at_its_best_and_its_other_variants_are_told(tmp_path: Path) -> None:
    first = find("here_offload").goals(rows_of(tmp_path))[0]
    assert first.why.startswith("29.1 of 30 samples/s of plain torch (kept); ")
    assert first.why.endswith("; 121.2% of plain torch")


def test_goals_at_their_limits(tmp_path: Path) -> None:
    def first(speed: float) -> str:
        lines = [line("plain", 32, cap=None, speed=100.0), line("stronghold", 32, speed=speed)]
        return find("here_offload").goals(rows_of(tmp_path, lines))[0].verdict

    assert [first(speed) for speed in (99.0, 98.9)] == [HOLDS, FAILS]
    lines = [line("stronghold", 32, speed=100.0), line("stronghold", 32, speed=106.0, clip="")]
    clipping = "clipping changes the throughput by at most 5%"
    assert judge(tmp_path, lines)[clipping] == ("5.7%", FAILS)
    lines[1]["device_cap_gib"] = 24
    assert judge(tmp_path, lines)[clipping] == ("", MISSING), "the cap differs too"


def test_what_two_rounds_measured_is_told_and_judges_nothing(tmp_path: Path) -> None:
    """Machines of one kind differ by more than these goals allow."""
    lines = [
        line("plain", 78, cap=None, speed=10.0),
        line("zero-offload", 78, speed=1.0),
        line("stronghold", 78, speed=9.0),
    ]
    share = "78 layers, batch 4: at least 80% of plain training at its best"
    over = "78 layers, batch 4: at least 4.5 times ZeRO-Offload"
    found = judge(tmp_path, lines)
    assert (found[share], found[over]) == (("90.0%", HOLDS), ("9.00 times", HOLDS))
    for change in ({"commit": "another"}, {"measured_on": "2026-11-22 Made-up GPU"}):
        found = judge(tmp_path, [*lines[:2], lines[2] | change])
        assert (found[share], found[over]) == (("90.0%", MISSING), ("9.00 times", MISSING))
    own = line("plain", 78, cap=None, speed=8.0, commit="another", clip="")
    later = lines[2] | {"commit": "another"}
    assert judge(tmp_path, [*lines[:2], own, later])[share][0] == "112.5%", "its own round's"


def test_plain_training_alone_in_its_round_is_no_measure_of_itself(tmp_path: Path) -> None:
    """100 % would say that nothing is faster, beside a bar that is."""
    alone = line("plain", 32, cap=None, speed=30.0, commit="before")
    best = line("plain (keep)", 32, cap=None, speed=40.0)
    assert rows_of(tmp_path, [alone, best])["share"].tolist() == [0.75, 1.0]
    beside = line("plain", 32, cap=None, speed=20.0)
    assert sorted(rows_of(tmp_path / "beside", [beside, best])["share"]) == [0.5, 1.0]


def test_a_run_stands_beside_the_plain_training_of_its_own_sitting(tmp_path: Path) -> None:
    """Machines that bear one name differ, and of one commit and day there may be several."""
    plain = line("plain", 32, cap=None, speed=40.0)
    again = line("plain", 32, cap=None, speed=50.0)
    lines = [plain, line("stronghold", 32, speed=38.0), again]
    starts = ("10:00:00", "10:14:00", "10:45:00")
    kept = [
        row | {"started": f"2026-11-21T{start}+00:00", "seconds": 60.0}
        for row, start in zip(lines, starts, strict=True)
    ]
    found = rows_of(tmp_path, kept).set_index("method")
    assert found.loc["stronghold", ["plain", "share"]].tolist() == [40.0, 0.95]
    assert found.loc["stronghold", "round"] == "0123abc of 2026-11-21, from 10:00"
    assert found.loc["plain", ["plain", "share"]].tolist() == [50.0, 1.0]
    assert found.loc["plain", "round"] == "0123abc of 2026-11-21, from 10:45"


def test_two_methods_are_compared_in_the_last_round_that_has_both(tmp_path: Path) -> None:
    """A run that was made again by itself takes no verdict away."""
    ours, theirs = line("stronghold", 78, speed=9.0), line("zero-offload", 78, speed=1.0)
    plain = line("plain", 78, cap=None, speed=10.0)
    alone = line("stronghold", 78, speed=12.0, commit="later")
    runs = runs_of(tmp_path, [ours, theirs, plain, alone])
    for repeated, expected in ((False, ("12.00 times", MISSING)), (True, ("9.00 times", HOLDS))):
        every, rows = table(runs, COLUMNS, repeated=repeated), table(runs, COLUMNS)
        share, over = (
            g for g in find("here_offload").goals(rows, every) if "78 layers, batch 4:" in g.goal
        )
        assert (over.measured, over.verdict) == expected
        assert (share.measured, share.verdict) == (
            ("90.0%", HOLDS) if repeated else ("120.0%", MISSING)
        )


def test_bytes_of_the_disk_are_told(tmp_path: Path) -> None:
    run = line("stronghold-disk", 300, speed=0.5, host_cap_gib=90.0, disk_gib=150.0)
    moved = {"read": 7 * 10**10, "write": 6 * 10**10}
    rows = rows_of(tmp_path, [run | {"moved_bytes": moved}])
    (goal,) = (g for g in find("here_offload").goals(rows) if "with a disk" in g.goal)
    assert "8 s a step, 150 GiB on the disk, of which 130 GB are read and written" in goal.why


def test_errors_of_either_sign_do_not_cancel(tmp_path: Path) -> None:
    lines = [
        line("stronghold", n, speed=1.0, predicted_step_seconds=4 * error)
        for n, error in ((32, 0.9), (78, 1.1))
    ]
    goal = "step time predicted within 5% on the mean"
    assert judge(tmp_path, lines)[goal] == ("10.0%", FAILS)


def test_a_choice_behind_the_sweep_and_memory_that_grows_are_told(tmp_path: Path) -> None:
    sweep = [line(f"stronghold (p{p})", 24, cap=8, speed=20.0 + p) for p in range(4)]
    planned = line("stronghold", 24, cap=8, speed=21.0)
    found = judge(tmp_path, [*sweep, planned])
    (narrow,) = (found[goal] for goal in found if "sweep" in goal)
    assert narrow == ("", MISSING), "no other windows"
    sweep += [line(f"stronghold (w{w} p2)", 24, cap=8, speed=20.0) for w in (4, 8)]
    found = judge(tmp_path, [*sweep, planned])
    (behind,) = (found[goal] for goal in found if "sweep" in goal)
    assert behind == ("8.7% behind", FAILS)
    later = {**line("stronghold", 24, cap=8, speed=21.0), "commit": "another"}
    found = judge(tmp_path, [*sweep, later])
    (apart,) = (found[goal] for goal in found if "sweep" in goal)
    assert apart == ("", MISSING), "two rounds are no sweep"

    def depth(planned: float, measured: float, depths: int = 3) -> tuple[str, str]:
        """Memory a layer, on top of 2 GiB and of 1.9 GiB."""
        deep = [
            line(
                "stronghold (w4 r0 stash)", n, speed=1.0,
                predicted_peak_device_gib=2 + n * planned, peak_device_gib=1.9 + n * measured,
            )
            for n in (40, 60, 80)[:depths]
        ]  # fmt: skip
        (told,) = (value for goal, value in judge(tmp_path, deep).items() if "with depth" in goal)
        return told

    assert depth(0.01, 0.0) == ("16.7%", FAILS)
    assert depth(0.0, 0.001) == ("0.0%", HOLDS), "a proven peak that is not always reached"
    assert depth(0.0, 0.003) == ("0.0%", FAILS), "above what was proven"
    assert depth(0.0, 0.0, depths=2) == ("", MISSING)


def test_out_of_memory_fails_a_goal_and_a_broken_run_leaves_it_open(tmp_path: Path) -> None:
    plain = line("plain", 32, cap=None, speed=30.0)

    def first(status: str) -> str:
        return (
            find("here_offload")
            .goals(rows_of(tmp_path, [plain, line("stronghold", 32, status=status)]))[0]
            .verdict
        )

    assert [first(status) for status in ("oom_device", "error", "timeout")] == [
        FAILS, MISSING, MISSING,
    ]  # fmt: skip


def test_goals_are_judged_in_their_setting_only(tmp_path: Path) -> None:
    small = [
        line("plain", 32, cap=None, speed=30.0, hidden=1024),
        line("stronghold", 32, speed=30.0, hidden=1024),
        line("plain", 32, cap=None, speed=30.0, dtype="fp32"),
        line("stronghold", 32, speed=30.0, dtype="fp32"),
        line("stronghold", 300, cap=64, speed=1.0, host_cap_gib=90.0),
    ]
    found = judge(tmp_path, small)
    shares = [found[goal][1] for goal in found if "of plain" in goal or "largest" in goal]
    assert shares == [MISSING] * 7


# -- as an exhibit --------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [[], benchmark()])
def test_the_report_has_its_goals(lines: list[dict], tmp_path: Path) -> None:
    if lines:
        write(tmp_path, lines)
    session = open_exhibit("here_offload", "smoke", tmp_path)
    text = in_report([(session, session.rows())])
    assert "at least 4.5 times ZeRO-Offload" in text
    assert ("data:image/svg+xml" in text) == bool(lines)
    assert ("nothing to show" in text) != bool(lines)
    assert goals_table(find("here_offload").goals(session.rows()))["why"].iloc[0] in text.replace(
        "&#x27;", "'"
    )
