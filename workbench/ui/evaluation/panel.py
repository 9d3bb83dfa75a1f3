"""The evaluation as widgets: kick the tires, then one section a claim, then the report.

    EvaluationPanel("smoke").widget

Whatever a button does can be done from code: ``panel.evaluation.start(claim)``, ``.poll()``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ipywidgets as widgets

from workbench.core.mistakes import in_a_sentence
from workbench.runs.store import REPOSITORY_RESULTS
from workbench.ui import html
from workbench.ui.evaluation.control import Claim, Evaluation
from workbench.ui.folds_panel import Folds
from workbench.ui.frame_panel import button, checkbox, framed
from workbench.ui.sweeps.html import KEEP, KEPT, word_of
from workbench.ui.ticker import Ticker

LOOK_S = 0.5
SLOW = "preparing ..."


class ClaimSection:
    """One claim: what it says, what would run, Run and Cancel, progress, figure, verdict."""

    def __init__(self, panel: EvaluationPanel, claim: Claim) -> None:
        self.panel, self.claim = panel, claim
        self.about = widgets.HTML(html.paragraph(SLOW, "soft"))
        self.preview = widgets.HTML()
        evaluation, self.keep = panel.evaluation, checkbox(KEEP, KEPT)
        self.run = self._button(
            "Run",
            f"Start the runs of {claim.name} that have no record yet",
            lambda: evaluation.start(claim, detached=self.keep.value),
        )
        self.cancel = self._button(
            "Cancel", "End the current runs; finished ones stay", claim.campaign.cancel
        )
        self.retry = self._button(
            "Retry failed",
            "Start the failed runs again",
            lambda: claim.campaign.retry(detached=self.keep.value),
        )
        self.repeat = self._button(
            "Repeat busy runs",
            "Make the runs again during which other processes used too much of the machine",
            lambda: evaluation.repeat(claim, detached=self.keep.value),
        )
        self.repeat.disabled = True
        self.progress = widgets.IntProgress(value=0, max=1, description="finished")
        self.state, self.log = widgets.HTML(html.live("")), widgets.HTML()
        self.picture = widgets.HTML()
        self.verdict = widgets.HTML()
        self.judged = ""
        """Verdicts of the claim as it was last drawn, in words."""
        self.controls = widgets.HBox(
            [self.run, self.cancel, self.retry, self.repeat, self.keep],
            layout={"flex_flow": "row wrap"},
        )
        self.widget = widgets.VBox(
            [
                self.about, self.preview, self.controls, self.progress, self.state, self.log,
                self.picture, self.verdict,
            ]
        )  # fmt: skip
        self._show_state()

    def update(self, *, changed: bool) -> None:
        """Show what is new. Cheap where nothing is."""
        claim = self.claim
        if claim.about.is_new():
            self._show_about()
        if claim.preview is not None and claim.preview.is_new():
            error = html.paragraph(claim.preview.error, "bad")
            self.preview.value = error or html.table(
                claim.preview.value, "Runs that will be made here"
            )
            changed = True
        if claim.shown is not None and claim.shown.is_new():
            self._show_figure()
        if changed:
            self._show_state()
        # Not while anything is measured: planning and drawing would make the machine busy.
        if claim.stale and not claim.live and self.panel.opened(self):
            self.panel.evaluation.look(claim)

    def _show_about(self) -> None:
        about = self.claim.about
        if about.error:
            self.about.value = html.paragraph(about.error, "bad")
            return
        told = about.value
        parts = [
            html.paragraph(f"Claim ({told['section']}): {told['claim']}"),
            html.table(told["published"], "Published"),
        ]
        if not told["runs"]:
            words = "Nothing runs for this: committed measurements and simulations, as labelled."
            parts.append(html.paragraph(words, "soft"))
            self.controls.layout.display = self.progress.layout.display = "none"
        self.about.value = "".join(parts)

    def _show_figure(self) -> None:
        shown = self.claim.shown
        if shown.error:
            self.verdict.value = html.paragraph(shown.error, "bad")
            return
        told = shown.value
        self.judged = ", ".join(
            f"{count} {word}" if count > 1 else word
            for word, count in Counter(row["verdict"] for row in told["verdict"]).items()
        )
        self.repeat.disabled = self.claim.live or not told["busy"]
        words = f"{self.claim.name}: {(self.claim.about.value or {}).get('claim', '')}"
        self.picture.value = html.picture(told["png"], words)
        sources = ", ".join(f"{n} {source}" for source, n in told["sources"].items())
        files = ", ".join(told["files"])
        self.verdict.value = "".join(
            [
                html.paragraph(f"Points: {sources}. Saved as {files}.", "soft"),
                html.table(told["verdict"], "Verdict"),
                html.table(told["provenance"], "Where the numbers come from"),
            ]
        )

    @property
    def note(self) -> str:
        """How it stands with the claim, in few words."""
        state = self.claim.status.state
        return "; ".join(filter(None, ["" if state == "new" else word_of(state), self.judged]))

    def _show_state(self) -> None:
        claim, status = self.claim, self.claim.status
        counts = self.panel.evaluation.counts(claim)
        self.preview.layout.display = "none" if claim.live else ""
        self.state.value = html.live(
            self.panel.evaluation.words(claim), "bad" if status.state == "failed" else ""
        )
        self.run.disabled = claim.live
        self.cancel.disabled = not claim.live
        self.retry.disabled = claim.live or not counts.get("failed")
        self.repeat.disabled = claim.live or not self.panel.evaluation.busy(claim)
        self.progress.max = max(1, sum(counts.values()))
        self.progress.value = sum(counts.get(s, 0) for s in ("done", "failed"))
        self.log.value = html.log(self.panel.evaluation.log(claim), f"log of {claim.name}")

    def _button(self, words: str, tooltip: str, act: Callable[[], object]) -> widgets.Button:
        return button(words, tooltip, partial(self._do, act))

    def _do(self, act: Callable[[], object]) -> None:
        """An error is a sentence in the section, and nothing else."""
        try:
            act()
        except (ValueError, OSError) as error:
            self.state.value = html.live(str(error), "bad")
            return
        self.panel.tick()


class EvaluationPanel:
    """All of it. `tick` looks at what runs; a kernel's loop does so by itself."""

    @in_a_sentence()
    def __init__(self, size: str = "smoke", results: str | Path = REPOSITORY_RESULTS) -> None:
        """Raises ValueError for an unknown size."""
        self.evaluation = Evaluation(size, results)
        self.sections = [ClaimSection(self, claim) for claim in self.evaluation.claims]
        self.doctor = button(
            "Examine this machine",
            "Methods that can run here; measures the machine the first time, about half a minute",
            self._examine,
        )
        self.kick = button(
            "One-minute run", "A small model, whole and through a window", self._kick
        )
        self.found, self.kicked = widgets.HTML(html.live("")), widgets.HTML(html.live(""))
        self.report = button(
            "Write the report", "One offline HTML page of all there is at this size", self._report
        )
        self.reported = widgets.HTML(html.live(""))
        self.claims = Folds(
            [section.widget for section in self.sections],
            titles=[section.claim.headline for section in self.sections],
        )
        self.claims.observe(lambda _: self._opened(), "selected_index")
        heading = "<div class='wb'><h2>{}</h2></div>"
        self.widget = framed(
            [
                widgets.HTML(html.STYLE + heading.format("1. Kick the tires")),
                widgets.HBox([self.doctor, self.kick]),
                self.kicked,
                self.found,
                widgets.HTML(heading.format("2. The claims")),
                self.claims,
                widgets.HTML(heading.format("3. The report")),
                self.report,
                self.reported,
            ]
        )
        self.ticker = Ticker(LOOK_S, self.tick)
        self.tick()
        self.ticker.start()

    def opened(self, section: ClaimSection) -> bool:
        """Whether people look at a section: only then is its figure drawn."""
        index = self.claims.selected_index
        return index is not None and self.sections[index] is section

    def tick(self) -> None:
        """Look at what runs, and show what is new."""
        changed = set(map(id, self.evaluation.poll()))
        for section, head in zip(self.sections, self.claims.heads, strict=True):
            section.update(changed=id(section.claim) in changed)
            head.note = section.note
        said = self.evaluation.kicked()
        if said and (text := html.live(said)) != self.kicked.value:
            self.kicked.value = text
        self._tell_doctor()
        self._tell_report()

    def _opened(self) -> None:
        index = self.claims.selected_index
        if index is not None and self.sections[index].claim.preview is None:
            self.evaluation.look(self.sections[index].claim)

    def _examine(self) -> None:
        self.evaluation.examine()
        self.found.value = html.live("examining this machine ...")

    def _tell_doctor(self) -> None:
        answer = self.evaluation.doctor
        if answer is None or not answer.is_new():
            return
        rows = [{**row, "works": "yes" if row["works"] else "no"} for row in answer.value or ()]
        self.found.value = html.live(answer.error, "bad") + html.table(rows, "This machine")
        for section in self.sections:
            if section.claim.preview is not None:  # its times can be told now
                self.evaluation.look(section.claim)

    def _kick(self) -> None:
        try:
            self.evaluation.kick()
        except (ValueError, OSError) as error:
            self.kicked.value = html.live(str(error), "bad")

    def _report(self) -> None:
        self.evaluation.write_report()
        self.reported.value = html.live("writing the report ...")

    def _tell_report(self) -> None:
        answer = self.evaluation.report
        if answer is not None and answer.is_new():
            words = f"the report is {answer.value}; it opens offline in any browser"
            self.reported.value = html.live(answer.error or words, "bad" if answer.error else "")

    def close(self) -> None:
        """Look no more, and end the helper process."""
        self.ticker.stop()
        self.evaluation.close()
