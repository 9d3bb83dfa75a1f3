"""The loop of the offload benchmark: entries run one after the other into a sheet, in time.

Each run is a process of its own, started, watched and recorded by the runner that `workbench run`
uses, so nothing of it is left however it ends. A run that fails becomes a row and the loop goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.offload_cases import Entry, estimated_seconds, probe
from benchmarks.offload_lanes import host_memory_rate, keep_lanes
from benchmarks.offload_sheet import Sheet, describe
from workbench.core.record import RunRecord
from workbench.profile.machine import this_machine
from workbench.profile.store import folder_of
from workbench.published.here import OFFLOAD
from workbench.runs.resolve import resolve
from workbench.runs.runner import POLL_S, Job
from workbench.runs.search import FITS, TOO_LARGE, next_probe, planned_largest
from workbench.runs.store import Store
from workbench.runs.timeline import load_timeline
from workbench.schedule.action import LANES, lane_kind

RUN_TIMEOUT_S = 900.0
FIRST_GUESS = 32
"""Layers a search begins with where the planner does not know this machine yet."""
END_S = 15.0
"""Of the time limit, kept for ending a run that takes longer than it may, and for its row."""
Caps = tuple[int | None, int | None]
"""Bytes of the device and of the host; None for all there is."""


@dataclass(kw_only=True)
class Bench:
    """Runs entries into a sheet, within a time limit."""

    sheet: Sheet
    store: Store
    echo: Callable[[str], None]
    again: bool = False
    deadline: float = float("inf")
    """By `time.monotonic`."""
    timeout_s: float = RUN_TIMEOUT_S
    command: Sequence[str] = ()
    """How this was started, for the sheet."""
    commit: str | None = None
    more: Callable[[RunRecord, Store], dict[str, Any]] | None = None
    """Further fields of a row (`offload.Suite`)."""
    failed: int = 0
    """Runs that ended in an error or were timed out."""

    def run(self, wanted: Iterable[Entry]) -> list[Entry]:
        """Run what is not finished; returns what there was no time for."""
        left = []
        for entry in wanted:
            if self.sheet.finished(entry) and not self.again:
                self.echo(f"{entry.name}: done before")
            elif not self._run_in_pieces(entry):
                left.append(entry)
        return left

    def largest(self, method: str, caps: Caps, limit: int) -> int | None:
        """The most layers that train under device and host cap; None while it is not known.

        Rows of earlier probes count, so a search goes on where it was left.
        """
        while True:
            known = self._probed(method, caps)
            layers = self._next_layers(method, caps, limit, known)
            if layers is None:
                return max((n for n, fits in known.items() if fits), default=0)
            entry = probe(method, layers, *caps)
            if not self._time_for(entry):
                return None
            if self.run_once(entry).status not in (*FITS, *TOO_LARGE):
                return None

    def run_once(self, entry: Entry) -> RunRecord:
        """Run an entry and enter it."""
        left_s = self.deadline - time.monotonic() - END_S
        spec = resolve(entry.spec)
        self.echo(f"{entry.name}: about {self.estimate(entry):.0f} s")
        with Job(
            spec, self.store, force=self.again, timeout=max(1.0, min(self.timeout_s, left_s))
        ) as job:
            while (record := job.poll()) is None:
                job.new_events()
                time.sleep(POLL_S)
        told = describe(
            replace(entry, spec=spec),
            record,
            command=self.command,
            commit=self.commit,
            lanes=busy(self.store.folder(record.key)) if record.status == "ok" else {},
            log=_log(job.folder),
            told=self._more_of(record),
        )
        speed = None
        if record.status != "cancelled":
            speed = self.sheet.append(told).samples_per_second
            self._keep_lanes(told)
        self.failed += record.status in ("error", "timeout")
        words = f"{speed:.4g} samples/s" if speed else f"{record.status}: {told.message}"
        self.echo(f"{entry.name}: {words} ({record.seconds or 0:.0f} s)")
        return record

    def _more_of(self, record: RunRecord) -> dict[str, Any]:
        if self.more is None or record.status != "ok":
            return {}
        try:
            return self.more(record, self.store)
        except Exception as error:  # the run went well, whatever this is
            self.echo(f"no more is known of {record.method}: {error!r}")
            return {}

    def _keep_lanes(self, record: RunRecord) -> None:
        """One measured step of a run on our own runtime, beside the sheet."""
        if record.status != "ok" or not record.predicted.get("step_seconds"):
            return
        if record.spec["ranks"] > 1 or record.method not in OFFLOAD.labels:
            return  # the lanes of which rank? And no figure draws them
        rate = None
        with suppress(ValueError):  # a device that is not here has no profile here
            folder = folder_of(self.store.root, this_machine(record.spec["device"]))
            rate = host_memory_rate(folder / "hardware.json")
        try:
            keep_lanes(self.sheet.folder, record, self.store.folder(record.key), rate)
        except Exception as error:  # the run went well, whatever this is
            name = f"{record.bench['case']}/{record.bench['method']}"
            self.echo(f"{name}: no step of it is kept: {error!r}")

    def estimate(self, entry: Entry) -> float:
        """Seconds the entry may take."""
        return estimated_seconds(entry, self.sheet.runs)

    def _run_in_pieces(self, entry: Entry) -> bool:
        """With the whole batch at once, and in more micro-batches while the device is too small,
        from where an earlier attempt stopped. Returns False where there was no time."""
        last = None if self.again else self.sheet.latest(entry)
        tried = last.record.spec["microbatches"] if last and last.status == "oom_device" else 0
        for split in (n for n in entry.splits if n > tried):
            if not self._time_for(entry):
                return False
            divided = replace(entry, spec=entry.spec.with_(microbatches=split))
            if self.run_once(divided).status != "oom_device":
                break
        return True

    def _time_for(self, entry: Entry) -> bool:
        return time.monotonic() + self.estimate(entry) + END_S < self.deadline

    def _probed(self, method: str, caps: Caps) -> dict[int, bool]:
        """Layers -> whether they fit, as far as is known."""
        case = probe(method, 1, *caps).case
        return {
            run.layers: run.status in FITS
            for run in self.sheet.runs
            if (run.case, run.named) == (case, method) and run.status in (*FITS, *TOO_LARGE)
        }

    def _next_layers(
        self, method: str, caps: Caps, limit: int, known: dict[int, bool]
    ) -> int | None:
        """The planner's guess where it is new, else what the search makes of what is known."""
        best = max((n for n, fits in known.items() if fits), default=0)
        worst = min((n for n, fits in known.items() if not fits), default=limit + 1)
        guess = FIRST_GUESS
        with suppress(ValueError):  # this machine is not measured yet
            guess = planned_largest(probe(method, 1, *caps).spec, self.store, limit=limit)
            if len(known) == 1 and best < guess < worst:
                return guess
        return next_probe(known, guess=guess, limit=limit)


def busy(folder: Path) -> dict[str, dict[str, float]]:
    """``predicted``, ``measured``: seconds a step that each kind of lane was to be busy by the plan
    that ran, and was, in the steps whose events a run on our own runtime kept; empty of others."""
    with suppress(FileNotFoundError, ValueError):
        timeline, told = load_timeline(folder), {}
        for name, events in (("predicted", timeline.predicted), ("measured", timeline.events)):
            steps, total = len({event.step for event in events}) or 1, dict.fromkeys(LANES, 0.0)
            for event in events:
                total[lane_kind(event.lane)] += (event.end_s - event.start_s) / steps
            told[name] = {lane: round(seconds, 6) for lane, seconds in total.items()}
        return told
    return {}


def _log(folder: Path) -> str:
    with suppress(OSError):
        return (folder / "log.txt").read_text(errors="replace")
    return ""
