"""Measured steps lane by lane: folded, counted, bounded, drawn; nothing runs for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.unit.figures.lanes import STEP, write_step
from tests.unit.figures.offload import line, write
from tests.unit.figures.paper import flat, in_report, printed
from workbench.exhibits import find, open_exhibit
from workbench.exhibits.hardware import lanes
from workbench.exhibits.hardware.lanes_table import (
    Span,
    best_stretch,
    busy_share,
    folded,
    fullest,
    level,
    table,
    traffic,
)
from workbench.exhibits.hardware.table import OFFLOAD as COLUMNS
from workbench.exhibits.hardware.table import table as table_of
from workbench.published.here import OFFLOAD, Run
from workbench.published.lanes import STEPS, measured_steps

pytestmark = pytest.mark.usefixtures("nothing_committed")


def step_of(folder: Path, **changes: Any) -> Run:
    (step,) = STEPS.read(write_step(folder, **changes))
    return step


def rows_of(folder: Path, plain: float | None = None) -> pd.DataFrame:
    """The table of all steps in a folder, beside runs that say what plain training reaches."""
    if plain is not None:
        write(folder, [line("plain", 78, cap=None, speed=plain), line("stronghold", 78, speed=40)])
    return table(measured_steps([folder]), table_of(OFFLOAD.runs([folder]), COLUMNS))


def drawn(rows: pd.DataFrame, steps: list[Run]) -> Figure:
    return printed(find("here_lanes").draw, rows, steps)


# -- one step among its like ----------------------------------------------------------------------


def test_what_passes_the_steps_end_stands_at_its_beginning() -> None:
    assert folded([Span(0.25, 0.5, 1.0)], 1.0) == [Span(0.25, 0.5, 1.0)]
    assert folded([Span(0.75, 1.25, 2.0)], 1.0) == [Span(0.75, 1.0, 2.0), Span(0.0, 0.25, 2.0)]
    assert folded([Span(-0.25, 0.25, 3.0)], 1.0) == [Span(0.75, 1.0, 3.0), Span(0.0, 0.25, 3.0)]
    whole = folded([Span(0.5, 3.0, 1.0)], 1.0)
    assert [part.end_s - part.start_s for part in whole] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("period", [0.1, 0.510663, 1e-3 / 3])
def test_folding_loses_nothing(period: float) -> None:
    spans = [Span(k * period / 7, (k + 11) * period / 7, 1.0) for k in range(-20, 40)]
    parts = folded(spans, period)
    assert all(0 <= part.start_s <= part.end_s <= period * (1 + 1e-9) for part in parts)
    assert sum(part.area for part in parts) == pytest.approx(sum(span.area for span in spans))
    line = level(parts, period)
    assert sum(part.area for part in line) == pytest.approx(sum(span.area for span in spans))


def test_a_lane_is_busy_once_however_many_of_it_are(tmp_path: Path) -> None:
    step = step_of(tmp_path)
    shares = {lane: busy_share(step, lane) for lane in ("compute", "visit", "h2d", "d2h", "host")}
    assert shares == pytest.approx(
        {"compute": 0.5, "visit": 0.1, "h2d": 0.1, "d2h": 0.2, "host": 0.5}
    )
    again = step_of(tmp_path, rows=(*STEP, ("host.1", "U2", 0.03, 0.05, 0)))
    assert busy_share(again, "host") == pytest.approx(0.6), "10 ms beside the other worker"


def test_traffic_is_a_sum_of_what_runs_and_knows_when_it_is_full(tmp_path: Path) -> None:
    step = step_of(tmp_path)
    line = [
        (s.start_s, s.end_s, s.value / 1e9) for s in traffic(step) if s.end_s - s.start_s > 1e-9
    ]
    expected = [(0, 0.04, 100), (0.04, 0.06, 0), (0.06, 0.08, 50), (0.08, 0.09, 100)]
    assert line == [pytest.approx(part) for part in [*expected, (0.09, 0.1, 100)]]
    assert fullest(step) == pytest.approx((0.08, 0.14, 100e9)), "past the end, into the next step"
    assert fullest(step_of(tmp_path, host_memory_bytes_per_s=10**12)) is None
    assert fullest(step_of(tmp_path, host_memory_bytes_per_s="")) is None
    inside = (("compute", "F1.0", 0.0, 0.02, 0), ("d2h", "G1.0", 0.03, 0.05, 2_000_000_000))
    assert fullest(step_of(tmp_path, rows=inside)) == pytest.approx((0.03, 0.05, 100e9))
    always = (("compute", "F1.0", 0.0, 0.02, 0), ("d2h", "G1.0", 0.03, 0.13, 10_000_000_000))
    start, end, rate = fullest(step_of(tmp_path, rows=always))
    assert (end - start, rate) == pytest.approx((0.1, 100e9))


def test_the_best_stretch_is_that_of_trying_all() -> None:
    import random

    draw = random.Random(7)
    for _ in range(50):
        values = [draw.uniform(-1, 1) for _ in range(12)]
        first, behind = best_stretch(values)
        ends = [(a, b) for a in range(12) for b in range(a, 13)]
        assert sum(values[first:behind]) == pytest.approx(max(sum(values[a:b]) for a, b in ends))


# -- the table ------------------------------------------------------------------------------------


def test_the_bound_is_the_longer_of_compute_and_host_memory(tmp_path: Path) -> None:
    write_step(tmp_path)
    row = rows_of(tmp_path).iloc[0]
    assert row["samples_per_second"] == pytest.approx(40)
    assert (row["traffic_bytes_per_s"], row["full_share"]) == pytest.approx((70e9, 0.6))
    assert row["bound"] == "host memory"
    assert row["bound_samples_per_second"] == pytest.approx(4 / 0.07)
    for ceiling in (200_000_000_000, ""):
        write_step(tmp_path, host_memory_bytes_per_s=ceiling)
        row = rows_of(tmp_path).iloc[0]
        assert row["bound"] == "compute"
        assert row["bound_samples_per_second"] == pytest.approx(4 / 0.05)


@pytest.mark.parametrize(
    ("plain", "verdict"),
    [
        (45.0, "reached"),
        (60.0, "missed, within the bound"),
        (70.0, "missed, about at the bound"),
        (100.0, "missed, out of this plan's reach"),
    ],
)
def test_a_goal_is_held_against_the_bound(tmp_path: Path, plain: float, verdict: str) -> None:
    write_step(tmp_path)
    rows = rows_of(tmp_path, plain)
    assert rows["goal_samples_per_second"].tolist() == pytest.approx([0.8 * plain])
    assert find("here_lanes").judged(None, rows)["so"].tolist() == [verdict]
    words = lanes.reason(rows.iloc[0])
    assert ("the goal is" in words) == (verdict != "reached")
    assert verdict.removeprefix("missed, ") in words or verdict == "reached"


def test_there_is_no_goal_for_other_settings(tmp_path: Path) -> None:
    write_step(tmp_path, device_cap_gib=48.0)
    assert rows_of(tmp_path, 100.0)["goal_samples_per_second"].isna().all()
    write_step(tmp_path, layers=77)
    assert find("here_lanes").judged(None, rows_of(tmp_path, 100.0))["so"].tolist() == ["no goal"]
    write_step(tmp_path)
    write_step(tmp_path / "other", device="another")
    (tmp_path / "published-here" / "made-up" / "offload.jsonl").unlink()
    assert rows_of(tmp_path)["goal_samples_per_second"].isna().all(), "plain was not measured"


@pytest.mark.parametrize("cap", [16.0, 24.0])
def test_under_smaller_caps_the_goal_is_a_share_of_the_bound(tmp_path: Path, cap: float) -> None:
    write_step(tmp_path, device_cap_gib=cap)
    (row,) = rows_of(tmp_path).itertuples()
    assert row.goal_samples_per_second == pytest.approx(0.8 * row.bound_samples_per_second)
    reached = row.samples_per_second >= row.goal_samples_per_second
    assert (
        find("here_lanes").judged(None, rows_of(tmp_path))["so"].str.startswith("reached").all()
        == reached
    )


# -- the drawing ----------------------------------------------------------------------------------


def test_every_lane_says_how_busy_it_is_and_the_panel_why(tmp_path: Path) -> None:
    write_step(tmp_path)
    write_step(tmp_path, case="100-b16", layers=100, batch=16)
    rows = rows_of(tmp_path, 100.0)
    paper = drawn(rows, measured_steps([tmp_path]))
    lanes, memory, *_ = paper.axes
    shares = [text.get_text() for text in lanes.texts[1:]]
    assert shares == ["50% busy", "10% busy", "10% busy", "20% busy", "50% busy"]
    bars = sum(len(bars.get_paths()) for bars in lanes.collections)
    assert bars == len(STEP) + 1, "the host update is cut at the step's end"
    assert (lanes.get_xlim(), memory.get_xlim()) == ((0, 100), (0, 100))
    words = flat(paper)
    assert "78 layers, batch 4: one step of 100 ms, measured; 40 samples/s, goal 80" in words
    assert "Bound by host memory, 7.0 GB or 70 ms at its ceiling, so 57.1 samples/s" in words
    assert "over 90% of its ceiling for 60% of the step; from 80 ms to 40 ms of the next" in words
    assert "ceiling 100" in words
    assert "mean 70" in words
    assert "Not measured: 78 layers, batch 16; 100 layers, batch 4." in words
    labels = [label.get_text() for label in lanes.get_yticklabels()]
    legend = [text.get_text() for text in paper.legends[0].get_texts()]
    assert {"updates on GPU", "copies to GPU", "update after norm"} <= {*labels, *legend}
    assert not {"visit", "settle"} & set(" ".join([words, *labels, *legend]).lower().split())
    assert "capped at 32 GiB, clipped at a norm of 1;" in words
    assert "GB/s" in memory.get_ylabel()
    assert "(ms)" in memory.get_xlabel()


def test_nothing_leaves_the_paper(root: Path) -> None:
    steps = measured_steps([root / "results"])
    paper = drawn(table(steps, table_of(OFFLOAD.runs([root / "results"]), COLUMNS)), steps)
    assert len(paper.axes) == 8
    for axes in paper.axes:
        labels = [*axes.get_yticklabels(), axes.yaxis.label, axes.xaxis.label]
        for text in [*axes.texts, *labels, axes._left_title]:
            if not text.get_text():
                continue
            box = text.get_window_extent()
            assert paper.bbox.x0 - 1 <= box.x0, text.get_text()
            assert box.x1 <= paper.bbox.x1 + 1, text.get_text()
            assert box.y1 <= paper.bbox.y1 + 1, text.get_text()


def test_a_step_without_a_ceiling_is_drawn(tmp_path: Path) -> None:
    write_step(tmp_path, host_memory_bytes_per_s="", clip="", device_cap_gib="")
    words = flat(drawn(rows_of(tmp_path), measured_steps([tmp_path])))
    assert "The ceiling of host memory was not measured." in words
    assert "Bound by compute, busy 50 ms, so 80 samples/s at most." in words
    assert "mean 70" in words


# -- as an exhibit --------------------------------------------------------------------------------


def test_another_machines_step_is_not_drawn_for_it(tmp_path: Path) -> None:
    write_step(tmp_path)
    write_step(tmp_path, case="78-b16", batch=16)
    write_step(tmp_path, device="another", step_seconds=0.2)
    session = open_exhibit("here_lanes", "smoke", tmp_path)
    rows = session.rows()
    assert set(rows["device"]) == {"made-up"}
    words = flat(session.draw(rows))
    assert "one step of 100 ms" in words
    assert "200 ms" not in words
    assert session.preview()["machine"].tolist() == ["another", "made-up"]


def test_the_report_has_figure_and_bounds(tmp_path: Path) -> None:
    write_step(tmp_path)
    session = open_exhibit("here_lanes", "smoke", tmp_path)
    text = in_report([(session, session.rows())])
    assert "data:image/svg+xml" in text
    assert "host memory, 7.0 GB or 70 ms at its ceiling" in text
    assert "57.14" in text
    assert "78 layers, batch 4, STRONGHOLD" in text
