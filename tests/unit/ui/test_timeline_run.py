"""The timeline of a run: what its folder holds, and the prediction beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.sealed import read_sealed
from workbench.core.spec import RunSpec
from workbench.methods.stronghold import planner
from workbench.published.hardware import published_profile
from workbench.runs.store import Store
from workbench.schedule.plan import Plan
from workbench.training.run import write_timeline
from workbench.ui.timeline.run import read_timeline, run_timeline

KEY = "0123456789abcdef"
SPEC = RunSpec(
    method="stronghold", model=ModelSpec(layers=12), device="cpu", device_memory=3 * 2**30,
    activations="recompute",
)  # fmt: skip


@pytest.fixture
def plan() -> Plan:
    """A published machine's."""
    return planner.plan(SPEC, published_profile(SPEC))


@pytest.fixture
def run(tmp_path: Path, plan: Plan) -> Store:
    """A store with one finished run, which took 1.5 times as long as predicted."""
    events = [
        replace(e, start_s=100 + 1.5 * e.start_s, end_s=100 + 1.5 * e.end_s, step=e.step + 5)
        for e in plan.simulated
        if e.step
    ]
    store = Store(tmp_path)
    store.folder(KEY).mkdir(parents=True)
    write_timeline(store.folder(KEY), plan, events, norms=(), clip=None)
    store.write(
        RunRecord(
            key=KEY, method="stronghold", status="ok", spec=SPEC.to_dict(), engine="workbench",
            predicted={"settings": plan.settings},
        )
    )  # fmt: skip
    return store


def test_a_run_is_shown_beside_its_own_plan_wherever_its_folder_lies(
    run: Store, plan: Plan
) -> None:
    """This machine is another one, of which nothing was measured."""
    data = run_timeline(run, KEY)
    assert data["notes"] == []
    predicted, measured = data["blocks"]
    assert [step for step, _ in predicted["steps"]] == [6, 7, 8]
    assert [step for step, _ in measured["steps"]] == [6, 7, 8]
    assert sorted(predicted["events"]["name"]) == sorted(measured["events"]["name"])
    assert measured["each"] == pytest.approx(1.5 * predicted["each"], rel=1e-6)
    (strip,) = (one for one in measured["memory"] if one["tier"] == "device")
    assert strip["peak"] == plan.peak_bytes["device"]
    assert data["title"].startswith("STRONGHOLD, 12 layers")
    assert KEY in data["title"]


def test_events_of_one_step_are_beside_the_last_simulated_one(run: Store, plan: Plan) -> None:
    events = [e for e in read_timeline(run, KEY).events if e.step == 8]
    write_timeline(run.folder(KEY), plan, events, norms=(), clip=None)
    assert {e.step for e in read_timeline(run, KEY).predicted} == {8}


def test_a_run_that_kept_no_prediction_says_so(run: Store) -> None:
    told = read_sealed(run.folder(KEY) / "timeline.json", "it")
    del told["predicted"], told["memory"]
    (run.folder(KEY) / "timeline.json").write_text(json.dumps(told))
    data = run_timeline(run, KEY)
    assert [block["source"] for block in data["blocks"]] == ["measured"]
    assert data["notes"] == ["This run kept no prediction beside its events."]


def test_units_that_are_no_layer_are_named(run: Store) -> None:
    words = {name["words"] for name in run_timeline(run, KEY)["names"]}
    assert "forward of the embedding, micro-batch 0" in words
    assert "backward of the head, micro-batch 0" in words


def test_a_run_without_a_record_is_shown(run: Store) -> None:
    (run.folder(KEY) / "record.json").unlink()
    data = run_timeline(run, KEY)
    assert [block["source"] for block in data["blocks"]] == ["predicted", "measured"]
    assert data["title"] == f"run {KEY}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is not JSON: Expecting value"),
        ("[]", "it must be an object"),
        ('{"events": []}', "it holds no event"),
        ('{"events": [{"name": "F1.0"}]}', "missing"),
        ('{"events": 3}', "events is 3; it must be a list"),
        ('{"schedule": "x"}', "'events'"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_a_file_that_is_no_timeline_is_refused_in_a_sentence(
    run: Store, text: str, sentence: str
) -> None:
    (run.folder(KEY) / "timeline.json").write_text(text)
    with pytest.raises(ValueError, match=f"^the timeline of run {KEY} is not usable: ") as refusal:
        run_timeline(run, KEY)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("which", ["events", "predicted"])
@pytest.mark.parametrize("field", ["kind", "lane", "start_s"])
def test_an_event_of_another_version_is_refused(run: Store, which: str, field: str) -> None:
    told = read_sealed(run.folder(KEY) / "timeline.json", "it")
    told[which][0][field] = "x\x1b"
    (run.folder(KEY) / "timeline.json").write_text(json.dumps(told))
    with pytest.raises(
        ValueError, match=rf"^the timeline of run {KEY} is not usable: (event|events|predicted)\b"
    ):
        run_timeline(run, KEY)


def test_a_run_that_kept_no_timeline_says_why(run: Store) -> None:
    (run.folder(KEY) / "timeline.json").unlink()
    with pytest.raises(ValueError, match=f"^run {KEY} kept no timeline$"):
        run_timeline(run, KEY)
    run.write(replace(run.find(KEY), status="cancelled"))
    with pytest.raises(ValueError, match="kept no timeline, for it ended with status cancelled$"):
        run_timeline(run, KEY)
    run.write(replace(run.find(KEY), status="ok", engine="deepspeed 0.19.8"))
    with pytest.raises(ValueError, match="kept no timeline; runs of stronghold may not record one"):
        run_timeline(run, KEY)
    (run.folder(KEY) / "record.json").unlink()
    with pytest.raises(ValueError, match="kept no timeline, for it has not ended with a record$"):
        run_timeline(run, KEY)
    with pytest.raises(ValueError, match="run 77 kept no timeline, for there is no such run"):
        run_timeline(run, "77")


@pytest.mark.parametrize("key", ["", "..", "../runs", "/etc", "a\\b", "a\0b"])
def test_no_file_outside_the_store_is_read(run: Store, key: str) -> None:
    with pytest.raises(ValueError, match="is no key of a run"):
        run_timeline(run, key)
