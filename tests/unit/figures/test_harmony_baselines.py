"""Which baselines stand beside Harmony, at which size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.figures.harmony_runs import SMOKE, nowhere, rows_of, run, runs
from tests.unit.figures.paper import flat
from tests.unit.figures.test_harmony_drawing import drawn
from tests.unit.figures.test_harmony_verdicts import judged, on_gpus
from workbench.core.spec import RunSpec
from workbench.exhibits import find
from workbench.exhibits.harmony import scaling, sizes, table
from workbench.figures import rows as tidy
from workbench.figures.verdict import FAILS, HOLDS, MISSING


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.exhibits.harmony.sizes.gpus", lambda: ("gpu",) * 4)


def by_model(specs: list[RunSpec]) -> dict[tuple[str, int], set[str]]:
    """Methods of each family and minibatch."""
    found: dict[tuple[str, int], set[str]] = {}
    for spec in specs:
        found.setdefault((spec.model.family, spec.batch), set()).add(spec.method)
    return found


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize("size", ["small", "paper"])
def test_10_has_both_kinds_of_swapping_beside_every_model(size: str) -> None:
    dials = sizes.named(size)
    told = by_model(find("harmony_10").specs(dials))
    minibatches = [dials.minibatches.get(each.name, (each.minibatch,)) for each in dials.four]
    assert len(told) == sum(map(len, minibatches))
    for (family, _), methods in told.items():
        assert set(sizes.HARMONY + sizes.SWAPPED) <= methods
        assert set(sizes.PEERS) & methods == (set(sizes.PEERS) if family == "gpt" else set())
    absent = find("harmony_10").absent(dials, "why")
    assert {(row.model, row.method) for row in absent.itertuples()} >= {
        (each.name, name) for each in dials.four for name in sizes.SWAPPED
    }


@pytest.mark.parametrize("size", ["smoke", "tiny"])
def test_10_shares_the_swapping_of_figure_12_where_time_is_short(size: str) -> None:
    dials = sizes.named(size)
    ten, twelve = (find(name).specs(dials) for name in ("harmony_10", "harmony_12"))
    swapped = [spec for spec in ten if spec.method in sizes.SWAPPED]
    assert [spec.method for spec in swapped] == list(sizes.SWAPPED)
    assert all(spec in twelve for spec in swapped)


def test_10_judges_swapping_on_gpus(tmp_path: Path) -> None:
    specs = {spec.method: spec for spec in find("harmony_10").specs(SMOKE)
             if spec.model.family == "gpt"}  # fmt: skip
    made = on_gpus([run(specs["harmony-pp"], 0.5), run(specs["pp-swap"], 3.8),
                    run(specs["dp-swap"], 0.4)])  # fmt: skip
    rows = rows_of("harmony_10", made, nowhere(tmp_path))
    slow = judged("harmony_10", rows, "as fast as PP Swap")
    assert (slow.verdict, slow.here) == (HOLDS, pytest.approx(7.6))
    assert judged("harmony_10", rows, "as fast as DP Swap").verdict == FAILS


@pytest.mark.usefixtures("four_gpus")
def test_10_draws_what_ran_beside_the_published_models(tmp_path: Path) -> None:
    dials = sizes.named("paper")
    vgg = [spec for spec in find("harmony_10").specs(dials) if spec.model.family == "vgg"]
    paper = drawn(
        "harmony_10", rows_of("harmony_10", on_gpus(list(map(run, vgg))), nowhere(tmp_path), dials)
    )
    text = flat(paper)
    assert "PP Swap" in text
    assert "DP Swap" in text
    assert "GPipe" not in text  # it ran with none of these
    assert "measured here: the published models" in text
    lines = next(axes for axes in paper.axes if "VGG416" in axes.get_title("left")).lines
    assert len([line for line in lines if line.get_marker() in "<>"]) == 2


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize("name", ["harmony_17", "harmony_18"])
def test_scaling_has_zero_infinity_where_peers_run(name: str) -> None:
    assert sizes.ZERO not in {spec.method for spec in find(name).specs(SMOKE)}
    for dials in (sizes.named("small"), sizes.named("paper")):
        zero = [spec for spec in find(name).specs(dials) if spec.method == sizes.ZERO]
        assert [spec.ranks for spec in zero] == [1, 2, 4] * len(dials.grown)
        assert {spec.microbatch for spec in zero} == {n * dials.zero_samples for n in (1, 2, 4)}
        absent = find(name).absent(dials, "why")
        assert set(absent["method"]) == {*sizes.HARMONY, sizes.ZERO}


@pytest.mark.usefixtures("four_gpus")
def test_17_judges_zero_infinity_where_both_ran_on_several(tmp_path: Path) -> None:
    dials = sizes.named("small")
    specs = [s for s in find("harmony_17").specs(dials) if s.method != sizes.DP or s.ranks == 1]
    made = on_gpus([run(s, (2.0 if s.method == sizes.ZERO else 1.0) / s.ranks) for s in specs])
    rows = rows_of("harmony_17", made, nowhere(tmp_path), dials)
    alone = tidy.pick(rows, source=tidy.MEASURED, ranks=1)
    assert sorted(alone["method"]) == sorted((*sizes.HARMONY, sizes.ZERO))
    claim = "GPT: Harmony-PP takes no longer than ZeRO-Infinity"
    zero = judged("harmony_17", rows, claim)
    assert (zero.verdict, zero.here) == (HOLDS, pytest.approx(2.0))
    few = rows[~((rows["method"] == sizes.ZERO) & (rows["ranks"] > 1))]
    assert judged("harmony_17", few, claim).verdict == MISSING
    speed = tidy.pick(scaling.speedups(rows), method=sizes.ZERO, source=tidy.MEASURED)
    assert speed["value"].tolist() == pytest.approx([1.0, 2.0, 4.0])


def test_a_run_on_one_device_stands_for_both_modes_of_harmony_alone() -> None:
    made = runs("harmony_17")
    (alone,) = [record for record in made if record.spec["ranks"] == 1]
    row = table.measured(alone, "iteration_s", "GPT")
    assert [each["method"] for each in scaling.with_both(row)] == list(sizes.HARMONY)
    zero = row | {"method": sizes.ZERO}
    assert scaling.with_both(zero) == [zero]
