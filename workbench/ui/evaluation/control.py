"""The evaluation of the claims, one after the other: a controller that knows no widgets.

Each claim is an exhibit at a size. Its runs have a process of their own, as a sweep named after the
exhibit (runs/campaign.py); planning and drawing happen in another (helper_process.py). So nothing
here takes time, whatever runs may be watched from several pages, and nothing that has been measured
is run again or deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.core.readable import format_seconds
from workbench.exhibits import EXHIBITS, find
from workbench.runs.campaign import LIVE, Campaign, Status
from workbench.runs.log_tail import last_lines
from workbench.runs.progress import FINISHED
from workbench.runs.store import REPOSITORY_RESULTS, Store
from workbench.ui.helper_process import HelperAnswer, HelperProcess
from workbench.ui.sweeps.html import counted, word_of
from workbench.ui.tires import TIRES

WORK = "workbench.ui.evaluation.work"


@dataclass
class Claim:
    """One exhibit under evaluation."""

    figure: str
    campaign: Campaign
    about: HelperAnswer
    """As `work.claim` tells."""
    preview: HelperAnswer | None = None
    shown: HelperAnswer | None = None
    """As `work.show` tells, of the last drawing that was asked for."""
    status: Status = field(default_factory=Status)
    stale: bool = True
    """Whether points have arrived since the last drawing was asked for."""

    @property
    def name(self) -> str:
        """Name of the exhibit: ``fig8a``."""
        return find(self.figure).name

    @property
    def headline(self) -> str:
        """Paper, number in it and subject, as above its figure."""
        return find(self.figure).headline

    @property
    def live(self) -> bool:
        """Whether a process runs its runs."""
        return self.status.state in LIVE


class Evaluation:
    """All claims at one size, in one results folder."""

    def __init__(self, size: str = "smoke", results: str | Path = REPOSITORY_RESULTS) -> None:
        """Starts nothing but the helper process. Raises ValueError for an unknown size."""
        self.size = find(next(iter(EXHIBITS))).sized(size).name
        self.store = Store(results)
        self.helper = HelperProcess()
        self.claims = [
            Claim(
                figure=figure,
                campaign=Campaign(self.store, f"{find(figure).name}-{size}"),
                about=self._ask("claim", figure=figure, size=self.size),
            )
            for figure in EXHIBITS
        ]
        self.tires = Campaign(self.store, TIRES["name"])
        self._compared: HelperAnswer | None = None
        self.doctor: HelperAnswer | None = None
        self.report: HelperAnswer | None = None

    def claim(self, figure: str) -> Claim:
        """The claim of an exhibit, ``8a`` or ``fig8a``; raises ValueError naming the known ones."""
        for claim in self.claims:
            if figure in (claim.figure, claim.name):
                return claim
        known = ", ".join(claim.name for claim in self.claims)
        raise ValueError(f"unknown exhibit {figure!r}; known: {known}")

    # -- kick the tires -------------------------------------------------------------------------

    def examine(self) -> HelperAnswer:
        """Have the doctor look at this machine; the first time takes about half a minute."""
        self.doctor = self._ask("doctor")
        return self.doctor

    def kick(self) -> None:
        """Start the one-minute run. Raises ValueError and StoreError as a campaign does."""
        Campaign.create(self.store, TIRES, replace=not self.tires.alive)
        self.tires.start()

    def kicked(self) -> str:
        """Result of the comparison, in a sentence; empty while there is none."""
        status = self.tires.status()
        if status.state != "done":
            self._compared = None
        if status.state in LIVE:
            return f"running: {counted(status.counts)}"
        if status.state == "failed":
            return f"it could not run: {status.text}"
        if status.state != "done":
            return status.text
        if self._compared is None:
            where = {"results": str(self.store.root)}
            self._compared = self.helper.ask("workbench.ui.tires:compare", **where)
        if not self._compared.done:
            return "done; comparing the losses ..."
        return self._compared.error or self._compared.value

    # -- a claim --------------------------------------------------------------------------------

    def look(self, claim: Claim) -> None:
        """Ask what would run, and for the figure of what there is, unless an earlier drawing is
        still under way."""
        if claim.shown is None or claim.shown.done:
            of = {"figure": claim.figure, "size": self.size}
            claim.preview, claim.shown = self._ask("preview", **of), self._ask("show", **of)
            claim.stale = False

    def start(self, claim: Claim, *, detached: bool = False) -> None:
        """Run what has no record yet. Raises ValueError and StoreError as a campaign does."""
        data = {"name": claim.campaign.name, "exhibit": claim.figure, "size": self.size}
        Campaign.create(self.store, data)
        claim.campaign.start(detached=detached)

    def busy(self, claim: Claim) -> list[str]:
        """Keys of the runs of a claim that the machine was too busy for, as of the last drawing."""
        shown = claim.shown.value if claim.shown is not None and claim.shown.done else None
        return shown["busy"] if shown else []

    def repeat(self, claim: Claim, *, detached: bool = False) -> None:
        """Make the runs again that the machine was too busy for; their records are put aside.
        Raises as `start` does."""
        for key in self.busy(claim):
            self.store.put_aside(key)
        self.start(claim, detached=detached)
        claim.stale = True

    def poll(self) -> Iterator[Claim]:
        """Look at what runs; yields the claims of which something is new. Cheap."""
        for claim in self.claims:
            before, claim.status = claim.status, claim.campaign.status()
            claim.stale |= claim.status.counts != before.counts
            if claim.status != before:
                yield claim

    def counts(self, claim: Claim) -> dict[str, int]:
        """Runs by state, for all that is told of a claim: what its process says while it runs, else
        what the results folder has."""
        preview = claim.preview.value if claim.preview is not None and claim.preview.done else None
        if claim.live or not preview or "state" not in preview[0]:  # or it has machines for runs
            return claim.status.counts
        states = [row["state"] for row in preview[:-1]]
        done = sum(state.startswith(FINISHED) for state in states)
        failed = min(claim.status.counts.get("failed", 0), len(states) - done)
        return {"done": done, "failed": failed, "pending": len(states) - done - failed}

    def words(self, claim: Claim) -> str:
        """State of a claim's runs, in a sentence."""
        status, found = claim.status, counted(self.counts(claim))
        if status.state == "new":
            return "; ".join(filter(None, [found, "nothing of it was started from here yet"]))
        parts = [word_of(status.state), found]
        for run in status.running:
            loss = f", loss {run['loss']:.4f}" if run.get("loss") is not None else ""
            parts.append(f"step {run['step']} of {run['steps']}{loss} on {run['where']}")
        if status.seconds_left:
            parts.append(f"about {format_seconds(status.seconds_left)} left")
        return "; ".join(part for part in [*parts, status.text] if part)

    def log(self, claim: Claim) -> str:
        """The last lines of the log of what runs, as text without control characters."""
        folders = [self.store.folder(str(run["key"])) for run in claim.status.running[:1]]
        return "\n".join(line for each in folders for line in last_lines(each / "log.txt"))

    # -- all of them ----------------------------------------------------------------------------

    def write_report(self) -> HelperAnswer:
        """Have the offline HTML report written; the answer is where it lies."""
        self.report = self._ask("report", size=self.size)
        return self.report

    def close(self) -> None:
        """End the helper process. What runs goes on, or ends with the kernel."""
        self.helper.close()

    def _ask(self, function: str, **arguments: Any) -> HelperAnswer:
        return self.helper.ask(f"{WORK}:{function}", results=str(self.store.root), **arguments)
