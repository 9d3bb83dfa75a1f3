"""Each exhibit asks for runs that can be made, and reads out of records what its figure shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.figures.records import LARGEST, SMOKE, out_of_memory, record, specs_of, with_layers
from workbench.core.bytesize import parse_bytes
from workbench.core.methods import METHODS
from workbench.core.spec import RunSpec, flat
from workbench.exhibits import STRONGHOLD, dials, find
from workbench.exhibits.dials import SIZES
from workbench.exhibits.stronghold import fig7a, sizes


@pytest.mark.parametrize("size", [*SIZES, "tiny"])
@pytest.mark.parametrize("figure", STRONGHOLD)
def test_every_size_of_every_exhibit_asks_for_valid_runs(figure: str, size: str) -> None:
    dials = sizes.named(size)
    specs = specs_of(figure, dials)
    assert specs
    assert {spec.method for spec in specs} <= set(METHODS)
    assert all(spec.device == dials.device for spec in specs)
    # Our own runtime has the emulated link; nobody slows DeepSpeed down.
    if figure != "6a":
        for spec in specs:
            slowed = spec.link_bytes_per_s is not None
            assert slowed == (dials.device == "cpu" and not spec.method.startswith("zero"))


def test_paper_is_the_published_setting() -> None:
    dials = sizes.named("paper")
    model = dials.model
    assert (model.hidden, model.heads, model.seq, dials.batch) == (2048, 16, 1024, 4)
    assert model.parameters == 1_716_588_544
    assert dials.largest.device_memory == parse_bytes("32GiB")
    assert dials.largest.host_memory == parse_bytes("90GB")


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="fig6a, fig7a, fig8a, fig8b, fig9"):
        find("fig10")
    with pytest.raises(ValueError, match="smoke, small, paper"):
        sizes.named("huge")


def test_all_methods_of_8a_differ_in_nothing_but_the_method() -> None:
    def common(spec):
        own = ("method", "window", "resident", "link_bytes_per_s")
        chosen = flat(spec).items() - flat(RunSpec(method=spec.method)).items()
        return {name: value for name, value in chosen if name not in own}

    first, *others = find("8a").specs(SMOKE)
    assert all(common(spec) == common(first) for spec in others)


def test_6a_shows_the_largest_that_trained_and_why_the_next_did_not() -> None:
    spec = next(s for s in find("6a").specs(SMOKE) if s.method == "stronghold")
    runs = [record(with_layers(spec, n)) for n in (10, 24)]
    runs += [out_of_memory(with_layers(spec, n), "host") for n in (25, 30)]
    row = find("6a").rows(runs).iloc[0]
    assert row["layers"] == 24
    assert row["value"] == pytest.approx(with_layers(spec, 24).model.parameters / 1e6)
    assert row["bound"] == "host"
    assert row["note"].startswith("at 25 layers")


def test_6a_keeps_a_method_that_nothing_fits() -> None:
    spec = find("6a").specs(SMOKE)[0]
    row = find("6a").rows([out_of_memory(with_layers(spec, n), "device") for n in (1, 2)]).iloc[0]
    assert (row["status"], row["layers"]) == ("oom_device", 1)
    assert row[["value"]].isna().all()


def test_7a_pairs_each_baseline_with_stronghold_on_the_same_model() -> None:
    specs = find("7a").specs(SMOKE, LARGEST)
    assert [(s.method, s.model.layers) for s in specs[:4]] == [
        ("megatron-lm", 6), ("stronghold", 6), ("l2l", 20), ("stronghold", 20),
    ]  # fmt: skip
    rows = find("7a").rows([record(s, 0.2 if s.method == "stronghold" else 0.6) for s in specs])
    for method, layers in LARGEST.items():
        pair = rows[(rows["pair"] == method) & (rows["source"] == "measured")]
        assert set(pair["method"]) == {method, "stronghold"}
        assert set(pair["layers"]) == {layers}
    ratios = fig7a.relative(rows)
    assert ratios[ratios["source"] == "measured"]["value"].tolist() == pytest.approx([3.0] * 4)


def test_7a_serves_two_baselines_of_one_size_with_one_run_of_stronghold() -> None:
    same = {**LARGEST, "zero-infinity": LARGEST["zero-offload"]}
    records = {(s.method, s.model.layers): record(s) for s in find("7a").specs(SMOKE, same)}
    rows = find("7a").rows(list(records.values()))
    measured = rows[rows["source"] == "measured"]
    assert len(measured) == 8
    assert len(records) == 7


def test_7a_leaves_out_a_baseline_without_a_size() -> None:
    methods = {spec.method for spec in find("7a").specs(SMOKE, {"l2l": 20, "megatron-lm": 0})}
    assert methods == {"l2l", "stronghold"}


def test_9_is_drawn_over_the_window_that_was_asked_for() -> None:
    runs = [record(spec, 1 / spec.options.window, window=2) for spec in find("9").specs(SMOKE)]
    measured = find("9").rows(runs).query("source == 'measured'")
    assert measured["x"].tolist() == list(SMOKE.windows)


def test_a_size_is_checked_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = (dials.FOLDER / "stronghold.toml").read_text()
    monkeypatch.setattr(dials, "FOLDER", tmp_path)
    for line, words in (
        ("windw = 4", "the size smoke: unknown field 'windw'"),
        ("window = '4'", "the size smoke: window is '4'; it must be a whole number"),
        ("window = 4\nsteps = 1", "Cannot overwrite"),
    ):
        (tmp_path / "stronghold.toml").write_text(told.replace("window = 4", line, 1))
        with pytest.raises(ValueError, match=words):
            sizes.named("smoke")
