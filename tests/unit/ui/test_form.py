"""Text in the form of a sweep becomes a sweep file, and a sweep file fills the form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runs.helpers import wait_for
from workbench.core.spec import RunSpec, every_field
from workbench.runs.axis import format_axis, parse_axis
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store
from workbench.runs.sweep import SweepFile
from workbench.ui.form import MOST_RUNS, OF_METHODS, OF_SWEEP, Form, form_fields
from workbench.ui.form_panel import FormPanel
from workbench.ui.helper_process import HelperProcess
from workbench.ui.sweeps.preview import Preview

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("layers", "8", [8]),
        ("layers", "2, 4,8", [2, 4, 8]),
        ("layers", "2..5", [2, 3, 4, 5]),
        ("layers", "2..7 step 2", [2, 4, 6]),
        ("layers", "1..64 x2", [1, 2, 4, 8, 16, 32, 64]),
        ("layers", "3, 1..4x2, 3", [3, 1, 2, 4]),
        ("window", "auto, 2..4", ["auto", 2, 3, 4]),
        ("lr", "1e-5..1e-3 x10", [1e-5, 1e-4, 1e-3]),
        ("clip", "none, 0.1..0.3 step 0.1", [None, 0.1, 0.2, 0.3]),
        ("device_memory", "32GiB", [32 * GIB]),
        ("device_memory", "8GiB..32GiB x2, none", [8 * GIB, 16 * GIB, 32 * GIB, None]),
        ("host_memory", "90GB..120GB step 30GB", [90 * 10**9, 120 * 10**9]),
        ("link_bytes_per_s", "12GB/s, 2e9, none", [12e9, 2e9, None]),
        ("dtype", "fp32, bf16", ["fp32", "bf16"]),
        ("tied", "true, false", [True, False]),
        ("text", 'stdlib, "a, b.txt", ../up', ["stdlib", "a, b.txt", "../up"]),
        ("method", "l2l, l2l, plain", ["l2l", "plain"]),
    ],
)
def test_values_lists_and_ranges(name: str, text: str, values: list[object]) -> None:
    found = parse_axis(name, text)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]
    assert parse_axis(name, format_axis(name, found)) == values


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("layers", "two", "layers is 'two'; it must be a whole number"),
        ("layers", "16..2", "layers is '16..2'; the end is below the start"),
        ("layers", "2..", "it must be a whole number"),
        ("layers", "1..8 x1.5", "1.5 is not a whole number"),
        ("layers", "0..8 x2", "x needs a factor above 1 and a start above 0"),
        ("layers", "1..8 x1", "x needs a factor above 1"),
        ("layers", "1..8 step 0", "the step must be above 0"),
        ("layers", "1..1000000", "more than 1000 values"),
        ("layers", "1..1e29 x1.0000000001", "more than 1000 values"),
        ("layers", "1..1e999999", "it must be a whole number"),
        ("layers", "nan..3", "it must be a whole number"),
        ("layers", "2,,4", "a value is missing"),
        ("lr", "1..2", "say how it goes on"),
        ("dtype", "fp16", "dtype is 'fp16'; it must be fp32 or bf16"),
        ("device_memory", "32G", "device_memory: '32G' is not an amount of memory: write GiB"),
        ("device_memory", "1GiB..4GiB", "say how it goes on"),
        ("text", '"open', "a double quote is not closed"),
        ("method", "foo", "unknown method 'foo'; known: megatron-lm"),
        ("colour", "red", "unknown field 'colour'"),
    ],
)
def test_what_is_wrong_is_one_sentence(name: str, text: str, words: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        parse_axis(name, text)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


NUMBERS = {
    name for name in every_field() if name not in ("text", "tokenizer", "family", "config_digest")
}


@given(st.sampled_from(sorted(NUMBERS)), st.text('0123456789.,-ex stpGMiBnoau"', max_size=25))
def test_any_text_is_values_or_a_sentence(name: str, text: str) -> None:
    try:
        values = parse_axis(name, text)
    except ValueError as refusal:
        said = str(refusal)
    else:
        said = "values"
        assert parse_axis(name, format_axis(name, values)) == values
    assert said
    assert "\n" not in said


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, unique=True))
def test_any_texts_come_back(texts: list[str]) -> None:
    texts = list(dict.fromkeys(text.strip().replace("\n", " ") for text in texts))
    texts = [text for text in texts if text == text.strip() and text]
    if texts and not any(set(text) & set("\r\x0b\x0c") for text in texts):
        assert parse_axis("text", format_axis("text", texts)) == texts


def test_the_fields_are_the_spec_s_own() -> None:
    fields = form_fields()
    assert set(fields) == {*every_field(), *OF_SWEEP}
    assert fields["batch"].default == str(RunSpec(method="").batch)
    assert "Samples per optimizer step." in fields["batch"].help
    assert "Attention heads" in fields["heads"].help
    assert fields["clipping"].choices == ("auto", "speculate", "wait")
    assert all("`" not in field.help for field in fields.values())
    for name, field in fields.items():
        if field.default and name not in OF_SWEEP:
            assert len(parse_axis(name, field.default)) == 1, "one may type the default"


def test_options_are_those_of_the_chosen_methods() -> None:
    form = Form()
    panel = FormPanel(form, lambda: None)

    def shown() -> set[str]:
        folds = dict(zip((head.title for head in panel.more.heads), panel.more.bodies, strict=True))
        (grid,) = folds[OF_METHODS].children
        return {name for name, made in panel.fields.items() if made in grid.children}

    assert shown() == set()
    panel.fields["method"].value = ("stronghold", "1f1b")
    assert {"window", "clipping", "stages"} <= shown()
    assert not {"forward_packs", "tp"} & shown()
    panel.fields["window"].value = "4"
    panel.fields["method"].value = ("plain",)
    assert shown() == {"window"}, "what is typed is never out of sight"
    form.load({"runs": [{"method": "harmony-pp"}, {"method": "plain"}], "version": 2})
    panel.fill()
    assert "forward_packs" in shown()
    assert {*form_fields()["tp"].methods} == {"megatron-parallel"}
    assert "Only for Megatron-LM, several GPUs." in form_fields()["tp"].help


def test_a_sweep_from_code() -> None:
    form = Form()
    form.set(method=["stronghold", "l2l"], layers="2..6 step 2", device_memory=[GIB, None])
    form.set(name="mine", timeout=60, batch=8, clip=None, layers=range(2, 5))
    assert form.data() == {
        "name": "mine",
        "version": 2,
        "timeout": 60,
        "base": {"batch": 8, "clip": None},
        "grid": {
            "method": ["stronghold", "l2l"],
            "device_memory": [GIB, None],
            "layers": [2, 3, 4],
        },
    }
    assert form.count() == len(form.specs()) == 12
    assert SweepFile.parse(form.data(), "it").specs == form.specs()
    form.set(batch="", timeout=None)
    assert form.data()["base"] == {"clip": None}


def test_a_bad_value_is_refused_whole() -> None:
    form = Form()
    form.set(method="l2l", layers=4)
    with pytest.raises(ValueError, match="it must be a whole number"):
        form.set(batch=2, layers="two")
    assert (form.text("batch"), form.text("layers")) == ("", "4")
    with pytest.raises(ValueError, match="unknown field 'colour'"):
        form.set(colour="red")
    for name, text in (("name", "../up"), ("timeout", "-1"), ("timeout", "nan"), ("executor", "x")):
        told = form.type(name, text)
        assert f"{name} is " in told or "cannot name a sweep" in told
        with pytest.raises(ValueError, match=re.escape(told)):
            form.data()
        form.type(name, "")
    assert form.errors == {}


def test_what_cannot_be_a_sweep() -> None:
    form = Form()
    with pytest.raises(ValueError, match="no method is chosen"):
        form.data()
    form.set(method="stronghold", layers="2..500", batch="1..500")
    assert form.count() == 499 * 500
    with pytest.raises(ValueError, match=f"249,500 runs; at most {MOST_RUNS:,}"):
        form.specs()
    form.set(layers=4, batch=1, window=[2, 8])
    with pytest.raises(ValueError, match="a window of 8 layers is out of range"):
        form.specs()


FILES = [
    {"base": {"method": "l2l"}},
    {"base": {"method": "l2l", "model": {"layers": 4, "heads": 8}, "device_memory": "2GiB"}},
    {"base": {"method": "l2l", "model.hidden": 64}, "grid": {"model.layers": [2, 4], "seed": [1]}},
    {"name": "n", "timeout": 1.5, "executor": "ray", "base": {"method": "plain", "clip": None}},
    {
        "base": {"layers": 8, "lr": 1e-3},
        "runs": [{"method": "l2l"}, {"method": "stronghold", "window": 2}],
        "grid": {"batch": [2, 4]},
    },
    {"base": {"method": "l2l"}, "grid": {"model": [{"layers": 2}, {"layers": 4, "hidden": 64}]}},
    {"base": {"method": "l2l", "batch": 2}, "runs": [{"batch": 4}], "grid": {"seed": [8]}},
]


@pytest.mark.parametrize("data", FILES)
def test_a_file_fills_the_form_and_comes_back(data: dict, tmp_path: Path) -> None:
    path = tmp_path / "my.json"
    path.write_text(json.dumps(data))
    form = Form()
    form.load(path)
    assert form.untouched
    assert form.data() == data | {"version": 2}
    specs = SweepFile.parse(data, "it").specs
    assert form.specs() == specs
    form.set(steps=3)
    assert not form.untouched
    assert form.specs() == [spec.with_(steps=3) for spec in specs]


def test_what_no_field_can_say_is_shown() -> None:
    form = Form()
    form.load(FILES[4])
    assert form.kept == ("kept as in the file: 2 runs (method=l2l, method=stronghold window=2)")
    assert form.text("method") == ""
    form.clear()
    assert form.kept == ""
    form.load(FILES[5])
    assert form.kept == "kept as in the file: 2 values of model"


def test_a_named_sweep_fills_the_form(tmp_path: Path) -> None:
    data = {"name": "mine", "base": {"method": "l2l"}, "grid": {"layers": [2, 4]}}
    form = Form()
    form.load(Campaign.create(Store(tmp_path), data))
    assert (form.text("name"), form.text("layers")) == ("mine", "2, 4")
    assert form.data() == data | {"version": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"base": {"method": "l2l", "batch": 0}}', "batch is 0"),
        ('{"grid": {"layers": []}}', "at least one value"),
        ('{"colour": 1}', "unknown field 'colour'"),
    ],
)
def test_a_bad_file_leaves_the_form_alone(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    form = Form()
    form.set(method="l2l", layers=4)
    for source, why in ((path, words), (tmp_path / "none.json", "cannot be read")):
        with pytest.raises(ValueError, match=why) as refusal:
            form.load(source)
        assert "\n" not in str(refusal.value)
    assert form.text("layers") == "4"


# -- what a sweep will need ------------------------------------------------------------------


@pytest.fixture
def preview(tmp_path: Path):
    helper = HelperProcess()
    yield Preview(Store(tmp_path), helper)
    helper.close()


def test_the_planner_says_what_fits_and_what_does_not(preview: Preview) -> None:
    form = Form()
    form.set(
        method="stronghold", device="cpu", layers="2, 4", device_memory="16MiB, 2GiB",
        hidden="512", seq="128", host_memory="2GiB", optimizer_tier="host",
    )  # fmt: skip
    preview.start(form.data())
    assert preview.sentences() == ["Looking at the runs ..."]
    wait_for(lambda: preview.advance() and preview.ended)
    assert len(preview.points) == len(preview.pending) == 4
    assert preview.ended
    assert {point.what for point in preview.cannot} == {
        "STRONGHOLD, 2 layers, device memory 16MiB",
        "STRONGHOLD, 4 layers, device memory 16MiB",
    }
    assert all(
        "device memory" in why and "16 MiB" in why
        for why in [point.why for point in preview.cannot]
    )
    most, what = preview.peak["device"]
    assert what == "STRONGHOLD, 4 layers, device memory 2GiB"
    assert GIB / 2 < most <= 2 * GIB
    words = " ".join(preview.sentences())
    assert "4 runs: 0 finished already, 4 to run" in words
    assert "Time: unknown, for neither runs like these nor this machine have been measured" in words
    assert preview.why_not == "", "some of its runs fit"


def test_what_cannot_be_previewed_is_a_sentence(preview: Preview) -> None:
    preview.start({"base": {"method": "foo"}})
    wait_for(lambda: preview.advance() and preview.ended)
    assert preview.text.startswith("unknown method 'foo'")
    preview.start(
        {"base": {"method": "torch-zero-bubble", "device": "cpu", "ranks": 2, "microbatches": 1}}
    )
    wait_for(lambda: preview.advance() and preview.ended)
    assert preview.text == ""
    assert "needs a multiple of 2 micro-batches" in preview.unplanned[0].why
    preview.start({"base": {"method": "l2l", "device": "cpu", "layers": 2}})
    preview.stop()
    assert preview.advance() is False
