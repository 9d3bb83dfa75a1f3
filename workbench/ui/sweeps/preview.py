"""Before a sweep starts: how many runs, how long, how much memory and disk, and what cannot fit.

The helper process works it out (previewer.py, helper_process.py), a slice at a time, so that the
page fills in while the kernel stays free, and a sweep that is no longer asked about costs one
slice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from workbench.core.bytesize import format_bytes
from workbench.core.readable import format_seconds
from workbench.runs.store import Store
from workbench.ui.helper_process import HelperAnswer, HelperProcess

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


class Preview:
    """Works out what a sweep needs, one sweep at a time. Starts nothing until asked."""

    def __init__(self, store: Store, helper: HelperProcess) -> None:
        self.store = store
        self.points: list[PreviewPoint] = []
        self.text = ""
        """Why there is no preview, in a sentence."""
        self.ended = True
        """Whether nothing more will be said of this sweep."""
        self._helper = helper
        self._data: dict[str, Any] = {}
        self._question, self._answer = "", HelperAnswer()
        self._known = False

    def start(self, data: dict[str, Any]) -> None:
        """Look at this sweep instead of any other. Returns at once."""
        self.start_over()
        self._data, self.ended = data, False
        self._ask("listed")

    def start_over(self, text: str = "") -> None:
        """Look at no sweep; `text` says why."""
        self.points, self._known, self.text, self.ended = [], False, text, True

    def advance(self) -> bool:
        """Take what has been worked out by now, and ask on; returns whether there was anything."""
        if self.ended or not self._answer.done:
            return False
        if self._answer.error:
            self.text, self.ended = self._answer.error, True
        elif self._question == "listed":
            told, self._known = self._answer.value, True
            self.points = [PreviewPoint(run["what"], run["key"], run["state"]) for run in told]
            self._next()
        else:
            for line in self._answer.value:
                point = self.points[line.pop("index")]
                for name, value in line.items():
                    setattr(point, name, value)
            self._next()
        return True

    def stop(self) -> None:
        """Ask no more."""
        self.ended = True

    @property
    def pending(self) -> list[PreviewPoint]:
        """Runs that are to be made."""
        return [point for point in self.points if point.state == "pending"]

    @property
    def cannot(self) -> list[PreviewPoint]:
        """Pending runs that cannot fit."""
        return [point for point in self.pending if point.fits is False]

    @property
    def unplanned(self) -> list[PreviewPoint]:
        """Pending runs that no planner can speak of."""
        return [point for point in self.pending if point.fits is not False and point.why]

    @property
    def peak(self) -> dict[str, tuple[int, str]]:
        """Tier -> bytes at the largest pending run that fits, and which that is."""
        found: dict[str, tuple[int, str]] = {}
        for point in self.pending:
            for tier, most in (point.peak or {}).items() if point.fits is not False else ():
                if most > found.get(tier, (0, ""))[0]:
                    found[tier] = (most, point.what)
        return found

    def sentences(self) -> list[str]:
        """Needs of the sweep, as far as they are known."""
        if not self._known:
            return [self.text or "Looking at the runs ..."] if self.text or not self.ended else []
        states, pending = Counter(point.state for point in self.points), len(self.pending)
        head = f"{_runs(len(self.points))}: {states['done']} finished already, {pending} to run"
        found = [head + (f", {states['failed']} failed before" if states["failed"] else "")]
        if self.text:
            return [*found, f"The planner failed: {self.text}"]
        if pending:
            peak = self.peak
            most = [f"{format_bytes(n)} {tier} ({what})" for tier, (n, what) in peak.items()]
            found += [self._time(), *[f"Memory at the largest: {'; '.join(most)}."] * bool(most)]
            disk = format_bytes(pending * RECORD_BYTES + peak.get("disk", (0, ""))[0])
            found.append(f"Disk: about {disk}, checkpoints apart.")
        if self.cannot:
            found.append(f"{_runs(len(self.cannot))} cannot fit, by the planner:")
        if self.unplanned:
            found.append(f"{_runs(len(self.unplanned))} cannot be planned before they run.")
        return found if self.ended else [*found, "Still planning ..."]

    @property
    def why_not(self) -> str:
        """Why it means nothing to start this sweep: none of its runs can fit; else empty."""
        pending, cannot = self.pending, self.cannot
        if not cannot or len(cannot) < len(pending):
            return ""
        which = f"none of the {len(pending)} runs can" if len(pending) > 1 else "the run cannot"
        first = cannot[0]
        return f"{which} fit this machine, by the planner: {first.what}: {first.why}"

    def _time(self) -> str:
        left = [point for point in self.pending if point.fits is not False]
        timed = [point for point in left if point.seconds is not None]
        if timed:
            untimed = len(left) - len(timed)
            more = f", and {_runs(untimed)} of unknown time" if untimed else ""
            hows = {point.how for point in left}
            told = " and ".join(words for how, words in HOWS.items() if how in hows)
            seconds = format_seconds(sum(point.seconds for point in timed))
            return f"Time: about {seconds}{told and ', ' + told}{more}."
        if not self.ended:
            return "Time: not known yet."
        return (
            "Time: unknown, for neither runs like these nor this machine have been measured here: "
            '"Examine this machine" does, or workbench plan --measure.'
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
