"""One STRONGHOLD run as a Gantt: what the simulator said above what the executor did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from matplotlib.figure import Figure

from workbench.core.record import RunRecord
from workbench.figures.style import PAGE_IN
from workbench.runs.store import Store
from workbench.runs.timeline import FILE, load_timeline
from workbench.schedule.draw import draw_comparison
from workbench.schedule.simulate import Event

METHOD = "stronghold"
STEPS = 2
"""Steps shown: deferred updates of one overlap the forward pass of the next."""


def draw_gantt(records: Iterable[RunRecord], store: Store) -> Figure | None:
    """Predicted above measured, of the first STRONGHOLD run that left both; None without one."""
    for record in records:
        path = store.folder(record.key) / FILE
        if record.method == METHOD and record.status == "ok" and path.exists():
            try:
                ran = load_timeline(path.parent)
            except ValueError as error:  # torn by a death, or of another version
                store.problems[path] = str(error)
                continue
            if ran.predicted:
                layers = record.spec["model"]["layers"]
                title = f"{layers} layers, window {record.window}, {record.resident} resident"
                both = last_steps(ran.predicted), last_steps(ran.events)
                return draw_comparison(*both, title=title, width_in=PAGE_IN)
    return None


def last_steps(events: list[Event]) -> list[Event]:
    """The last steps, numbered from 1."""
    last = max(event.step for event in events)
    first = last - STEPS + 1
    return [replace(e, step=e.step - first + 1) for e in events if e.step >= first]
