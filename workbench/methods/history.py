"""What a run has done so far: losses, times and norms of its steps, saved and taken up again.

A checkpoint continues under any method, window, tier or number of ranks, and under no other model,
data, batch or clipping.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from workbench.model.draws import Draws
from workbench.model.text import Batches
from workbench.runs.report import Reporter
from workbench.runs.spec import RunSpec
from workbench.runtime import checkpoint
from workbench.runtime.checkpoint import Holder

TEXT = "text of SHA-256"


class History:
    """The steps of one run, of this attempt and of those it continues."""

    def __init__(self, spec: RunSpec, folder: Path, batches: Batches | Draws) -> None:
        """`folder` is the run's own."""
        self._spec, self._folder = spec, folder / "checkpoints"
        wanted = spec.save_every or spec.start_from
        self._continues = continued_by(spec, batches) if wanted else {}
        self.losses: list[float] = []
        self.step_seconds: list[float] = []
        self.grad_norms: list[float | None] = []
        self.skipped: list[int] = []
        self.notes: list[str] = []
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
        report.step(step, loss, seconds)

    def save(
        self,
        next_step: int,
        updates_done: int,
        holder: Holder,
        report: Reporter,
        statistics: dict[str, Tensor] | None = None,
    ) -> None:
        """A disk that has no room for a checkpoint has not harmed the run, which goes on."""
        manifest = {
            "next_step": next_step,
            "updates_done": updates_done,
            "losses": [repr(loss) for loss in self.losses],
            "step_seconds": self.step_seconds,
            "grad_norms": [repr(norm) for norm in self.grad_norms],
            "skipped": self.skipped,
            "continues": self._continues,
        }
        try:
            path = checkpoint.save(self._folder, holder, manifest, statistics)
        except OSError as error:
            self.notes.append(str(error))
            report.event("not_saved", next_step=next_step, reason=str(error))
        else:
            report.event("saved", path=path.name, next_step=next_step)

    def resume(self, holder: Holder, report: Reporter) -> int:
        """Continue from the newest checkpoint in the run's folder, else in that of the run it is to
        start from; returns the first step to do.

        Raises ValueError where there are checkpoints of another training, unreadable ones only, or
        none of the run to start from.
        """
        damage = None
        for path, manifest in _whole(self._spec, self._folder):
            own = path.parent == self._folder
            _check_continues(path, manifest["continues"], self._continues, own=own)
            try:
                holder.restore(path)
                self.statistics = checkpoint.statistics(path)
            except OSError as error:
                damage, damaged = error, path.parent
                report.event("damaged", path=path.name, reason=str(error))
                continue
            self.losses = [float(loss) for loss in manifest["losses"]]
            # Another run's steps took another method's time.
            self.step_seconds = list(manifest["step_seconds"]) if own else []
            self.grad_norms = [None if n == "None" else float(n) for n in manifest["grad_norms"]]
            self.skipped = list(manifest["skipped"])
            self.updates_done = manifest["updates_done"]
            report.event("resumed", path=path.name, next_step=manifest["next_step"])
            return manifest["next_step"]
        if damage is not None:  # memory is half written by now; and nobody asked to begin anew
            raise ValueError(f"{damage}; remove {damaged} to begin anew") from damage
        _check_start(self._spec, self._folder)
        return 0


def check_start(spec: RunSpec, folder: Path) -> None:
    """Raise ValueError, before anything is measured, where there is no checkpoint of the run to
    start from, or the newest is of another training, as far as that shows without the text.
    `folder` is the run's own, as for `History`."""
    own = folder / "checkpoints"
    _check_start(spec, own)
    for path, manifest in _whole(spec, own):
        _check_continues(path, manifest["continues"], decided_by(spec), own=path.parent == own)
        return


def _check_start(spec: RunSpec, folder: Path) -> None:
    if not spec.start_from or any(_whole(spec, folder)):
        return
    source = _source(spec, folder)
    if not source.parent.is_dir():
        raise ValueError(
            f"start_from is {spec.start_from!r}; there is no such folder, and no run of that key "
            f"in {folder.parents[1]}"
        )
    sound = {path for path, _ in checkpoint.whole(source)}
    damaged = sorted(path.name for path in {*source.glob("step-*")} - sound)
    raise ValueError(
        f"start_from is {spec.start_from!r}; there is no whole checkpoint of at most "
        f"{spec.steps} steps in {source}" + (f"; damaged: {', '.join(damaged)}" if damaged else "")
    )


def _check_continues(path: Path, saved: dict, ours: dict, *, own: bool) -> None:
    """`own`: it is this run's, and not of the one that it starts from."""
    for label, here in ours.items():
        there = saved.get(label)
        if there == here:
            continue
        if isinstance(here, dict) and isinstance(there, dict):
            label = next(name for name in here if here[name] != there.get(name))
            here, there = here[label], there.get(label)
        restore = "train on that text" if label == TEXT else f"set {label} to {there}"
        raise ValueError(
            f"the checkpoint {path} was made with {label} {there}, this run has {here}: it would "
            f"not be the same training; {restore}, or "
            + ("remove the checkpoint" if own else "begin without start_from")
        )


def _source(spec: RunSpec, folder: Path) -> Path:
    """Checkpoints of the run to start from: of a folder, or of a key beside this run's."""
    named = Path(spec.start_from)
    run = named if named.is_dir() else folder.parents[1] / spec.start_from
    return run / "checkpoints"


def _whole(spec: RunSpec, folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Checkpoints of no more steps than a run has, its own first, newest first."""
    folders = [folder] if spec.save_every else []
    folders += [_source(spec, folder)] if spec.start_from else []
    for each in folders:
        for path, manifest in checkpoint.whole(each):
            if manifest["next_step"] <= spec.steps:
                yield path, manifest


def continued_by(spec: RunSpec, batches: Batches | Draws) -> dict[str, Any]:
    """What a run must share with a checkpoint to continue it: all that decides losses, and nothing
    of placement, method or number of steps.
    """
    return {**decided_by(spec), TEXT: batches.digest}


def decided_by(spec: RunSpec) -> dict[str, Any]:
    """The same without the text."""
    fields = spec.to_dict()
    decides = (
        "model", "batch", "seed", "dtype", "clip", "lr", "lr_schedule", "warmup_steps",
        "weight_decay", "beta1", "beta2", "eps",
    )  # fmt: skip
    shared = {name: fields[name] for name in decides}
    if spec.lr_schedule != "constant":
        shared |= {"min_lr": spec.min_lr, "lr_decay_steps": spec.lr_decay_steps or spec.steps}
    return shared
