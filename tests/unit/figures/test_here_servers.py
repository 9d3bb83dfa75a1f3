"""The exhibit of servers of several GPUs: bars, markers, lines and points are the rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.unit.figures.paper import assert_nothing_leaves, flat, in_report, printed
from tests.unit.figures.servers import SPEED, benchmark, line, runs_of, ten, write
from workbench.exhibits import find, open_exhibit
from workbench.exhibits.claims import goals_table
from workbench.exhibits.hardware import server_panels
from workbench.exhibits.hardware.table import MODEL, table
from workbench.exhibits.hardware.table import SERVERS as COLUMNS
from workbench.figures.style import LOOKS, PAGE_IN
from workbench.figures.verdict import MISSING
from workbench.published.here import SERVERS

pytestmark = pytest.mark.usefixtures("nothing_committed")


def rows_of(folder: Path, lines: list[dict] | None = None) -> pd.DataFrame:
    return table(runs_of(folder, benchmark() if lines is None else lines), COLUMNS)


def drawn(rows: pd.DataFrame) -> Figure:
    return printed(find("here_servers").draw, rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Figure]:
    """Rows of the whole benchmark, and what is printed of them: to be read."""
    rows = rows_of(tmp_path_factory.mktemp("whole"))
    return rows, drawn(rows)


def titles(axes: Any) -> str:
    return axes.get_title(loc="left") or axes.get_title()


def titled(paper: Figure, words: str) -> list[Any]:
    return [axes for axes in paper.axes if words in titles(axes).replace("\n", " ")]


def heights(panels: list[Any]) -> list[float]:
    """Of all bars, which are the patches that stand in containers."""
    return [bar.get_height() for axes in panels for group in axes.containers for bar in group]


# -- the table ------------------------------------------------------------------------------------


def test_shares_are_of_data_parallelism_without_a_cap_on_as_many_gpus(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    run = rows.query("method == 'harmony-pp' and ranks == 4 and batch == 64 and hidden == 1600")
    assert run["roof"].item() == 160.0
    assert run["share"].item() == pytest.approx(112 / 160)
    assert run["step_ratio"].item() == pytest.approx(0.96)
    assert rows[rows["layers"] == 100]["share"].isna().all(), "no data-parallel run of that model"
    lines = [line("harmony-pp", speed=70.0), line("plain", 1, cap=None, speed=36.0)]
    lines.append(line("data-parallel", cap=24, speed=99.0))
    assert rows_of(tmp_path, lines).query("ranks == 4")["share"].isna().all()
    lines.append(line("harmony-pp", 1, speed=18.0))
    own = rows_of(tmp_path, lines).query("method == 'harmony-pp' and ranks == 1")
    assert own["share"].tolist() == [0.5], "on one GPU plain training is data parallelism"


@pytest.mark.parametrize(("dtype", "nbytes"), [("bf16", 2), ("fp32", 4)])
def test_bytes_are_told_in_multiples_of_the_weights(
    dtype: str, nbytes: int, tmp_path: Path
) -> None:
    count = line("harmony-pp")["parameters"]
    weights = count * nbytes / 2**30
    moved = {"load_gib": 2 * weights, "store_gib": weights}
    row = rows_of(tmp_path, [line("harmony-pp", speed=70.0, dtype=dtype, **moved)]).iloc[0]
    assert row["weights_gib"] == pytest.approx(weights)
    assert row["moved"] == pytest.approx(3.0)
    half = line("harmony-pp", speed=70.0, load_gib="")
    assert rows_of(tmp_path, [half])["moved"].isna().all(), "one way is not both"


# -- the drawing ----------------------------------------------------------------------------------


def test_every_method_of_the_benchmark_has_a_look() -> None:
    assert set(SERVERS.labels) >= set(SPEED)
    looks = [LOOKS[method] for method in SERVERS.labels]
    assert len({look.marker for look in looks}) == len(looks), "a grey print tells them apart"


def test_bars_and_markers_are_the_rows(whole) -> None:
    rows, paper = whole
    ok = rows[rows["status"] == "ok"]
    titles = [titled(paper, words) for words in ("throughput, measured", "over the host links")]
    models = rows.groupby([*MODEL]).ngroups
    assert [len(panels) for panels in titles] == [models, models], "one title a model"
    speeds, links = (
        [axes for axes in paper.axes if axes.containers and words in axes.get_ylabel()]
        for words in ("samples/s", "x weights")
    )
    assert sorted(heights(speeds)) == pytest.approx(sorted(ok["samples_per_second"]))
    assert sorted(heights(links)) == pytest.approx(sorted(ok["moved"].dropna()))
    diamonds = [
        mark.get_ydata()[0] for axes in links for mark in axes.lines if mark.get_marker() == "D"
    ]
    assert sorted(diamonds) == pytest.approx(sorted(ok["planned_moved"].dropna()))
    words = flat(paper)
    assert "112, 70%" in words
    assert "out of device memory" in words
    assert "GPT-2 XL, 1.6 B" in words
    assert "100 layers of 2048, 5.1 B" in words
    assert {"no limit: all of the GPU", "planned (simulated)", "Harmony-PP"} <= {
        text.get_text() for text in paper.legends[0].get_texts()
    }
    assert paper.get_figwidth() == PAGE_IN


def test_bars_without_a_cap_stand_on_a_ground_of_their_own(tmp_path: Path) -> None:
    lines = [line("data-parallel", cap=None, speed=140.0), line("harmony-pp", speed=70.0)]
    (axes,) = titled(drawn(rows_of(tmp_path, lines)), "throughput")
    (ground,) = [patch for patch in axes.patches if patch.get_height() == 1.0]
    free, capped = (bar.get_x() + bar.get_width() / 2 for c in axes.containers for bar in c)
    assert ground.get_x() < free < ground.get_x() + ground.get_width() < capped
    assert [t.get_text() for t in axes.get_xticklabels()] == ["no limit", "11 GiB"]


def test_scaling_has_the_speeds_and_the_line_of_proportion(whole) -> None:
    rows, paper = whole
    panels = titled(paper, "scaling, measured")
    assert len(panels) == 3, "two minibatches of GPT-2 XL, and the large model"
    large = panels[-1]
    ideal, dp, pp = ([*mark.get_xdata()] for mark in large.lines)
    assert (ideal, dp, pp) == ([1, 4], [1, 2, 4], [1, 2, 4])
    ideal, dp, pp = ([*mark.get_ydata()] for mark in large.lines)
    assert ideal == pytest.approx([2.0, 8.0])
    assert pp == pytest.approx([2.0 * gpus**0.9 for gpus in (1, 2, 4)])
    assert dp == pytest.approx([1.8 * gpus**0.8 for gpus in (1, 2, 4)])
    assert "4 GPUs are 3.5 times 1" in flat(large.figure)


def test_no_line_joins_runs_of_different_rounds(tmp_path: Path) -> None:
    lines = [ten(1, 2.0), ten(4, 7.0) | {"commit": "9876fed"}]
    paper = drawn(rows_of(tmp_path, lines))
    assert not titled(paper, "scaling, measured")
    words = flat(paper)
    assert "0123abc" not in words, "commits are no small print"
    (scaled,) = titled(drawn(rows_of(tmp_path, [*lines, ten(2, 3.8)])), "scaling, measured")
    assert [*scaled.lines[1].get_xdata()] == [1, 2], "those of one round alone"
    goal = find("here_servers").goals(
        rows_of(tmp_path, [ten(1, 2.0), ten(8, 12.0) | {"commit": "9876fed"}])
    )[9]
    assert (goal.measured, goal.verdict) == ("6.00 times", MISSING)


def test_whiskers_are_the_middle_half_of_the_steps(tmp_path: Path) -> None:
    lines = [line("harmony-pp", speed=60.0, step_seconds_spread=0.4)]
    lines.append(line("harmony-dp", speed=50.0, step_seconds_spread=""))
    (axes,) = titled(drawn(rows_of(tmp_path, lines)), "throughput")
    whiskers = [mark.get_ydata() for mark in axes.lines if len(mark.get_ydata()) == 2]
    assert [*whiskers[0]] == pytest.approx([50.0, 75.0])
    assert len(whiskers) == 1


def test_points_are_predictions_over_measurements(whole) -> None:
    rows, paper = whole
    (step,), (peak,) = (titled(paper, words) for words in ("step time", "device peak"))
    for axes, column, band in ((step, "step_ratio", 0.10), (peak, "peak_ratio", 0.05)):
        points = [
            y for mark in axes.lines if mark.get_linestyle() == "None" for y in mark.get_ydata()
        ]
        assert sorted(points) == pytest.approx(sorted(rows[column].dropna()))
        (shaded,) = axes.patches
        assert (shaded.get_y(), shaded.get_height()) == pytest.approx((1 - band, 2 * band))
    assert "(s, log)" in step.get_xlabel()
    assert "(GiB, log)" in peak.get_xlabel()


def test_every_axis_says_what_it_shows_and_nothing_leaves_the_paper(tmp_path: Path) -> None:
    small = [line(m, n, 16, 6, speed=n * 4.0, layers=200, dtype="fp32") for n in (1, 2, 4)
             for m in ("harmony-pp", "harmony-dp")]  # fmt: skip
    paper = drawn(rows_of(tmp_path, [*benchmark(), *small, ten(8, 9.0, layers=300)]))
    assert all(axes.get_ylabel() for axes in paper.axes)
    assert_nothing_leaves(paper)


def test_the_words_at_bars_end_below_the_titles(whole) -> None:
    _, paper = whole
    for axes in titled(paper, "throughput") + titled(paper, "over the host links"):
        title = axes._left_title.get_window_extent().y0
        assert all(t.get_window_extent().y1 <= title + 1 for t in axes.texts), titles(axes)


def test_what_has_no_rows_is_left_out_and_named(whole, tmp_path: Path) -> None:
    paper = drawn(rows_of(tmp_path, [line("zero-infinity", speed=15.0)]))
    assert [titles(axes).replace("\u00a0", " ") for axes in paper.axes] == [
        "throughput, measured: GPT-2 XL, 1.6 B"
    ]
    words = flat(paper)
    assert "bytes over the host links (no run counts them)" in words
    assert "predictions (no run has one)" in words
    assert "scaling (no model ran on several numbers of GPUs in one round" in words
    assert "minibatch 64 (Harmony-PP, Harmony-DP, data parallel without a cap)" in words
    assert "minibatch 16 (Harmony-PP, Harmony-DP, ZeRO-Infinity, data parallel" in words
    assert "Not measured" not in flat(whole[1])


def test_what_moves_nothing_over_the_host_links_has_no_bar_there(tmp_path: Path) -> None:
    free = line("data-parallel", cap=None, speed=140.0, load_gib=0.0, store_gib=0.0)
    paper = drawn(rows_of(tmp_path, [free, line("harmony-pp", speed=70.0)]))
    assert heights(titled(paper, "over the host links")) == pytest.approx([4.0])


def test_settings_of_which_nothing_came_to_an_end_are_named_instead_of_drawn(
    tmp_path: Path,
) -> None:
    lines = [line("harmony-pp", speed=70.0), line("harmony-pp", 8, status="error")]
    paper = drawn(rows_of(tmp_path, lines))
    assert "No run came to an end: GPT-2 XL, 1.6 B on 8 GPUs at minibatch 64." in flat(paper)
    assert len(heights(titled(paper, "throughput"))) == 1
    assert "no run in servers.jsonl came to an end" in flat(drawn(rows_of(tmp_path, lines[1:])))
    lines[1]["status"] = "oom_host"
    assert "out of host memory" in flat(drawn(rows_of(tmp_path, lines))), "that is an answer"


def test_a_variant_is_a_bar_beside_its_method(tmp_path: Path) -> None:
    lines = [line("harmony-pp", speed=70.0), line("harmony-pp (faithful)", speed=60.0)]
    paper = drawn(rows_of(tmp_path, [*lines, line("harmony-pp", speed=75.0, clip="")]))
    assert sorted(heights(titled(paper, "throughput"))) == [60.0, 70.0], "the clipped one stands"
    assert "60 faithful" in flat(paper)


def test_many_settings_are_several_panels_of_about_equal_width(tmp_path: Path) -> None:
    rows = server_panels.shown(rows_of(tmp_path))
    lines = server_panels.lines_of(rows)
    assert len(lines) == 4
    first, second = lines[0][0], lines[1][0]
    settings = [panel.rows.groupby(["ranks", "batch"]).ngroups for panel in (first, second)]
    assert settings == [3, 3]
    assert first.width == pytest.approx(second.width)
    assert sum(len(panel.rows) for line in lines for panel in line) == len(rows) + len(
        server_panels.moving(rows)
    )


def test_without_the_file_the_exhibit_says_so() -> None:
    assert "nothing to show" in flat(drawn(table([], COLUMNS)))
    found = find("here_servers").goals(table([], COLUMNS))
    assert {goal.verdict for goal in found} == {MISSING}
    assert all(goal.why for goal in found)


# -- as an exhibit --------------------------------------------------------------------------------


def test_a_machine_can_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path, benchmark((4,)))
    folder = tmp_path / "published-here"
    shutil.copytree(folder / "made-up", folder / "small")
    file = folder / "small" / "servers.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:1]))
    most, asked = (
        open_exhibit("here_servers", "smoke", tmp_path, machine=m) for m in ("", "small")
    )
    assert set(most.rows()["device"]) == {"made-up"}
    assert ["other machines", "small (machine=small)"] in most.provenance().to_numpy().tolist()
    assert asked.rows()["device"].tolist() == ["small"]
    words = "no rows of machine 'b'; those that have some are .*made-up, small"
    with pytest.raises(ValueError, match=words):
        open_exhibit("here_servers", "smoke", tmp_path, machine="b")


@pytest.mark.parametrize("lines", [[], benchmark((4,))])
def test_the_report_has_its_goals(lines: list[dict], tmp_path: Path) -> None:
    if lines:
        write(tmp_path, lines)
    session = open_exhibit("here_servers", "smoke", tmp_path)
    text = in_report([(session, session.rows())])
    assert 'id="here_servers"' in text
    assert "Harmony-PP at or above Harmony-DP" in text
    assert ("data:image/svg+xml" in text) == ("host links (weights)" in text) == bool(lines)
    assert ("nothing to show" in text) != bool(lines)
    assert set(find("here_servers").columns) <= set(session.rows().columns)
    assert goals_table(find("here_servers").goals(session.rows()))["why"].iloc[0] in text.replace(
        "&#x27;", "'"
    )
