"""A sweep file run to its end, for a notebook without anybody in front of it.

The sweep has a process of its own here too, so a page that is opened meanwhile finds it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TextIO

from workbench.core.readable import format_seconds
from workbench.runs.campaign import Campaign
from workbench.runs.events import Event, EventReader
from workbench.runs.log_tail import printable
from workbench.runs.store import Store
from workbench.runs.sweep import SweepFile
from workbench.ui.points import in_words, varied
from workbench.ui.sweeps.html import counted, word_of
from workbench.ui.watch import SweepWatch

LOOK_S = 0.1


def run_to_end(store: Store, path: Path, stream: TextIO) -> SweepWatch:
    """Run what has no record yet, a line each; one that another process runs already is waited for.

    Blocks; an exception (Ctrl-C) cancels what was started here. Raises ValueError for a file that
    is malformed or a sweep that could not be run, and StoreError.
    """
    file = SweepFile.load(path)
    campaign = Campaign(store, file.name)
    data = {**file.data, "name": file.name}
    campaign = Campaign.create(store, data, replace=not campaign.alive)
    events = EventReader(campaign.folder / "events.jsonl", from_end=True)
    names = [in_words(changes) for changes in varied(file.specs)]
    sweep, ours = SweepWatch(campaign), campaign.start()
    if not ours:
        stream.write(f"process {campaign.status().pid} runs it already; waiting for it\n")
    try:
        while campaign.alive:
            _tell(events, names, sweep, stream)
            time.sleep(LOOK_S)
    except BaseException:
        if ours:
            campaign.cancel()
        raise
    _tell(events, names, sweep, stream)
    if sweep.status.state == "failed":
        raise ValueError(sweep.status.text)
    stream.write(f"{sweep.name}: {word_of(sweep.status.state)}; {counted(sweep.status.counts)}\n")
    return sweep


def _tell(events: EventReader, names: list[str], sweep: SweepWatch, stream: TextIO) -> None:
    sweep.look()
    for event in events.read():
        if line := _line(event, names):
            left = sweep.status.seconds_left
            more = f"; about {format_seconds(left)} left" if left and sweep.live else ""
            stream.write(f"{line}{more}\n")
            stream.flush()


def _line(event: Event, names: list[str]) -> str:
    """An event in words; empty for what is not worth a line."""
    if event["event"] == "waiting":
        return printable(str(event.get("text", "")))
    if event["event"] != "point_ended":
        return ""
    number = int(event.get("index", 0))
    what = names[number] if number < len(names) else f"run {event.get('key')}"
    why = f": {event['message']}" if event.get("message") else ""
    return printable(f"[{number + 1}/{len(names)}] {what}: {event.get('status')}{why}")
