"""Steps that a user's own loop asks for, instead of a run.

A row of the table of methods that can do so names a maker (`Method.driven`) of a `Driven`. For
methods that are planners on one device of this runtime that is `planned`: it measures the layers of
the user's module on the first batch, plans, and trains under the plan, a step at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from workbench.core import methods
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.methods.history import History
from workbench.methods.train import Training, resolve_device
from workbench.model.modules import Decomposed
from workbench.model.objective import Handed
from workbench.profile.kinds import kind_costs
from workbench.profile.profile import Profile
from workbench.profile.store import hardware
from workbench.runtime.checkpoint import Holder
from workbench.runtime.storage import DTYPES


class Driven(Protocol):
    """A training of which one process has all."""

    history: History
    holder: Holder
    done: int
    """Updates made."""

    def advance(self, first: int) -> None:
        """One step, whose number is given, on the samples that were handed over."""

    def parameters(self) -> dict[str, Tensor]:
        """fp32 weights by their names in the whole model."""

    def statistics(self) -> Mapping[str, Tensor]:
        """BatchNorm's running statistics by their names in the whole model."""

    def restored(self) -> None:
        """Go on where the history stands, whose checkpoint the holder has taken up."""

    def close(self) -> None:
        """Give all memory back."""


class OutsideRate(RunSpec):
    """A spec whose learning rate the user's loop sets."""

    __slots__ = ("group",)

    @classmethod
    def of_group(cls, group: Mapping[str, Any], **fields: Any) -> OutsideRate:
        """`group` of a torch optimizer: its rate is read when a step begins."""
        spec = cls(**fields)
        object.__setattr__(spec, "group", group)
        return spec

    def learning_rate(self, step: int) -> float:
        return float(self.group["lr"])


def planned(spec: RunSpec, model: Decomposed, batches: Handed, results: Path, folder: Path) -> Any:
    """A `Driven` under the plan of the spec's method. Raises DoesNotFit, and ValueError for what
    cannot be trained so."""
    *inputs, targets = batches.rows(range(spec.microbatch))
    device = resolve_device(spec.device).type
    how = {"seq": spec.model.seq, "dtype": DTYPES[spec.dtype], "device": device}
    costs, library_bytes = kind_costs(model, tuple(inputs), targets, **how)
    units = [costs[model.kind(unit)] for unit in range(model.num_units)]
    for end in (0, model.head):  # whose gradients are made beside those of the micro-batches before
        fresh = units[end].parameters * VALUE_BYTES[spec.dtype]
        more = units[end].backward_scratch_bytes + fresh
        units[end] = replace(units[end], backward_scratch_bytes=more)
    profile = Profile(
        hardware=hardware(results, device),
        units=tuple(units),
        microbatch=spec.microbatch,
        seq=spec.model.seq,
        weight_bytes=VALUE_BYTES[spec.dtype],
        library_bytes=library_bytes,
    )
    plan = methods.load(spec.method).plan(spec, profile)
    return Training(spec, plan, folder, given=(model, batches))
