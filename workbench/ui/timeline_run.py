"""The timeline of a finished run: what its folder holds, and what the simulator says beside it.

The prediction is of the schedule that the run executed: the record names what its planner chose,
and pinning that makes the planner answer at once with the same schedule. Costs are those that the
results folder holds of this machine. Where the prediction would be of another machine, or of
another schedule, there is none, or a note says so.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.methods.pipeline.proofs import Ground
from workbench.profile.profile import ProfileCosts
from workbench.runs.planning import answer, choose_profiles
from workbench.runs.progress import format_seconds
from workbench.runs.store import Store
from workbench.runs.timeline import load_timeline
from workbench.schedule.schedule import Schedule
from workbench.schedule.simulate import Event, simulate
from workbench.ui.runs_table_fields import label_of
from workbench.ui.timeline_data import printable, timeline_data

WARM_UP = 2
"""Steps simulated before those that are shown: the first ones find nothing left to wait for."""
CHANGED = 0.01
"""Difference of a step from what was said before the run past which a note says so."""
PINNED = {"pulled_layers": "pulled", "disk_layers": "disk_layers", "kept_layers": "kept"}
PINNED |= {name: name for name in ("stages", "replicas", "micro")}
"""Settings of a plan and the options that ask for them."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Simulated events, or why there are none."""

    events: list[Event]
    schedule: Schedule | None
    note: str = ""


def run_timeline(store: Store, key: str) -> dict[str, Any]:
    """Plain data of the timeline of the run `key` (`timeline_data`): predicted and measured.

    Raises ValueError, in one sentence, where the run kept no timeline or its file is not one.
    """
    name, measured = read_timeline(store, key)
    record = store.find(key)
    if record is None:
        note = "The run has no record, so nothing is predicted."
        return timeline_data(measured=measured, title=f"run {key}", notes=[note])
    found = predicted_for(record, store, name, measured)
    return timeline_data(
        measured=measured,
        predicted=found.events,
        title=_title(record),
        schedule=found.schedule,
        layers=record.spec.get("model", {}).get("layers"),
        notes=[found.note] if found.note else [],
    )


def read_timeline(store: Store, key: str) -> tuple[str, list[Event]]:
    """The executed schedule's name and the measured events of a run.

    Raises ValueError as `run_timeline` does.
    """
    try:
        found = load_timeline(store.folder(key))
        timeline_data(measured=found.events)  # refuses what cannot be shown
        return found.schedule, found.events
    except FileNotFoundError:
        raise ValueError(f"run {printable(key)} kept no timeline{_why(store, key)}") from None
    except ValueError as error:
        reason = printable(str(error))
        raise ValueError(f"the timeline of run {printable(key)} is not usable: {reason}") from None


def predicted_for(record: RunRecord, store: Store, name: str, measured: list[Event]) -> Prediction:
    """The run's schedule, simulated with what is stored of this machine.

    As many steps as `measured` has, under their numbers. `name` is the schedule that was executed.
    """
    steps = sorted({event.step for event in measured})
    try:
        spec = as_executed(record)
        planned = answer(spec, store)
        if planned.source != "measured":
            note = "This machine is not the one of the run, or was not measured: no prediction."
            return Prediction(events=[], schedule=None, note=note)
        schedule = planned.plan.schedule
        if schedule is None:
            note = f"The planner finds no schedule for this run: {planned.plan.binding}."
            return Prediction(events=[], schedule=None, note=note)
        profiles = choose_profiles(spec, store, None, lambda _: None)
        costs = ProfileCosts(profiles[min(profiles)])
        if schedule.mesh.processes > 1:
            costs = Ground.of(spec, profiles).costs(schedule)
        events = simulate(schedule, costs, steps=WARM_UP + len(steps)).events
    except ValueError as error:
        note = f"Nothing can be predicted for this run: {error}"
        return Prediction(events=[], schedule=None, note=note)
    shown = [replace(e, step=steps[e.step - WARM_UP]) for e in events if e.step >= WARM_UP]
    differ = len({event.name for event in measured} ^ schedule.by_name.keys())
    note, said = "", record.predicted.get("step_seconds")
    now = planned.plan.seconds_of(record.grad_norms[1:], spec.clip)
    if said and now and abs(now / said - 1) > CHANGED:
        note = (
            f"The prediction is of this machine as it was measured since; before the run a step of "
            f"{format_seconds(said)} was said, now {format_seconds(now)}."
        )
    if differ:
        note = (
            f"The prediction is of {schedule.name} as it is planned now; the run executed {name}, "
            f"and {differ} actions of a step are in one of them only."
        )
    return Prediction(events=shown, schedule=schedule, note=note)


def as_executed(record: RunRecord) -> RunSpec:
    """The record's spec with what its planner chose, so that planning again chooses the same.

    Raises ValueError for a spec of another version, or a function: records decide of no imports.
    """
    spec = RunSpec.from_dict(record.spec)
    if spec.model.custom:
        raise ValueError(f"{spec.model.family} is not called because a record names it")
    chosen = {"window": record.window, "resident": record.resident}
    settings = record.predicted.get("settings") or {}
    chosen |= {field: settings.get(setting) for setting, field in PINNED.items()}
    if spec.activations != "auto":
        chosen["kept"] = None
    if getattr(spec.options, "optimizer_tier", "auto") != "auto":
        chosen["disk_layers"] = None
    pins = {
        field: value
        for field, value in chosen.items()
        if value is not None and getattr(spec.options, field, None) == "auto"
    }
    with suppress(ValueError):  # a window of fewer layers than anybody may ask for
        return spec.with_(**pins)
    return spec


def _title(record: RunRecord) -> str:
    """Title: the method, the model and the settings of the run."""
    model = record.spec.get("model", {})
    words = [
        label_of(record.method),
        f"{model.get('layers')} layers",
        f"batch {record.spec.get('batch')}",
    ]
    if record.window is not None:
        words.append(f"window {record.window}")
    if record.resident is not None:
        words.append(f"{record.resident} resident")
    return f"{', '.join(words)} (run {record.key})"


def _why(store: Store, key: str) -> str:
    """The reason, where the record tells one."""
    if not store.folder(key).is_dir():
        return ", for there is no such run"
    record = store.find(key)
    if record is None:
        return ", for it has not ended with a record"
    if record.status != "ok":
        return f", for it ended with status {record.status}"
    return f"; runs of {record.method} may not record one" if record.engine != "workbench" else ""
