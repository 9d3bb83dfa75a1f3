"""Weights of stages that update by themselves, each as it is after one and the same step.

Stages of an asynchronous pipeline never stand still together, and to let the pipeline drain would
change what is stale. So each stage writes its weights when it has made the update of a step that is
to be evaluated; the process that evaluates finds when all have.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from secrets import token_hex
from shutil import rmtree

from safetensors.torch import save_file

from workbench.core.reporter import Reporter
from workbench.model.base import LayeredModel
from workbench.runtime.checkpoint.checkpoint import file_of, in_files
from workbench.runtime.checkpoint.manifest import step_name
from workbench.runtime.passes.statistics import ReplicaStatistics, clones, merged
from workbench.runtime.passes.unit_stage import UnitStage
from workbench.runtime.updates.stage_states import write_own
from workbench.training.history import History

STATISTICS = "norms"
"""Sorts before the units' files."""


class Snapshots:
    """Files of the weights of all stages, in a folder that their processes share."""

    def __init__(self, folder: Path, model: LayeredModel) -> None:
        """`folder` is the run's own."""
        self._folder, self._model = folder / "snapshots", model
        self._units = [unit for unit in range(model.num_units) if model.shapes(unit)]

    def put(self, steps: int, stages: Iterable[UnitStage]) -> None:
        """Write the weights that stages own, and BatchNorm's running statistics there, after so
        many steps. Raises OSError if the disk refuses."""
        for own in stages:
            target = self._folder / step_name(steps)
            part = target / f".{token_hex(4)}"
            part.mkdir(parents=True)
            norms = ReplicaStatistics(self._model, own.modules.items(), (0, 1), None).named
            if norms:
                save_file(clones(norms), part / f"{STATISTICS}-{own.units.start}")
            write_own(part, own.parameters)
            for path in sorted(part.iterdir()):  # whoever looks finds whole files, statistics first
                path.rename(target / path.name)
            part.rmdir()

    def evaluate(self, history: History, report: Reporter) -> bool:
        """Evaluate the weights that all stages have written by now; whether there were any."""
        ready = [
            target
            for target in sorted(self._folder.glob("step-*"))
            if all((target / file_of(unit)).exists() for unit in self._units)
        ]
        for target in ready:
            statistics = merged(sorted(target.glob(f"{STATISTICS}-*")))
            steps, weights = int(target.name[5:]), in_files(self._model, target)
            work = partial(history.evaluator.evaluate, weights, statistics, steps, idle=False)
            history.evaluate(steps, work, report)
            rmtree(target, ignore_errors=True)
        return bool(ready)

    def clear(self) -> None:
        """Remove files that nobody has taken, such as an attempt before left."""
        rmtree(self._folder, ignore_errors=True)
