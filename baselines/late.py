"""Trainings whose libraries are imported when a run begins: planners answer without them, and what
no library could train is refused without them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec

if TYPE_CHECKING:
    from baselines.zero import Adapter
    from workbench.model.base import LayeredModel
    from workbench.model.weights.outgoing import Weights
    from workbench.runtime.checkpoint.manifest import Saved

Train = Callable[[RunSpec, Reporter, Path], Outcome]
Training = Callable[[RunSpec, Reporter, Path], AbstractContextManager[Any]]
Check = Callable[[RunSpec], None]
"""Raises ValueError for what the method cannot train."""

Read = Callable[["Saved", "LayeredModel"], "Weights"]


def refuse_host_activations(
    spec: RunSpec, label: str, does: str = "keeps everything on the devices"
) -> None:
    """Raise ValueError, before anything is started, for activations that would go to the host."""
    if spec.activations == "host":
        raise ValueError(f"{label} {does}; activations cannot be 'host', use 'recompute' or 'keep'")


def training_in(module: str, check: Check) -> Train:
    """The `train` of a module that imports torch, for specs that `check` lets through."""

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        check(spec)
        return import_module(module).train(spec, report, folder)

    return train


def by_deepspeed(
    adapter: Callable[[RunSpec, Path], Adapter], work: str, label: str
) -> tuple[Check, Train, Training]:
    """`check` and `train` of a method by DeepSpeed, whose name is the `label`, and in the process
    of one of several ranks its `training`. `work` names the module that has them; empty where the
    method is one of a single rank."""

    def check(spec: RunSpec) -> None:
        refuse_host_activations(spec, label, "keeps or recomputes activations")
        if spec.save_every and getattr(spec.options, "optimizer_tier", "") == "disk":
            raise ValueError(
                f"{label} cannot save checkpoints while optimizer states are on the disk "
                f"(DeepSpeed refuses the second one); save_every is {spec.save_every}, use 0, or "
                "optimizer_tier 'host'"
            )
        if spec.microbatch % spec.ranks:
            raise ValueError(
                f"{label} gives every rank as many samples: a micro-batch of {spec.microbatch} "
                f"does not divide among {spec.ranks} ranks"
            )

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        check(spec)
        chosen = adapter(spec, folder)
        from baselines import zero

        return zero.train(spec, report, folder, chosen, work=work)

    def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
        from baselines import zero

        return zero.training(spec, report, folder, adapter(spec, folder))

    return check, train, training


def reading_in(module: str) -> Read:
    """The `weights_of` of a module that imports torch."""

    def weights_of(saved: Saved, model: LayeredModel) -> Weights:
        return import_module(module).weights_of(saved, model)

    return weights_of


weights_of = reading_in("baselines.zero_reading")
"""Weights of a checkpoint that ZeRO has written."""
