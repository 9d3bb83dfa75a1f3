"""One STRONGHOLD run as a Gantt: what the simulator said above what the executor did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from matplotlib.figure import Figure

from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures.style import PAGE_IN
from workbench.profile.profile import ProfileCosts
from workbench.runs.planning import answer, choose_profile
from workbench.runs.store import Store
from workbench.runs.timeline import FILE, load_timeline
from workbench.schedule.draw import draw_comparison
from workbench.schedule.simulate import Event, simulate

METHOD = "stronghold"
STEPS = 2
"""Steps shown: deferred updates of one overlap the forward pass of the next."""


def draw_gantt(records: Iterable[RunRecord], store: Store) -> Figure | None:
    """Predicted above measured, of the first STRONGHOLD run that left a timeline; None without
    one."""
    for record in records:
        path = store.folder(record.key) / FILE
        if record.method == METHOD and record.status == "ok" and path.exists():
            try:
                measured = load_timeline(path.parent).events
                predicted = predict(record, store)
            except ValueError as error:  # torn by a death, or of another version
                store.problems[path] = str(error)
                continue
            if predicted and measured:
                layers = record.spec["model"]["layers"]
                title = f"{layers} layers, window {record.window}, {record.resident} resident"
                return draw_comparison(
                    last_steps(predicted), last_steps(measured), title=title, width_in=PAGE_IN
                )
    return None


def predict(record: RunRecord, store: Store) -> list[Event]:
    """The events of the run's schedule, simulated with what was measured of this machine."""
    spec = RunSpec.from_dict(record.spec)
    planned = answer(spec, store)
    if planned.source != "measured" or planned.plan.schedule is None:
        return []
    costs = ProfileCosts(choose_profile(spec, store, None))
    return simulate(planned.plan.schedule, costs, steps=STEPS + 2).events


def last_steps(events: list[Event]) -> list[Event]:
    """The last steps, numbered from 1."""
    last = max(event.step for event in events)
    first = last - STEPS + 1
    return [replace(e, step=e.step - first + 1) for e in events if e.step >= first]
