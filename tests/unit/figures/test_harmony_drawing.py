"""What is on the paper: marks that keep sources apart, words that say what stands in for what."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.unit.figures.harmony_runs import EXHIBITS, SMOKE, nowhere, rows_of, run, runs
from tests.unit.figures.paper import assert_nothing_leaves, flat, printed, words
from workbench.exhibits import find
from workbench.exhibits.harmony import sizes, table
from workbench.figures import rows as tidy
from workbench.figures import style
from workbench.figures.style import PAGE_IN
from workbench.runs.store import Store
from workbench.schedule.simulate import Event


def drawn(name: str, rows: pd.DataFrame) -> Figure:
    return printed(find(name).draw, rows)


def with_timelines(name: str, folder: Path) -> tuple[list, Store]:
    """The runs of an exhibit, and a store in which each left a timeline."""
    store, made = Store(folder), runs(name)
    for record in made:
        place = store.folder(record.key)
        place.mkdir(parents=True)
        events = [
            asdict(Event("F0.0", "F", 0, 0, rank, "compute", 5, 0.0, 1.0 + rank))
            for rank in range(record.spec["ranks"])
        ]
        (place / "timeline.json").write_text(json.dumps({"events": events}))
    return made, store


@pytest.fixture(scope="module")
def paper_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Figure]:
    """The drawing of an exhibit where all of it ran, or nothing; it is drawn once."""

    @cache
    def made(name: str, ran: bool) -> Figure:
        folder = tmp_path_factory.mktemp(name)
        records, store = with_timelines(name, folder) if ran else ([], nowhere(folder))
        return drawn(name, rows_of(name, records, store))

    return made


def test_every_method_has_a_look_of_its_own() -> None:
    shown = {"plain", *sizes.HARMONY, *sizes.SWAPPED, *sizes.PEERS, "zero-offload"}
    looks = [style.LOOKS[method] for method in shown]
    assert len({look.color for look in looks}) == len({look.marker for look in looks}) == len(shown)


@pytest.mark.parametrize("name", EXHIBITS)
@pytest.mark.parametrize("ran", [True, False], ids=["ran", "did not run"])
def test_nothing_leaves_the_paper(name: str, ran: bool, paper_of) -> None:
    paper = paper_of(name, ran)
    assert paper.get_figwidth() == PAGE_IN
    assert_nothing_leaves(paper)


@pytest.mark.parametrize(
    "name", [name for name in EXHIBITS if name not in ("harmony_13", "harmony_21")]
)
def test_estimates_are_said_to_be_no_measurements(name: str, paper_of) -> None:
    text = flat(paper_of(name, False))
    assert "They are not measurements" in text
    assert tidy.REFERENCE in text
    assert "measured (" not in text


@pytest.mark.parametrize("name", [name for name in EXHIBITS if name != "harmony_table1"])
def test_what_ran_is_told_with_its_machine_and_what_did_not_with_its_reason(
    name: str, paper_of
) -> None:
    assert "measured (Made-up, 2 cores, no GPU)" in words(paper_of(name, True))
    absent = words(paper_of(name, False))
    if name != "harmony_12":  # there the bytes of plans and estimates remain
        assert "not here" in absent


def test_a_bar_is_as_high_as_its_value_and_one_without_says_why(tmp_path: Path) -> None:
    specs = find("harmony_10").specs(SMOKE)
    made = [run(specs[0], 0.5), run(specs[1], status="oom_device", message="no room")]
    paper = drawn("harmony_10", rows_of("harmony_10", made, nowhere(tmp_path)))
    here = paper.axes[-1]
    heights = [p.get_height() for p in here.patches if isinstance(p, Rectangle)]
    assert sorted(heights) == pytest.approx([16.0, 16 / 0.9])  # measured, and predicted
    assert "out of device memory" in words(paper)


def test_what_a_size_leaves_out_is_named_and_nothing_else_in_the_legend(paper_of) -> None:
    text = flat(paper_of("harmony_10", True))
    assert f"Not run at {SMOKE.name} size" in text
    assert "PP Swap of BERT, VGG, ResNet" in text
    nothing = paper_of("harmony_10", False)
    assert "Not run at" not in flat(nothing)
    names = {text.get_text() for legend in nothing.legends for text in legend.get_texts()}
    assert not {each for each in names if each.startswith("measured")}
    assert "Nothing measured is drawn: not here." in flat(paper_of("harmony_12", False))


def test_a_device_that_never_computes_has_a_zero(tmp_path: Path) -> None:
    rows = rows_of("harmony_8", [], nowhere(tmp_path))
    third = tidy.pick(rows, quantity="busy", variant=tidy.THEIR_PLAN).index[2]
    rows.loc[third, "value"] = 0.0
    paper = drawn("harmony_8", rows)
    (busy,) = [axes for axes in paper.axes if "how busy" in axes.get_title(loc="left")]
    assert [text.get_text() for text in busy.texts] == ["0"]


def test_losses_that_hardly_fall_are_said_to(tmp_path: Path) -> None:
    falls = rows_of("harmony_13", runs("harmony_13"), nowhere(tmp_path))
    assert "hardly fall" not in flat(drawn("harmony_13", falls))
    flat_ones = falls.assign(value=0.69)
    assert "Losses hardly fall here" in flat(drawn("harmony_13", flat_ones))


def test_parts_of_a_volume_add_up(paper_of) -> None:
    paper = paper_of("harmony_12", False)
    tops = max(p.get_y() + p.get_height() for p in paper.axes[0].patches)
    assert tops == pytest.approx(12.04 + 6.29 + 23.44 + 23.44 + 35.94, abs=0.01)
    assert "device to device, not over the host's link" in words(paper)


def test_curves_lie_on_each_other_and_their_difference_beside(tmp_path: Path) -> None:
    paper = drawn("harmony_21", rows_of("harmony_21", runs("harmony_21"), nowhere(tmp_path)))
    left, right = paper.axes
    curves = [line.get_ydata() for line in left.lines]
    assert len(curves) == 3
    assert all(list(curve) == list(curves[0]) for curve in curves)
    assert "counts as equal" in flat(paper)
    assert right.get_yscale() == "log"


def test_table_1_is_a_table(paper_of) -> None:
    text = flat(paper_of("harmony_table1", False))
    for told in ("ResNet1026", "4/2, 10 and 11 packs", "10.00 GiB", "micro-batch, packs"):
        assert told in text


def test_table_1_draws_searches_as_measured_and_like_beside_like(paper_of, tmp_path: Path) -> None:
    rows = rows_of("harmony_table1", [], nowhere(tmp_path))
    paper = paper_of("harmony_table1", False)
    legend = flat(paper)
    assert "simulated: our plan" in legend
    assert "measured: our search (machine not recorded" in legend, "or the machine's name"
    assert paper.axes[0].get_ylim()[1] > 20.0, "the dashed line is inside its axis"
    estimates = tidy.pick(
        rows, source=tidy.REFERENCE, quantity="iteration_s", method="harmony-pp", minibatch=64
    )
    assert estimates["how"].str.contains("transfers overlap; high: without overlap").all()
    stated = [text.get_text() for text in paper.axes[0].texts]
    assert "no stored search" in stated, "instead of a bar"


def test_table_1_tells_plans_for_one_gpu_instead_of_drawing_them(tmp_path: Path) -> None:
    rows = rows_of("harmony_table1", [], nowhere(tmp_path))
    place = {"model": "vgg416", "method": "harmony-pp", "minibatch": 64, "ranks": 4}
    alone = {**place, "quantity": "gpus", "value": 1.0, "source": tidy.SIMULATED,
             "variant": tidy.THEIR_PLAN, "unit": "GPUs"}  # fmt: skip
    there = rows[~((rows["quantity"] == "gpus") & (rows["model"] == "vgg416"))]
    text = flat(drawn("harmony_table1", tidy.join(there, table.table([alone]))))
    assert "The published plan of VGG416 is for one GPU alone" in text
    several = rows.assign(value=rows["value"].where(rows["quantity"] != "gpus", 4.0))
    assert "for one GPU alone" not in flat(drawn("harmony_table1", several))
