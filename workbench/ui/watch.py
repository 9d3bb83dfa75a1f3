"""Watches all sweeps of a results folder, for a page that looks about twice a second.

A look reads what changed and nothing else: the states of the sweeps, and of the one that is
followed its events and the end of a log. Listing its runs means hashing their specs and reading
their records, so the helper process does that (helper_process.py).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from workbench.core.record import state_of
from workbench.runs.campaign import LIVE, Campaign, Status
from workbench.runs.events import Event, EventReader, parse_event
from workbench.runs.log_tail import last_lines, printable, read_tail
from workbench.runs.overrides import read_object
from workbench.runs.store import RECORD, Store, read_record
from workbench.ui.helper_process import HelperAnswer, HelperProcess

WORK = "workbench.ui.previewer"
READ_AT_ONCE = 4
"""Records read in one look."""
AGAIN_S = 5.0
"""Shortest time between two lists of runs, where others may have added some."""
STEPS_LOOKED_AT = 20


@dataclass
class WatchedPoint:
    """One run of the sweep that is followed."""

    what: str
    """Settings that tell the point from others, in words."""
    key: str
    state: str = "pending"
    """pending, running, done or failed."""
    status: str = ""
    """The record's, once there is one."""
    message: str = ""
    """One sentence, where the status is not ok or a record cannot be used."""
    where: str = ""
    step: int = 0
    steps: int = 0
    loss: float | None = None
    seconds: float | None = None
    """Wall time of the whole run."""
    samples_per_second: float | None = None
    seconds_left: float | None = None
    """Seconds left of its steps, while it runs; None until steps have been timed."""


@dataclass(frozen=True)
class Tail:
    """The end of a run's log."""

    key: str = ""
    what: str = ""
    cause: str = ""
    """Why the run failed, in one sentence; empty where it did not."""
    lines: tuple[str, ...] = ()
    """Text, to be escaped by who shows it."""


@dataclass
class SweepWatch:
    """One sweep. `status` is always there; `points` and `tail` while it is followed."""

    campaign: Campaign
    status: Status = field(default_factory=Status)
    problem: str = ""
    """One sentence, where the sweep's file cannot be used or its runs cannot be listed."""
    points: list[WatchedPoint] = field(default_factory=list)
    listed: bool = False
    """Whether `points` are all there are."""
    outdated: int = 0
    """Runs whose code has changed since: they run again when the sweep is started again."""
    tail: Tail = field(default_factory=Tail)
    shown: str = ""
    """Key of the run whose log is wanted; empty for the one that runs or failed last."""
    _stamps: dict[str, Any] = field(default_factory=dict)
    _reader: EventReader | None = None
    _last: dict[int, Event] = field(default_factory=dict)
    """Index -> the last point or point_ended event of it."""
    _answer: HelperAnswer | None = None
    _asked: tuple[float, Any] = (0.0, None)
    _unread: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.campaign.name

    @property
    def live(self) -> bool:
        """Whether a process runs the sweep."""
        return self.status.state in LIVE

    @property
    def settled(self) -> bool:
        """Whether the runs were listed and nothing is left to be read, or they cannot be."""
        return self.problem != "" or (self.listed and self._answer is None and not self._unread)

    def counts(self) -> dict[str, int]:
        """Runs by state; what the sweep's process says, else what was listed."""
        if self.status.counts and not (self.listed and not self.live):
            return dict(self.status.counts)
        states = [point.state for point in self.points]
        return {state: states.count(state) for state in sorted(set(states))}

    def running(self) -> list[WatchedPoint]:
        """The runs that run now."""
        return [point for point in self.points if point.state == "running"]

    def look(self) -> bool:
        """Read the state, if it may have changed; returns whether it did."""
        stamp = _stamp(self.campaign.folder / "state.json")
        if not self.live and self._stamps.get("state") == stamp:
            return False
        self._stamps["state"], before = stamp, self.status
        self.status = self.campaign.status()
        return self.status != before

    def follow(self, helper: HelperProcess) -> bool:
        """Read the runs, their progress and a log; returns whether anything changed."""
        stamp = _stamp(self.campaign.folder / "sweep.json")
        if self._reader is None or stamp != self._stamps.get("sweep"):
            self._stamps["sweep"] = stamp
            self._reader = EventReader(self.campaign.folder / "events.jsonl")
            self._last, self._answer, self._asked = {}, None, (0.0, None)
        before = (self.problem, self.listed, self.tail, [vars(p).copy() for p in self.running()])
        listed = self._list(helper)
        heard = self._hear()
        for _ in range(min(READ_AT_ONCE, len(self._unread))):
            self._read(self._unread.pop(0))
        self._mark_running()
        self.tail = self._read_tail()
        now = (self.problem, self.listed, self.tail, [vars(p).copy() for p in self.running()])
        return listed or heard or now != before

    def _list(self, helper: HelperProcess) -> bool:
        """Have the runs listed where they may have changed; returns whether there is a new list."""
        if self._answer is not None and self._answer.done:
            answer, self._answer = self._answer, None
            self.problem = answer.error
            if not answer.error:
                self.points, self.listed = [WatchedPoint(**line) for line in answer.value], True
                self.outdated = 0
                for index in self._last:
                    self._apply(index)
            return True
        at, seen = self._asked
        now = (self._stamps["sweep"], self.status.state, _stamp(self.campaign.store.runs))
        if self._answer is None and seen != now and time.monotonic() > at + AGAIN_S * bool(at):
            self._asked = (time.monotonic(), now)
            try:
                data = read_object(self.campaign.folder / "sweep.json", "sweep")
                root = str(self.campaign.store.root)
                self._answer = helper.ask(f"{WORK}:listed", data=data, root=root)
            except ValueError as error:
                self.problem, self.points, self.listed = str(error), [], False
                return True
        return False

    def _hear(self) -> bool:
        """Take the sweep's events in."""
        events = self._reader.read()
        for event in events:
            if event["event"] in ("point", "point_ended"):
                self._last[event["index"]] = event
                self._apply(event["index"])
        return bool(events)

    def _apply(self, index: int) -> None:
        """Enter the last event of a run."""
        if not 0 <= index < len(self.points):
            return
        event, point = self._last[index], self.points[index]
        if event["key"] != point.key:
            point.key = event["key"]
            self.outdated += 1
        if event["event"] == "point":
            point.state, point.status, point.where = "running", "", event.get("where") or ""
        else:
            point.status, point.message = event["status"], event.get("message", "")
            point.state = state_of(point.status)
            point.where, point.seconds_left = "", None
            self._unread.append(index)

    def _read(self, index: int) -> None:
        """Enter the record of a run that ended."""
        if index >= len(self.points):
            return
        point = self.points[index]
        try:
            record = read_record(self.campaign.store.folder(point.key) / RECORD)
        except (OSError, ValueError):
            return
        point.seconds, point.samples_per_second = record.seconds, record.samples_per_second
        point.loss = record.losses[-1] if record.losses else None

    def _mark_running(self) -> None:
        """Progress, as the sweep's process says."""
        running = {point["index"]: point for point in self.status.running}
        for index, point in enumerate(self.points):
            ended = self._last.get(index, {}).get("event") == "point_ended"
            if index in running and not ended:  # the state may be older than the events
                told = running[index]
                point.state, point.key, point.where = "running", told["key"], told["where"] or ""
                point.step, point.steps, point.loss = told["step"], told["steps"], told["loss"]
                point.seconds_left = self._seconds_left(point)
            elif point.state == "running" and not self.live:  # its process is gone
                point.state, point.where, point.seconds_left = "pending", "", None

    def _seconds_left(self, point: WatchedPoint) -> float | None:
        path = self.campaign.store.folder(point.key) / "events.jsonl"
        stamp, seen = _stamp(path), self._stamps.get(point.key)
        if seen is None or seen[0] != stamp:
            seconds = []
            for line in read_tail(path).splitlines()[-STEPS_LOOKED_AT:]:
                event = parse_event(line)
                if event and event["event"] == "step" and event["step"] > 0:  # that may compile
                    seconds.append(event["seconds"])
            self._stamps[point.key] = seen = (stamp, median(seconds) if seconds else None)
        return None if seen[1] is None else seen[1] * max(0, point.steps - point.step)

    def _read_tail(self) -> Tail:
        point = self._spoken_of()
        if point is None:
            return Tail()
        path = self.campaign.store.folder(point.key) / "log.txt"
        stamp = (point.key, point.state, point.message, _stamp(path))
        if stamp == self._stamps.get("log"):
            return self.tail
        self._stamps["log"] = stamp
        cause = ""
        if point.state == "failed" or point.status not in ("", "ok"):
            cause = printable(" ".join(point.message.split())) or f"it ended as {point.status}"
        return Tail(point.key, point.what, cause, tuple(last_lines(path)))

    def _spoken_of(self) -> WatchedPoint | None:
        """The run whose log is shown: the one asked for, one that runs, the last that failed."""
        wanted = [point for point in self.points if point.key == self.shown]
        latest = [i for i in self._last if i < len(self.points)]
        latest.sort(key=lambda index: self._last[index].get("time", 0))
        failed = [self.points[i] for i in latest if self.points[i].state == "failed"]
        ended = [self.points[i] for i in latest]
        failed = failed or [point for point in self.points if point.state == "failed"]
        return next(iter([*wanted, *self.running(), *failed[-1:], *ended[-1:]]), None)


