"""Trainings whose libraries are imported when a run begins: planners answer without them."""

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

Read = Callable[["Saved", "LayeredModel"], "Weights"]


def training_in(module: str) -> Train:
    """The `train` of a module that imports torch."""

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        return import_module(module).train(spec, report, folder)

    return train


def by_deepspeed(adapter: Callable[[RunSpec, Path], Adapter], work: str) -> tuple[Train, Training]:
    """`train` of a method by DeepSpeed, and in the process of one of several ranks its `training`.
    `work` names the module that has both; empty where the method is one of a single rank."""

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        chosen = adapter(spec, folder)
        from baselines import zero

        return zero.train(spec, report, folder, chosen, work=work)

    def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
        from baselines import zero

        return zero.training(spec, report, folder, adapter(spec, folder))

    return train, training


def reading_in(module: str) -> Read:
    """The `weights_of` of a module that imports torch."""

    def weights_of(saved: Saved, model: LayeredModel) -> Weights:
        return import_module(module).weights_of(saved, model)

    return weights_of


weights_of = reading_in("baselines.zero_reading")
"""Weights of a checkpoint that ZeRO has written."""
