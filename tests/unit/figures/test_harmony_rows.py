"""Rows of Harmony's figures: estimates that say so, plans, and runs with their reasons."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.figures.harmony_runs import EXHIBITS, SMOKE, nowhere, rows_of, run, runs
from tests.unit.harmony.made_up import Layers, cut
from workbench.core.methods import known
from workbench.exhibits import ACESO, FTPIPE, HARDWARE, HARMONY, STRONGHOLD, VARUNA, find
from workbench.exhibits import EXHIBITS as ALL
from workbench.exhibits.harmony import fig8, sizes, table, volumes
from workbench.figures import rows as tidy
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.program import build
from workbench.methods.harmony.visits import Rings
from workbench.published import harmony
from workbench.runs.store import Store

GIB = 2**30


# -- reference estimates -------------------------------------------------------------------------


@pytest.mark.parametrize("figure", ["8", "10", "12", "17", "table1", "stored"])
def test_every_estimate_says_what_it_is(figure: str) -> None:
    rows = harmony.estimates(figure)
    assert rows["status"].str.contains("not a measurement").all()
    assert rows["source"].str.contains("artifact 5fd838f").all()
    assert set(rows["model"]) <= set(harmony.MODELS)
    assert set(rows["method"]) <= set(known())
    assert rows["value"].notna().all()


def test_an_unknown_figure_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no reference estimates of '9'.*'10'"):
        harmony.estimates("9")


def test_volumes_and_times_of_figure_10_are_those_of_the_reference(reference: Path) -> None:
    path = reference / "harmony" / "volumes_fig10.csv"
    if not path.exists():
        pytest.skip(f"the artifact's estimates are not there: {path}")
    times, moved = harmony.estimates("10"), harmony.estimates("12")
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    for line in lines:
        place = {
            "model": line["model"], "method": f"harmony-{line['mode'].lower()}",
            "minibatch": int(line["minibatch"]),
        }  # fmt: skip
        for prefetch, name in (("no", "est_s_no_prefetch"), ("yes", "est_s_prefetch")):
            part = tidy.pick(times, **place, quantity="iteration_s", prefetch=prefetch)
            assert part["value"].tolist() == [float(line[name])]
        for quantity, name in (("weights_in", "w_in_gib"), ("p2p", "p2p_gib")):
            part = tidy.pick(moved, **place, quantity=quantity)
            assert part["value"].tolist() == [float(line[name])]


def test_stored_searches_are_those_of_the_reference(reference: Path) -> None:
    path = reference / "harmony" / "golden_d32_n2.csv"
    if not path.exists():
        pytest.skip(f"the artifact's estimates are not there: {path}")
    rows = harmony.estimates("stored")
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            place = {"model": line["model"], "method": f"harmony-{line['mode'].lower()}"}
            part = tidy.pick(rows, **place)
            assert tidy.one(part, quantity="iteration_s") == float(line["estimated_s"])
            assert tidy.one(part, quantity="candidates") == int(line["candidates"])


def test_an_estimate_with_overlap_has_the_one_without_at_its_other_end() -> None:
    rows = table.estimated("17", "iteration_s")
    ten = tidy.pick(rows, model="gpt2_10b", method="harmony-pp", ranks=8).iloc[0]
    assert (ten["value"], ten["high"]) == (58.1, 63.9)
    assert ten["source"] == tidy.REFERENCE
    assert "not a measurement" in ten["note"]
    assert "transfers overlap" in ten["how"]
    assert len(rows) == 28


def test_seconds_become_samples_per_second_and_ends_change_places() -> None:
    rows = table.as_speed(table.estimated("10", "iteration_s"))
    row = tidy.pick(rows, model="gpt2_xl", method="harmony-pp", minibatch=16).iloc[0]
    assert row["value"] == pytest.approx(16 / 12.33)
    assert row["low"] == pytest.approx(16 / 13.30)
    assert (row["x"], row["unit"]) == (16, "samples/s")


# -- runs ----------------------------------------------------------------------------------------


def test_harmony_stands_among_the_exhibits_by_name() -> None:
    assert [*STRONGHOLD, *HARDWARE, *HARMONY, *VARUNA, *FTPIPE, *ACESO] == list(ALL)
    assert [find(name).words for name in ("harmony_8", "harmony_table1")] == [
        "Harmony, figure 8", "Harmony, table 1",
    ]  # fmt: skip
    for name in HARMONY:
        assert find(name).figure == name == find(name).name == find(name).notebook
    with pytest.raises(ValueError, match="unknown exhibit 'fig10'.*harmony_10"):
        find("fig10")


@pytest.mark.parametrize("size", ["smoke", "small", "paper", "tiny"])
@pytest.mark.parametrize("name", EXHIBITS)
def test_every_size_asks_for_valid_runs(
    name: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.exhibits.harmony.sizes.gpus", lambda: ("gpu",) * 4)
    dials = sizes.named(size)
    specs = find(name).specs(dials)
    assert bool(specs) == (name != "harmony_table1")
    for spec in specs:
        assert spec.method in known()
        assert spec.device == dials.device
        assert spec.ranks <= 4
        if (packs := getattr(spec.options, "backward_packs", "auto")) != "auto":
            assert sum(map(int, packs.split())) == spec.model.units
        assert known()[spec.method].modules or spec.model.family == "gpt"


def test_paper_is_the_published_setting() -> None:
    dials = sizes.named("paper")
    xl = next(each for each in dials.four if each.name == "gpt2_xl")
    assert (xl.model.layers, xl.model.hidden, xl.model.heads) == (48, 1600, 25)
    assert xl.model.parameters == pytest.approx(1638.02e6, rel=1e-4)
    assert [round(each.model.parameters / 1e9, 1) for each in dials.grown] == [
        10.5, 20.6, 30.6, 40.7,
    ]  # fmt: skip
    assert dials.minibatches["resnet1026"] == (64, 256, 1024)


def test_exhibits_share_their_runs_at_size_smoke() -> None:
    every = {str(spec.to_dict()) for name in EXHIBITS for spec in find(name).specs(SMOKE)}
    asked = sum(len(find(name).specs(SMOKE)) for name in EXHIBITS)
    assert len(every) <= 14 < asked


def test_unknown_sizes_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="smoke, small, paper"):
        sizes.named("huge")


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_run_that_failed_keeps_its_place_and_reason(name: str, tmp_path: Path) -> None:
    specs = find(name).specs(SMOKE)
    if not specs:
        return
    failed = run(specs[0], status="oom_device", message="the device tier is out of memory")
    rows = rows_of(name, [failed], nowhere(tmp_path))
    own = tidy.pick(rows, source=tidy.MEASURED)
    assert set(own["status"]) == {"oom_device"}
    assert own["value"].isna().all()
    assert own["note"].str.contains("out of memory").all()


@pytest.mark.parametrize("name", EXHIBITS)
def test_what_did_not_run_says_why(name: str, tmp_path: Path) -> None:
    rows = rows_of(name, [], nowhere(tmp_path))
    own = tidy.pick(rows, source=tidy.MEASURED, variant="")
    assert own["value"].isna().all()
    assert (own["note"] == "not here").all()
    assert len(own) or name == "harmony_table1"


@pytest.mark.parametrize("name", EXHIBITS)
def test_no_row_is_of_two_sources(name: str, tmp_path: Path) -> None:
    rows = rows_of(name, runs(name), nowhere(tmp_path))
    assert list(rows.columns) == list(table.COLUMNS)
    assert set(rows["source"]) <= set(tidy.SOURCES) - {tidy.PUBLISHED}
    simulated = rows["source"] == tidy.SIMULATED
    assert rows[simulated]["variant"].isin((tidy.OUR_PLAN, tidy.THEIR_PLAN, tidy.BEFORE)).all()
    searched = rows["variant"].isin((tidy.OUR_SEARCH, tidy.THEIR_SEARCH))  # timed, and no run
    assert set(rows[searched]["source"]) <= {tidy.MEASURED}
    assert (rows[~simulated & ~searched]["variant"] == "").all()
    assert (rows[(rows["source"] == tidy.MEASURED) & ~searched]["key"] != "").all()
    assert (rows[rows["source"] == tidy.REFERENCE]["key"] == "").all()


def test_a_prediction_is_simulated_and_never_measured() -> None:
    spec = SMOKE.spec("harmony-pp", SMOKE.text, 2)
    made = run(spec, 0.5)
    (told,) = table.predicted(made, "iteration_s", "GPT")
    assert (told["source"], told["variant"]) == (tidy.SIMULATED, tidy.BEFORE)
    assert told["value"] == pytest.approx(0.45)
    seen = table.measured(made, "iteration_s", "GPT")
    assert (seen["source"], seen["value"]) == (tidy.MEASURED, pytest.approx(0.5))
    assert table.measured(made, "samples_per_s", "GPT")["value"] == pytest.approx(16)
    assert seen["setting"] == "2/2, 3 and 4 packs"


def test_how_busy_ranks_were_is_read_from_the_timeline(tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = find("harmony_8").specs(SMOKE)[0]
    made = run(spec)
    folder = store.folder(made.key)
    folder.mkdir(parents=True)
    events = [
        {"lane": "compute", "rank": 0, "start_s": 0.0, "end_s": 4.0},
        {"lane": "compute", "rank": 1, "start_s": 2.0, "end_s": 3.0},
        {"lane": "h2d", "rank": 1, "start_s": 0.0, "end_s": 9.0},
    ]
    same = {"name": "F0.0", "kind": "F", "unit": 0, "microbatch": 0, "step": 5}
    text = json.dumps({"events": [same | event for event in events]})
    (folder / "timeline.json").write_text(text)
    assert fig8.busy_shares(made, store) == {0: 1.0, 1: 0.25}
    rows = tidy.pick(find("harmony_8").rows([made], store, SMOKE), quantity="busy")
    assert rows["value"].tolist() == [1.0, 0.25]
    assert rows["setting"].tolist() == ["2/2, packs of 4"] * 2
    (folder / "timeline.json").write_text("{")
    assert fig8.busy_shares(made, store) == {}


# -- bytes by formula ----------------------------------------------------------------------------


class GptLayers(Layers):
    """The units of a small GPT, with its activations."""

    def __init__(self, model) -> None:
        super().__init__(volumes.unit_parameters(model))
        self.sample_bytes = 4 * model.seq * model.hidden

    def input_bytes(self, unit: int, samples: int) -> int:
        return self.sample_bytes * samples if unit else 0


def words(packs: tuple[range, ...]) -> str:
    return " ".join(str(len(pack)) for pack in packs)


@pytest.mark.parametrize("mode", ["pp", "dp"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_formula_is_what_schedules_move(mode: str, ranks: int) -> None:
    rng = random.Random(ranks)
    base = SMOKE.spec(f"harmony-{mode}", SMOKE.text, ranks)
    for _ in range(20):
        backward = cut(base.model.units, rng)
        if len(backward) < 2:
            continue
        forward = cut(backward[-1].start, rng) if backward[-1].start > 1 else backward[:-1]
        spec = base.with_(forward_packs=words(forward), backward_packs=words(backward))
        packs = Packs(
            mode=mode, ranks=ranks, minibatch=spec.batch, forward_size=2, backward_size=2,
            forward=forward, backward=backward,
        )  # fmt: skip
        rings = [Rings(weights=GIB, gradients=GIB)] * ranks
        moved = build(packs, GptLayers(spec.model), rings=rings).moved_bytes()
        told = volumes.formula(spec)
        assert told.to_dict()["load"] == moved["load"], packs
        # In DP mode each layer's gradients are padded, so that every rank's share is as large.
        close = pytest.approx(moved["store"], rel=1e-3 if mode == "dp" else 0)
        assert told.to_dict()["store"] == close, packs
        most = volumes.bound(spec.method, ranks) * told.gradients_out
        assert told.weights_in + told.gradients_out <= most


def test_there_is_no_formula_where_packs_are_chosen_or_weights_tied() -> None:
    spec = SMOKE.spec("harmony-pp", SMOKE.text, 2)
    assert volumes.formula(spec) is not None
    assert volumes.formula(spec.with_(model=replace(spec.model, tied=True))) is None
    chosen = {name: "auto" for name in ("forward_packs", "backward_packs")}
    sizes_too = {name: "auto" for name in ("forward_size", "backward_size")}
    assert volumes.formula(spec.with_(**chosen, **sizes_too)) is None
    assert volumes.formula(SMOKE.spec("harmony-pp", SMOKE.pairs, 2)) is None