class Watch:
    """All sweeps of a store. Looking is cheap; nothing here writes."""

    def __init__(self, store: Store, helper: HelperProcess | None = None) -> None:
        self.store = store
        self.sweeps: dict[str, SweepWatch] = {}
        """By name."""
        self.followed = ""
        """Name of the sweep whose runs are watched too."""
        self.helper = helper or HelperProcess()

    def look(self) -> set[str]:
        """Look once; returns the names of the sweeps of which anything changed, or that came or
        went."""
        names = {campaign.name for campaign in Campaign.all(self.store)}
        changed = names ^ self.sweeps.keys()
        for name in self.sweeps.keys() - names:
            del self.sweeps[name]
        for name in sorted(names - self.sweeps.keys()):
            self.sweeps[name] = SweepWatch(Campaign(self.store, name))
        for name, sweep in self.sweeps.items():
            if sweep.look():
                changed.add(name)
        if self.followed in self.sweeps and self.sweeps[self.followed].follow(self.helper):
            changed.add(self.followed)
        return changed

    def follow(self, name: str) -> None:
        """Watch the runs of this sweep; an empty name, of none."""
        self.followed = name

    def wait_listed(self, limit_seconds: float = 30.0) -> None:
        """Blocks until the runs of the sweep that is followed are known, or that long."""
        until = time.monotonic() + limit_seconds
        while time.monotonic() < until:
            self.look()
            sweep = self.sweeps.get(self.followed)
            if sweep is None or sweep.settled:
                return
            time.sleep(0.02)

    def wanted(self) -> str:
        """The sweep that a page that is opened shows: one that runs, else the last that was
        interrupted; empty where there is neither."""
        for states in (LIVE, ("interrupted",)):
            found = [s for s in self.sweeps.values() if s.status.state in states]
            if found:
                return max(found, key=lambda sweep: sweep.status.started).name
        return ""

    def close(self) -> None:
        """End the helper process."""
        self.helper.close()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file; None where there is none."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
