"""Before a sweep starts: how many runs, how long, how much memory and disk, and what cannot fit.

The helper process works it out (previewer.py, helper_process.py), a slice at a time, so that the
page fills in while the kernel stays free, and a sweep that is no longer asked about costs one
slice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from workbench.core.bytesize import format_bytes
from workbench.runs.progress import format_seconds
from workbench.runs.store import Store
from workbench.ui.helper_process import Answer, HelperProcess

WORK = "workbench.ui.previewer"
SLICE_S = 0.4
"""About how long the process works on one question."""
HOWS = {"records": "by earlier runs like these", "estimated": "estimated from this machine's rates"}
"""How times were obtained that are not those of measured layers -> words."""
RECORD_BYTES = 100_000
"""About what the folder of one run takes on the disk, checkpoints apart."""


@dataclass
class PreviewPoint:
    """One run, as far as it is known."""

    what: str
    key: str
    state: str
    """pending, done or failed: what the store has of it."""
    fits: bool | None = None
    """None while nobody knows, or where no planner can say."""
    why: str = ""
    """Why it cannot fit, or why the planner has no answer."""
    peak: dict[str, int] | None = None
    """Tier -> predicted peak in bytes; None until it was planned."""
    seconds: float | None = None
    how: str = ""
    """How the seconds were obtained (runs/expected.py)."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Preview as a page shows it."""

    points: int | None
    """How many runs; None until that is known."""
    done: int
    failed: int
    pending: int
    seconds: float | None
    """Expected time of the pending ones whose time is known; None where none is."""
    untimed: int
    """Pending ones without a known time, those that cannot fit apart."""
    peak: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Tier -> bytes at the largest pending run that fits, and which that is."""
    disk: int
    """Bytes: the records, and the largest share of the disk tier."""
    cannot: list[tuple[str, str]] = field(default_factory=list)
    """Runs that cannot fit, and why."""
    unplanned: list[tuple[str, str]] = field(default_factory=list)
    """Runs that no planner can speak of, and why."""
    hows: frozenset[str] = frozenset()
    """How the seconds of the pending ones were obtained."""
    complete: bool
    text: str = ""
    """Failure of the preview, in a sentence."""

    def sentences(self) -> list[str]:
        """The summary in sentences."""
        if self.points is None:
            return (
                [self.text] if self.text else [] if self.complete else ["Looking at the runs ..."]
            )
        head = f"{_runs(self.points)}: {self.done} finished already, {self.pending} to run"
        found = [head + (f", {self.failed} failed before" if self.failed else "")]
        if self.text:
            return [*found, f"The planner failed: {self.text}"]
        if self.pending:
            found += [self._time(), *self._memory()]
            found.append(f"Disk: about {format_bytes(self.disk)}, checkpoints apart.")
        if self.cannot:
            found.append(f"{_runs(len(self.cannot))} cannot fit, by the planner:")
        if self.unplanned:
            found.append(f"{_runs(len(self.unplanned))} cannot be planned before they run.")
        return found if self.complete else [*found, "Still planning ..."]

    def _time(self) -> str:
        if self.seconds is not None:
            more = f", and {_runs(self.untimed)} of unknown time" if self.untimed else ""
            told = " and ".join(words for how, words in HOWS.items() if how in self.hows)
            return f"Time: about {format_seconds(self.seconds)}{told and ', ' + told}{more}."
        if not self.complete:
            return "Time: not known yet."
        return (
            "Time: unknown, for neither runs like these nor this machine have been measured here: "
            '"Examine this machine" does, or workbench plan --measure.'
        )

    def _memory(self) -> list[str]:
        peaks = [
            f"{format_bytes(most)} {tier} ({what})" for tier, (most, what) in self.peak.items()
        ]
        if not peaks:
            return []
        return [f"Memory at the largest: {'; '.join(peaks)}."]

    @property
    def why_not(self) -> str:
        """Why it means nothing to start this sweep: none of its runs can fit; else empty."""
        if not self.cannot or len(self.cannot) < self.pending:
            return ""
        what, why = self.cannot[0]
        which = f"none of the {self.pending} runs can" if self.pending > 1 else "the run cannot"
        return f"{which} fit this machine, by the planner: {what}: {why}"


class Preview:
    """Works out what a sweep needs, one sweep at a time. Starts nothing until asked."""

    def __init__(self, store: Store, helper: HelperProcess | None = None) -> None:
        self.store = store
        self.points: list[PreviewPoint] = []
        self.ended = True
        """Whether nothing more will be said of this sweep."""
        self._helper = helper or HelperProcess()
        self._data: dict[str, Any] = {}
        self._question, self._answer = "", Answer()
        self._known, self._text = False, ""

    def start(self, data: dict[str, Any]) -> None:
        """Look at this sweep instead of any other. Returns at once."""
        self._data, self.points, self._known, self._text = data, [], False, ""
        self.ended = False
        self._ask("points")

    def start_over(self, text: str = "") -> None:
        """Look at no sweep; `text` says why."""
        self.points, self._known, self._text, self.ended = [], False, text, True

    def advance(self) -> bool:
        """Take what has been worked out by now, and ask on; returns whether there was anything."""
        if self.ended or not self._answer.done:
            return False
        if self._answer.error:
            self._text, self.ended = self._answer.error, True
        elif self._question == "points":
            self.points, self._known = [PreviewPoint(**p) for p in self._answer.value], True
            self._next()
        else:
            for line in self._answer.value:
                point = self.points[line.pop("index")]
                for name, value in line.items():
                    setattr(point, name, value)
            self._next()
        return True

    def wait(self, limit_seconds: float = 60.0) -> Summary:
        """Blocks until all is known, or that long."""
        until = time.monotonic() + limit_seconds
        while not self.ended and time.monotonic() < until:
            if not self.advance():
                time.sleep(0.01)
        return self.summary()

    def stop(self) -> None:
        """Ask no more."""
        self.ended = True

    def close(self) -> None:
        """End the process."""
        self.stop()
        self._helper.close()

    def summary(self) -> Summary:
        """Summary of the preview so far."""
        states = [point.state for point in self.points]
        pending = [point for point in self.points if point.state == "pending"]
        left = [point for point in pending if point.fits is not False]
        timed = [point.seconds for point in left if point.seconds is not None]
        peak: dict[str, tuple[int, str]] = {}
        for point in left:
            for tier, most in (point.peak or {}).items():
                if most > peak.get(tier, (0, ""))[0]:
                    peak[tier] = (most, point.what)
        return Summary(
            points=len(self.points) if self._known else None,
            done=states.count("done"),
            failed=states.count("failed"),
            pending=len(pending),
            seconds=sum(timed) if timed else None,
            untimed=len(left) - len(timed),
            peak=peak,
            disk=len(pending) * RECORD_BYTES + peak.get("disk", (0, ""))[0],
            cannot=[(p.what, p.why) for p in pending if p.fits is False],
            unplanned=[(p.what, p.why) for p in left if p.why],
            hows=frozenset(point.how for point in left),
            complete=self.ended,
            text=self._text,
        )

    def _next(self) -> None:
        """First whether everything fits, then what that takes."""
        pending = [(i, p) for i, p in enumerate(self.points) if p.state == "pending"]
        unsure = [i for i, p in pending if p.fits is None and not p.why]
        unplanned = [i for i, p in pending if p.fits and p.peak is None]
        if unsure:
            self._ask("fits", indices=unsure, limit_seconds=SLICE_S)
        elif unplanned:
            self._ask("plans", indices=unplanned, limit_seconds=SLICE_S)
        else:
            self.ended = True

    def _ask(self, function: str, **more: Any) -> None:
        self._question = function
        self._answer = self._helper.ask(
            f"{WORK}:{function}", data=self._data, root=str(self.store.root), **more
        )


def _runs(count: int) -> str:
    return f"{count:,} run" + "s" * (count != 1)
