"""History of a run: losses, times and norms of its steps, saved, resumed and evaluated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from workbench.core.record import Evaluation
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.model.draws import Draws
from workbench.model.text import Batches
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.checkpoint import Holder
from workbench.runtime.checkpoint.continues import TEXT, check_continues, decided_by, paths_of
from workbench.runtime.checkpoint.manifest import Manifest, Saved, take_newest
from workbench.training.evaluation import Evaluator


class History:
    """The steps of one run, of this attempt and of those it continues."""

    def __init__(
        self,
        spec: RunSpec,
        folder: Path,
        batches: Batches | Draws,
        form: str = "",
        model: LayeredModel | None = None,
    ) -> None:
        """`folder` is the run's own; `form` that of a library's own files, ours without a name.
        Of a `model` checkpoints tell what is trained."""
        self._spec, self.folder = spec, folder / "checkpoints"
        wanted = spec.save_every or spec.start_from
        self._continues = {**decided_by(spec, model), TEXT: batches.digest} if wanted else {}
        self._continues |= {"form": form} if form else {}
        self.losses: list[float] = []
        self.step_seconds: list[float] = []
        self.grad_norms: list[float | None] = []
        self.skipped: list[int] = []
        self.notes: list[str] = []
        self._unsaved: list[tuple[int, str]] = []
        """Checkpoints that were not written: where the note is, and the reason."""
        self.settings: dict[str, Any] = {}
        """Those of the optimizer that a user's own loop changes."""
        self.evaluations: list[Evaluation] = []
        self._epoch = len(batches) if spec.evaluates else 0
        self.evaluator: Evaluator | None = None
        if spec.evaluates:
            self.evaluator = Evaluator(spec, folder, epoch=self._epoch)
        self.updates_done = 0
        self.statistics: dict[str, Tensor] = {}
        """Running ones, of the checkpoint that the run continues."""

    def ended(
        self,
        step: int,
        loss: float,
        seconds: float,
        norm: float | None,
        *,
        skipped: bool,
        report: Reporter,
    ) -> None:
        """Enter a step, and tell of it."""
        self.losses.append(loss)
        self.step_seconds.append(seconds)
        self.grad_norms.append(norm)
        if skipped:
            self.skipped.append(step)
            report.event("skipped", step=step, grad_norm=str(norm))
        report.step(step, loss, seconds, norm)

    def measured(self) -> dict[str, Any]:
        """Fields of an `Outcome`."""
        return {
            "losses": self.losses,
            "step_seconds": self.step_seconds,
            "skipped_steps": self.skipped,
            "grad_norms": self.grad_norms,
            "evaluations": self.evaluations,
        }

    def saves_at(self, steps: int) -> bool:
        """Whether a checkpoint follows so many steps: also after the last ones."""
        every = self._spec.save_every
        return every > 0 and (steps % every == 0 or steps == self._spec.steps)

    def evaluates_at(self, steps: int) -> bool:
        """Whether an evaluation follows so many steps."""
        return self._spec.evaluates_at(steps, self._epoch)

    def pauses_at(self, steps: int) -> bool:
        """Whether a run stands still after so many steps."""
        return self.saves_at(steps) or self.evaluates_at(steps)

    def pauses(self, first: int) -> list[int]:
        """Steps, after the `first` ones, at which a run stands still, its end among them."""
        total = self._spec.steps
        return [n for n in range(first + 1, total + 1) if n == total or self.pauses_at(n)]

    def pause(
        self,
        next_step: int,
        updates_done: int,
        holder: Holder,
        report: Reporter,
        statistics: dict[str, Tensor] | None = None,
    ) -> None:
        """Evaluate and save, where that is due."""
        if self.evaluates_at(next_step):
            work = partial(self._evaluated, next_step, holder, statistics or {})
            self.evaluate(next_step, work, report)
        if self.saves_at(next_step):
            self.save(next_step, updates_done, holder, report, statistics)

    def evaluate(self, steps: int, work: Callable[[], Evaluation], report: Reporter) -> None:
        """Enter the evaluation that `work` makes. A disk that has no room for weights has not
        harmed the run, which goes on."""
        report.event("evaluating", next_step=steps)
        try:
            found = work()
        except (OSError, SafetensorError) as error:
            self.notes.append(f"no evaluation after {steps} steps: {error}")
            report.event("not_evaluated", next_step=steps, reason=str(error))
        else:
            self.evaluations.append(found)
            report.event("evaluated", **found)
        if (note := self.evaluator.note) and note not in self.notes:
            self.notes.append(note)

    def _evaluated(self, steps: int, holder: Holder, statistics: dict[str, Tensor]) -> Evaluation:
        if weights := holder.weights():
            return self.evaluator.evaluate(weights, statistics, steps)
        folder = self.folder.parent / f".evaluation-{steps}"
        rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            holder.write(folder, checkpoint.WEIGHTS)
            return self.evaluator.evaluate(self.evaluator.in_files(folder), statistics, steps)
        finally:
            rmtree(folder, ignore_errors=True)

    def save(
        self,
        next_step: int,
        updates_done: int,
        holder: Holder,
        report: Reporter,
        statistics: dict[str, Tensor] | None = None,
    ) -> None:
        """A disk that has no room for a checkpoint has not harmed the run, which goes on."""
        manifest = Manifest(
            next_step=next_step,
            updates_done=updates_done,
            losses=self.losses,
            step_seconds=self.step_seconds,
            grad_norms=self.grad_norms,
            skipped=self.skipped,
            evaluations=self.evaluations,
            continues=self._continues,
            settings=self.settings,
        )
        try:
            path = checkpoint.save(self.folder, holder, manifest, statistics, self.notes)
        except OSError as error:
            self._unsaved.append((len(self.notes), str(error)))
            at, first = self._unsaved[0]
            count = len(self._unsaved)
            many = f"{count} checkpoints were not written; the first: {first}"
            self.notes[at : at + 1] = [first if count == 1 else many]
            report.event("not_saved", next_step=next_step, reason=str(error))
        else:
            report.event("saved", path=path.name, next_step=next_step)

    def resume(self, holder: Holder, report: Reporter) -> int:
        """Continue from the newest sound checkpoint in the run's folder, else in that of the run it
        is to start from; returns the first step to do. Those that are damaged are noted.

        Raises ValueError where there are checkpoints of another training, unreadable ones only, or
        none of the run to start from.
        """

        def take(saved: Saved) -> None:
            check_continues(saved, self._continues, self.folder)
            holder.restore(saved)
            self.statistics = checkpoint.statistics(saved)

        saved, notes = take_newest(paths_of(self._spec, self.folder), take, report)
        self.notes += notes
        if saved is None:
            return 0
        manifest = saved.manifest
        self.losses, self.grad_norms = manifest.losses, manifest.grad_norms
        self.evaluations = manifest.evaluations
        # Another run's steps took another method's time.
        self.step_seconds = manifest.step_seconds if saved.path.parent == self.folder else []
        self.skipped, self.updates_done = manifest.skipped, manifest.updates_done
        report.event("resumed", path=saved.path.name, next_step=manifest.next_step)
        return manifest.next_step
