"""The timeline of a finished run: what its folder holds, and what its plan said beside it."""

from __future__ import annotations

from typing import Any

from workbench.core.record import RunRecord
from workbench.runs.columns import label_of
from workbench.runs.store import Store
from workbench.runs.timeline import RunTimeline, load_timeline
from workbench.ui.timeline.data import printable, timeline_data


def run_timeline(store: Store, key: str) -> dict[str, Any]:
    """Plain data of the timeline of the run `key` (`timeline_data`): predicted and measured.

    Raises ValueError, in one sentence, where the run kept no timeline or its file is not one.
    """
    found, record = read_timeline(store, key), store.find(key)
    return timeline_data(
        measured=found.events,
        predicted=found.predicted,
        title=f"run {key}" if record is None else _title(record),
        memory=found.memory,
        layers=None if record is None else record.spec.get("model", {}).get("layers"),
        notes=[] if found.predicted else ["This run kept no prediction beside its events."],
    )


def read_timeline(store: Store, key: str) -> RunTimeline:
    """The events of a run, as they were measured and as its plan predicted them.

    Raises ValueError as `run_timeline` does.
    """
    try:
        return load_timeline(store.folder(key))
    except FileNotFoundError:
        raise ValueError(f"run {printable(key)} kept no timeline{_why(store, key)}") from None
    except ValueError as error:
        reason = printable(str(error))
        raise ValueError(f"the timeline of run {printable(key)} is not usable: {reason}") from None


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
