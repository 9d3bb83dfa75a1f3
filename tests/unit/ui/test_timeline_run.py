"""The timeline of a run: what its folder holds, and the prediction beside it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.methods.stronghold import planner
from workbench.profile import store as profiles
from workbench.profile.profile import Profile, ProfileCosts
from workbench.published.hardware import published_profile
from workbench.runs.store import Store
from workbench.schedule.simulate import Event, simulate
from workbench.ui.timeline_run import as_executed, read_timeline, run_timeline

KEY = "0123456789abcdef"
SPEC = RunSpec(
    method="stronghold", model=ModelSpec(layers=12), device="cpu", device_memory=3 * 2**30,
    activations="recompute",
)  # fmt: skip


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A machine that counts as this one, and as measured."""
    published = published_profile(SPEC)
    found = replace(published, hardware=replace(published.hardware, source="measured"))
    for where in ("several", "store"):  # a module that is imported later would keep it for good
        name = f"workbench.profile.{where}.stored_profile"
        monkeypatch.setattr(name, lambda spec, root, echo=None: found)
    return found


@pytest.fixture
def run(tmp_path: Path, profile: Profile) -> Store:
    """A store with one finished run, which took 1.5 times as long as predicted."""
    plan = planner.plan(SPEC, profile)
    events = [
        replace(e, start_s=100 + 1.5 * e.start_s, end_s=100 + 1.5 * e.end_s, step=e.step + 5)
        for e in simulate(plan.schedule, ProfileCosts(profile), steps=5).events
        if e.step >= 2
    ]
    store = Store(tmp_path)
    write(store, events, plan.schedule.name)
    store.write(
        RunRecord(
            key=KEY,
            method="stronghold",
            status="ok",
            spec=SPEC.to_dict(),
            window=plan.window,
            resident=plan.resident,
            predicted={"settings": plan.settings},
            engine="workbench",
        )
    )
    return store


def write(store: Store, events: list[Event], schedule: str) -> None:
    folder = store.folder(KEY)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [asdict(event) for event in events]
    text = json.dumps({"schedule": schedule, "source": "measured", "events": rows})
    (folder / "timeline.json").write_text(text)


def test_the_prediction_is_of_what_was_executed_under_the_same_steps(run: Store) -> None:
    data = run_timeline(run, KEY)
    assert data["notes"] == []
    predicted, measured = data["blocks"]
    assert [step for step, _ in predicted["steps"]] == [7, 8, 9]
    assert [step for step, _ in measured["steps"]] == [7, 8, 9]
    assert sorted(predicted["events"]["name"]) == sorted(measured["events"]["name"])
    assert measured["each"] == pytest.approx(1.5 * predicted["each"], rel=1e-6)
    assert {strip["tier"] for strip in measured["memory"]} >= {"device"}
    assert data["title"].startswith("STRONGHOLD, 12 layers")
    assert KEY in data["title"]


def test_a_machine_that_was_measured_again_is_told(run: Store) -> None:
    """The record says one step, the profile of now another: the page has a word on both."""
    record, plan = run.find(KEY), planner.plan(SPEC, profiles.stored_profile(SPEC, None, None))
    for said, notes in ((plan.step_seconds, 0), (2 * plan.step_seconds, 1)):
        run.write(replace(record, predicted={**record.predicted, "step_seconds": said}))
        assert len(run_timeline(run, KEY)["notes"]) == notes
    assert "as it was measured since; before the run" in run_timeline(run, KEY)["notes"][0]


def test_units_that_are_no_layer_are_named(run: Store) -> None:
    words = {name["words"] for name in run_timeline(run, KEY)["names"]}
    assert "forward of the embedding, micro-batch 0" in words
    assert "backward of the head, micro-batch 0" in words


def test_the_planners_choice_is_pinned(run: Store) -> None:
    record = run.find(KEY)
    assert record is not None
    spec = as_executed(record)
    assert (spec.options.window, spec.options.resident) == (record.window, record.resident)
    assert spec.options.kept == "auto", "this run recomputes whatever is kept"


def test_a_prediction_of_another_schedule_says_so(run: Store) -> None:
    name, events = read_timeline(run, KEY)
    write(run, [e for e in events if e.kind != "U"], name)
    (note,) = run_timeline(run, KEY)["notes"]
    assert note.startswith(f"The prediction is of {name} as it is planned now")
    assert " actions of a step are in one of them only." in note


def test_nothing_is_predicted_from_another_machine(
    run: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "stored_profile", lambda spec, root, echo: None)
    data = run_timeline(run, KEY)
    assert [block["source"] for block in data["blocks"]] == ["measured"]
    assert "no prediction" in data["notes"][0]


def test_a_run_of_another_version_is_still_shown(run: Store) -> None:
    record = run.find(KEY)
    run.write(replace(record, spec={**record.spec, "warp": 9}))
    data = run_timeline(run, KEY)
    assert [block["source"] for block in data["blocks"]] == ["measured"]
    assert data["notes"][0].startswith(
        "Nothing can be predicted for this run: unknown field 'warp'"
    )


def test_a_run_without_a_record_shows_what_was_measured(run: Store) -> None:
    (run.folder(KEY) / "record.json").unlink()
    data = run_timeline(run, KEY)
    assert [block["source"] for block in data["blocks"]] == ["measured"]
    assert data["notes"] == ["The run has no record, so nothing is predicted."]


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


@pytest.mark.parametrize("field", ["kind", "lane", "start_s"])
def test_an_event_of_another_version_is_refused(run: Store, field: str) -> None:
    name, events = read_timeline(run, KEY)
    write(run, [replace(events[0], **{field: "x\x1b"})], name)
    with pytest.raises(ValueError, match=rf"^the timeline of run {KEY} is not usable: events?\b"):
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
