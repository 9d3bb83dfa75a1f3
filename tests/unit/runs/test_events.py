"""events.jsonl: whole lines, whoever dies while writing."""

import json
import math
import os
from pathlib import Path

from workbench.runs.events import EventLog, EventReader, steps_of


def test_events_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert reader.read() == []
    log = EventLog(path)

    log.write("phase", text="profiling")
    assert [event["text"] for event in reader.read()] == ["profiling"]
    assert reader.read() == []
    log.write("step", step=0, loss=float("nan"), seconds=0.5)

    (event,) = reader.read()
    losses, seconds = steps_of([event])
    assert math.isnan(losses[0])
    assert seconds == [0.5]
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: 1 / 0)
    log.close()


def test_a_torn_line_is_skipped_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"time": 1, "event": "step", "step": 0, "loss": 2.0, "seconds": 1}\n{"time')
    reader = EventReader(path)
    assert len(reader.read()) == 1

    log = EventLog(path)
    log.write("started")
    log.close()

    assert [event["event"] for event in reader.read()] == ["started"]
    assert [event["event"] for event in EventReader(path).read()] == ["step", "started"]


def test_lines_of_two_processes_stay_whole_where_the_disk_fills_up(tmp_path, monkeypatch) -> None:
    """The system takes a part of a line, and then another process writes its own."""
    path, write = tmp_path / "events.jsonl", os.write
    one, other = EventLog(path), EventLog(path)

    def writing(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        taken = write(file, data[:20])
        other.write("other")
        return taken

    monkeypatch.setattr(os, "write", writing)
    one.write("one")
    assert [event["event"] for event in EventReader(path).read()] == ["other", "one"]


def test_a_reader_may_begin_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write("old")
    reader = EventReader(path, from_end=True)
    log.write("new")
    log.close()

    assert [event["event"] for event in reader.read()] == ["new"]


def test_steps_done_again_after_a_resume_count_once() -> None:
    steps = [(0, 3.0), (1, 2.0), (2, 1.5), (1, 2.1), (2, 1.6)]
    events = [{"event": "step", "step": s, "loss": loss, "seconds": 1.0} for s, loss in steps]

    assert steps_of(events) == ([3.0, 2.1, 1.6], [1.0, 1.0, 1.0])
