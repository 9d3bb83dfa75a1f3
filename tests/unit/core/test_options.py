"""Options of methods: declared once, in a dataclass, and known wherever people meet options."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import make_parser
from workbench.cli.spec import specs_from
from workbench.core import methods
from workbench.core.model_spec import ModelSpec
from workbench.core.options import catalogue, choose, options_of
from workbench.core.record import RunRecord
from workbench.core.spec import COMMON, RunSpec
from workbench.runs.overrides import make_spec
from workbench.runs.store import Store, row
from workbench.runs.sweep import expand
from workbench.ui.form import OF_METHODS, Form, form_fields
from workbench.ui.runs.commands import run_command

GOLDEN = Path(__file__).parents[2] / "golden" / "specs_before_options.jsonl"
OLD = {line["spec"]["method"]: line for line in map(json.loads, GOLDEN.read_text().splitlines())}
"""Specs as the last version wrote them that had all options beside the other fields, and keys."""


def record(spec: dict[str, Any]) -> RunRecord:
    return RunRecord(key="k", method=spec["method"], status="ok", spec=spec)


def asked(*words: str) -> list[RunSpec]:
    return specs_from(make_parser().parse_args(["run", *words]), window=4)


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method in the table, with two options of its own."""
    home = "tests.unit.core.deep_method"
    made = methods.Method(
        name="deep", label="Deep", module=home, options=f"{home}:Options", summary="for tests"
    )
    monkeypatch.setitem(methods.METHODS, "deep", made)


def test_one_line_of_a_new_method_is_an_option_everywhere(
    deep: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        asked("--help")
    told = " ".join(capsys.readouterr().out.split())
    assert "options of deep: --depth DEPTH How many layers deep it goes, 100 % at most. (a" in told
    (spec,) = asked("-m", "deep", "--depth", "3", "--set", "end=last")
    assert (spec.options.depth, spec.options.end) == (3, "last")
    assert [each.method for each in asked("-m", "all", "--depth", "3", "-l", "4")][-1] == "deep"

    field = form_fields()["depth"]
    assert (field.group, field.default, field.choices) == (OF_METHODS, "auto", ("auto",))
    form = Form()
    form.set(method=["plain", "deep"], depth="1..2")
    plain, _, *others = form.specs()
    usual = RunSpec(method="plain", microbatches="auto")
    assert (plain, [each.options.depth for each in others]) == (usual, [1, 2])
    assert expand({"method": "deep"}, grid={"depth": [2], "end": ["last"]})[0].options.depth == 2

    written = json.loads(record(spec.to_dict()).to_json())
    assert written["spec"]["options"] == {"depth": 3, "end": "last"}
    read = RunRecord.from_json(json.dumps(written))
    assert make_spec(read.spec) == RunSpec.from_dict(read.spec) == spec
    assert row(read)["depth"] == 3
    assert "--depth 3" in run_command(read.spec, Store(tmp_path))

    usual = RunSpec(method="deep", microbatches="auto")
    assert usual.with_(depth="auto").key() == usual.key() != usual.with_(depth=3).key()
    assert spec.with_(method="plain").with_(method="deep") == usual


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"depth": 17}, "depth is 17; it must be at most 16"),
        ({"depth": "low"}, "depth is 'low'; it must be a whole number or auto"),
        ({"end": "none"}, "end is 'none'; it must be first or last"),
        (
            {"window": 4},
            "window is 4; with deep it has no meaning, leave it at 'auto': .*stronghold",
        ),
        ({"method": "plain", "depth": 2}, "depth is 2; with plain .*: it is an option of deep$"),
        ({"options": {"lr": 1.0}}, "unknown field 'lr' in options; known: .*depth"),
        ({"options": 3}, "options is 3; it must be a JSON object"),
    ],
)
def test_options_are_checked_by_what_declares_them(
    deep: None, changes: dict, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_spec({"method": "deep"}, changes)


def test_constructors_check_words_and_classes() -> None:
    with pytest.raises(ValueError, match="packing is 'mine'; it must be one of ours, faithful"):
        options_of("harmony-pp")(packing="mine")
    with pytest.raises(ValueError, match="options of plain are Options, not "):
        RunSpec(method="plain", options=choose("stronghold", {"window": 2}))


def test_an_option_may_be_given_by_the_name_that_another_method_has_for_its_own() -> None:
    """Each method knows its own words, and takes no others with it."""
    ours = RunSpec.of(method="ftpipe", order="seq")
    assert ours.options.stage_order == "seq"
    assert ours.with_(order="pipedream").options.stage_order == "pipedream"
    theirs = ours.with_(method="varuna")
    assert theirs.options.order == "varuna"
    assert theirs.with_(method="ftpipe").options.stage_order == "async-1f1b"
    with pytest.raises(ValueError, match="order is 'seq'; it must be varuna or auto"):
        theirs.with_(order="seq")


def test_names_are_nobody_elses_and_say_what_they_mean() -> None:
    taken = COMMON | {field.name for field in fields(ModelSpec)}
    for name, option in catalogue().items():
        assert name not in taken
        assert option.about.endswith(".")
        assert set(option.methods) <= methods.known().keys()


@pytest.mark.parametrize("method", OLD)
def test_specs_and_records_of_older_versions_are_read(method: str) -> None:
    old, now = OLD[method], methods.RENAMED.get(method, method)
    spec = RunSpec.from_dict(old["spec"] | {"method": now})
    assert make_spec(old["spec"], {"method": now}) == spec
    assert (spec.key("f") == old["key"]) == (method == now), "the same run"
    told = json.loads(record(old["spec"]).to_json()) | {"schema": 1}
    read = RunRecord.from_json(json.dumps(told))
    assert RunSpec.from_dict(read.spec) == spec
    assert read.spec == spec.to_dict()
    before = {name: v for name, v in old["spec"].items() if name not in ("model", "method")}
    own = COMMON | {f.name for f in fields(spec.options)}
    for name in own & before.keys() - {"window", "resident"}:
        assert row(read)[name] == before[name]
    del told["spec"]["window"]
    with pytest.raises(ValueError, match="the field 'window' is missing"):
        RunRecord.from_json(json.dumps(told))


def test_what_meant_nothing_in_an_old_record_is_left_out() -> None:
    told = OLD["harmony-pp"]["spec"]
    assert RunSpec.from_dict(told | {"optimizer_tier": "host"}) == RunSpec.from_dict(told)
    spec = OLD["fsdp"]["spec"] | {"host_workers": 2}
    read = RunRecord.from_json(json.dumps(json.loads(record(spec).to_json()) | {"schema": 1}))
    assert RunSpec.from_dict(read.spec) == RunSpec.from_dict(OLD["fsdp"]["spec"])
    with pytest.raises(ValueError, match="host_workers is 2; with fsdp it has no meaning"):
        RunSpec.from_dict(spec)
