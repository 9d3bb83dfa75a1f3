"""Drawings have marks that keep sources apart, and reasons where a value is missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.unit.figures.paper import assert_nothing_leaves, printed, words
from tests.unit.figures.records import SMOKE, out_of_memory, paper_rows, record, specs_of
from workbench.core.methods import METHODS, known
from workbench.exhibits import STRONGHOLD, find
from workbench.figures import draw
from workbench.figures import rows as tidy
from workbench.figures.style import LOOKS, as_svg, bar_look, line_look, look_of, save


def drawn(figure: str, rows: pd.DataFrame, *, same_scale: bool) -> Figure:
    return printed(find(figure).draw, rows, same_scale=same_scale)


def smoke_rows(figure: str) -> pd.DataFrame:
    own = find(figure).rows([record(spec) for spec in specs_of(figure, SMOKE)])
    return tidy.join(tidy.published(figure), own.assign(figure=figure, size="smoke"))


def test_every_method_has_a_look_of_its_own() -> None:
    looks = [LOOKS[method] for method in METHODS]
    assert len({look.color for look in looks}) == len(METHODS)
    assert len({look.marker for look in looks}) == len(METHODS)
    every = {LOOKS[method] for method in known()}
    assert len(every) == len(known()), "no two methods share colour and marker"


def test_a_method_keeps_its_look_by_name_by_label_and_out_of_memory() -> None:
    for name, method in known().items():
        assert look_of(name) == look_of(method.label) == LOOKS[name]
    assert look_of("somebodys") == look_of("somebodys"), "one from outside has one, too"
    spec = SMOKE.timed("l2l")
    axes = Figure().subplots()
    rows = tidy.table([tidy.measured(out_of_memory(spec), "samples/s")])
    draw.bars(axes, rows, {"l2l": "L2L"}, "")
    (words,) = axes.texts
    assert (words.get_text(), words.get_color()) == ("out of host memory", LOOKS["l2l"].color)


@pytest.mark.parametrize(
    "series",
    [
        [(tidy.PUBLISHED, ""), ("simulated", "as published"), ("simulated", "as this code runs it"),
         ("measured", "")],
        [(tidy.REFERENCE, ""), ("simulated", tidy.OUR_PLAN), ("simulated", tidy.THEIR_PLAN),
         ("simulated", tidy.BEFORE), ("measured", "")],
    ],
)  # fmt: skip
def test_no_two_sources_share_a_mark(series: list[tuple[str, str]]) -> None:
    bars = [tuple(sorted(map(str, bar_look("red", *each).items()))) for each in series]
    lines = [tuple(sorted(map(str, line_look("l2l", *each).items()))) for each in series]
    assert len(set(bars)) == len(set(lines)) == len(series)
    assert bar_look("red", "measured")["facecolor"] == "red"
    assert bar_look("red", tidy.REFERENCE)["linestyle"] == ":"
    assert all("hatch" in bar_look("red", *each) for each in series[1:-1])
    assert "hatch" not in bar_look("red", "published")


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_published_and_simulated_share_the_axes_at_paper_size(figure: str) -> None:
    rows = paper_rows(figure)
    paper = drawn(figure, rows, same_scale=True)
    text = words(paper)
    assert len(paper.axes) == 1
    assert "simulated: as published" in text
    assert "simulated: as this code runs it" in text
    assert f"{draw.UNSOUND} published run not sound" in text
    assert "updates 0.09 % of an offloaded layer" in text
    assert "calibrates the simulation" in text
    assert not rows["source"].eq("measured").any()
    assert "measured" not in text


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_at_other_sizes_ratios_stand_beside_absolute_values(figure: str) -> None:
    paper = drawn(figure, smoke_rows(figure), same_scale=False)
    left, right = paper.axes
    text = words(paper)
    assert "this machine" in left.get_title()
    assert "ratios" in right.get_title()
    assert "measured (Made-up, 2 cores, no GPU)" in text
    assert all(axes.get_ylabel() and axes.get_ylim()[0] == 0 for axes in paper.axes)


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_nothing_is_drawn_outside_or_over_a_title(figure: str) -> None:
    for rows, same_scale in (
        (paper_rows(figure), True),
        (smoke_rows(figure), False),
    ):
        assert_nothing_leaves(drawn(figure, rows, same_scale=same_scale))


def test_a_missing_value_says_why_in_its_place() -> None:
    specs = {spec.method: spec for spec in find("8a").specs(SMOKE)}
    own = find("8a").rows([record(specs["stronghold"]), out_of_memory(specs["l2l"], "device")])
    paper = drawn("8a", tidy.join(tidy.published("8a"), own), same_scale=False)
    assert "out of device memory" in words(paper)


def test_a_missing_point_of_a_line_says_why_in_its_place() -> None:
    exhibit = find("9")
    first, second, *others = exhibit.specs(SMOKE)
    own = exhibit.rows([out_of_memory(first), *(record(spec) for spec in (second, *others))])
    paper = drawn("9", own, same_scale=False)
    assert "out of host memory" in words(paper)


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_a_figure_without_any_run_is_still_drawn(figure: str) -> None:
    assert "published" in words(drawn(figure, tidy.published(figure), same_scale=False))


def test_a_bar_is_as_high_as_its_value_and_names_the_tier() -> None:
    rows = paper_rows("6a").query("variant == 'as published'")
    paper = drawn("6a", rows, same_scale=True)
    bars = [patch for patch in paper.axes[0].patches if isinstance(patch, Rectangle)]
    assert sorted(bar.get_height() for bar in bars) == pytest.approx(sorted(rows["value"]))
    assert all(bar.get_hatch() for bar in bars)
    assert words(paper).count("device") == (rows["bound"] == "device").sum()


def test_ratios_fall_back_to_the_published_system() -> None:
    rows = paper_rows("8a")
    ratios = draw.relative_to_method(rows, "megatron-lm")
    ours = ratios.query("variant == 'as this code runs it' and method == 'stronghold'")
    assert 0.9 < float(ours["value"].iloc[0]) < 1.2


def test_equal_figures_are_equal_files(tmp_path: Path) -> None:
    rows = smoke_rows("7a")
    files = []
    for name in ("first", "second"):
        paths = save(drawn("7a", rows, same_scale=False), tmp_path / name)
        files.append([path.read_bytes() for path in paths])
    assert files[0] == files[1]
    assert [path.suffix for path in paths] == [".pdf", ".png"]
    assert b"/Type3" not in files[0][0]  # fonts that can be searched and edited


def test_an_svg_needs_nothing_else() -> None:
    svg = as_svg(drawn("8b", tidy.published("8b"), same_scale=True))
    assert "<image" not in svg
    assert svg == as_svg(drawn("8b", tidy.published("8b"), same_scale=True))


def test_pairs_are_coloured_by_method_and_named_by_baseline() -> None:
    own = find("7a").rows([record(spec) for spec in find("7a").specs(SMOKE, {"l2l": 20})])
    paper = drawn("7a", own, same_scale=False)
    colors = {patch.get_edgecolor()[:3] for patch in paper.axes[0].patches}
    assert len(colors) == 2
    assert "L2L\n20 layers" in words(paper)
    assert "Megatron-LM\nno model fits" in words(paper)


def test_the_planner_has_a_bar_beside_the_search() -> None:
    specs = {spec.method: spec for spec in find("6a").specs(SMOKE)}
    rows = tidy.join(find("6a").rows([record(specs["l2l"])]), tidy.published("6a"))
    paper = drawn("6a", rows, same_scale=False)
    assert "the memory that was full" in words(paper)
