"""Checkpoints of a pipeline: any number of stages and replicas goes on from what another saved.

Files are by slice of the module, tensors by their names in it (distributed_checkpoint.py), beside
them the optimizer's state, the loss scale, and whatever the script gave to `keep`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from workbench.runtime.checkpoint.continues import PIPELINE, OtherTraining, check_continues
from workbench.runtime.checkpoint.distributed_checkpoint import Saving, load_newest, save
from workbench.runtime.checkpoint.manifest import Manifest, Saved, belongs, steps_in
from workbench.runtime.checkpoint.state_json import decoded, encoded
from workbench.runtime.passes.statistics import ReplicaStatistics
from workbench.runtime.transport.groups import as_one, new_group
from workbench.runtime.updates.optimizer_state import (
    Parameters,
    optimizer_tensors,
    restore_optimizer,
    weights,
)
from workbench.runtime.updates.step_end import Ended, LossScale

PATIENCE = timedelta(minutes=5)
"""How long a process that writes is waited for."""


class Stateful(Protocol):
    """Whatever a script keeps in checkpoints."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


@dataclass
class Progress:
    """What was measured of each step so far."""

    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    grad_norms: list[float | None] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)

    def add(self, ended: Ended, seconds: float) -> None:
        """A step that has ended."""
        if ended.overflow:
            self.skipped.append(len(self.losses))
        self.losses.append(ended.loss)
        self.grad_norms.append(ended.norm)
        self.step_seconds.append(seconds)


class Checkpoints:
    """Saves and loads one process's part."""

    def __init__(
        self, held: Parameters, owned: Parameters, statistics: ReplicaStatistics,
        continues: dict[str, Any], scale: LossScale, *,
        first: bool, job_id: str = "", began: int | None = None,
    ) -> None:  # fmt: skip
        """`held`: slice that owns a parameter -> name -> parameter of this stage; `owned` are those
        whose slices are this stage's. `statistics` are BatchNorm's, which of each stage's processes
        the `first` one saves. `continues` must be equal in a run that goes on.
        `job_id` is that of a launcher's job, and `began` the step that it went on from first, None
        before a step was done. Every process of the world makes it."""
        self._held, self._owned, self._statistics = held, owned, statistics
        self._continues, self._scale, self._first = continues, scale, first
        self._job, self._began = job_id, began
        self._group = new_group(backend="gloo", patience=PATIENCE)
        self._kept: list[Stateful] = []
        self._saving: Saving | None = None
        self._goes_on = False
        self.training: dict[str, Any] = {}
        """Further fields that decide losses, where a user's own loop gives them (continues.py)."""
        self.settings: dict[str, Any] = {}
        """Those of the optimizer that a loop changes, where it has another one than this."""
        self.progress = Progress()
        self.optimizers: Sequence[torch.optim.Optimizer] = ()
        """Of all parameters; stages that update by themselves have several."""

    @property
    def rate(self) -> float:
        """The learning rate now, of the first group; 0 without an optimizer."""
        return float(self.optimizers[0].param_groups[0]["lr"]) if self.optimizers else 0.0

    def keep(self, *stateful: Stateful) -> None:
        """Have checkpoints hold their states, in this order."""
        for each in stateful:
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise ValueError(
                    f"{type(each).__name__} cannot be kept: it lacks state_dict or load_state_dict"
                )
        self._kept += stateful

    def save(self, folder: Path, may_commit: Callable[[int], bool] = lambda step: True) -> Saving:
        """Begin to write ``folder/step-N``; the one before is waited for."""
        if not self.optimizers:
            raise ValueError("a checkpoint holds the optimizer's state; call set_optimizer first")
        if self._saving is not None:
            self._saving.wait()
        else:
            as_one(partial(self._check_new, folder), self._group)
        units, numbers = optimizer_tensors(self.optimizers, self._owned)
        done, steps = self.progress, len(self.progress.losses)
        manifest = Manifest(
            next_step=steps, updates_done=steps - len(done.skipped), **asdict(done),
            continues=self.training
            | self._continues
            | ({"job": self._job} if self._job else {}),
            settings=self.settings,
        )  # fmt: skip
        kept = [encoded(one.state_dict(), type(one).__name__) for one in self._kept]
        self._saving = save(
            folder, units, manifest, numbers=numbers, group=self._group, may_commit=may_commit,
            statistics=self._statistics.named if self._first else None,
            data={"scale": asdict(self._scale), "kept": kept},
        )  # fmt: skip
        return self._saving

    def load(self, folder: Path, spare: Path | None = None, step: int | None = None) -> int | None:
        """Take up the newest whole checkpoint of a folder or a spare one, or the one of a given
        `step`; returns its step, None where there is none. A job that goes on takes its own
        alone, or the one that it began from. Raises ValueError for one of another module or batch,
        or with other things kept, and Damaged where all are."""
        if not self.optimizers:
            raise ValueError("a checkpoint holds the optimizer's state; call set_optimizer first")

        def takes(path: Path, found: int) -> bool:
            return step in (None, found) and self._takes(path, found)

        how = {"check": self._check, "spare": spare, "takes": takes}
        loaded, _ = load_newest(folder, weights(self._held), self._group, **how)
        if loaded is None:
            return None
        manifest = loaded.saved.manifest
        kept = loaded.data.get("kept", [])
        if len(kept) != len(self._kept):
            raise ValueError(
                f"the checkpoint {loaded.saved.path} keeps {len(kept)} states; the script "
                f"has given {len(self._kept)} to keep"
            )
        for optimizer in self.optimizers:
            restore_optimizer(optimizer, self._held, loaded)
        self._statistics.take_up(loaded.statistics)
        for one, state in zip(self._kept, kept, strict=True):
            one.load_state_dict(decoded(state))
        for name, value in loaded.data.get("scale", {}).items():
            setattr(self._scale, name, value)
        known = {name: getattr(manifest, name) for name in vars(self.progress)}
        self.progress, self._goes_on = Progress(**known), True
        return manifest.next_step

    def _check_new(self, folder: Path) -> None:
        """Raise ValueError where a later checkpoint would be taken for one of this training."""
        steps = len(self.progress.losses)
        newer = [path for path, step in steps_in(folder).items() if step > steps]
        newer = [path for path in newer if not (self._goes_on and self._takes(path))]
        if newer:
            raise ValueError(
                f"{newer[0]} is of another training, and this one is at step {steps}; give an "
                "empty folder, or call load_checkpoint first"
            )

    def _takes(self, path: Path, step: int | None = None) -> bool:
        """Whether to look at a checkpoint: at one that is too damaged to tell, too."""
        try:
            return belongs(path, step, self._job, self._began)
        except OSError:
            return True

    def _check(self, saved: Saved) -> None:
        """Raise ValueError for a checkpoint of another training."""
        if self.training:
            check_continues(saved, self.training | self._continues, saved.path.parent)
        for name, value in self._continues.items():
            if (there := saved.manifest.continues.get(name)) != value:
                what = f"is of {name} {there!r}; this run has {value!r}"
                if name == PIPELINE:
                    what = "is of another module, of parameters with other names or shapes"
                raise OtherTraining(f"the checkpoint {saved.path} {what}")

    def wait(self) -> None:
        """Until the last saving has ended. Raises what went wrong with it."""
        if self._saving is not None:
            self._saving.wait()


def digest_of(shapes: dict[str, tuple[int, ...]]) -> str:
    """A short hash of a module's parameters: their names and shapes."""
    return hashlib.sha256(repr(sorted(shapes.items())).encode()).hexdigest()[:16]
