"""Weights of stages that update by themselves, each as it is after one and the same step.

Stages of an asynchronous pipeline never stand still together, and to let the pipeline drain would
change what is stale. So each stage writes its weights when it has made the update of a step that is
to be evaluated; the one that evaluates finds when all have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from shutil import rmtree

from safetensors.torch import save_file
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.runtime.checkpoint.checkpoint import file_of
from workbench.runtime.checkpoint.manifest import step_name
from workbench.runtime.passes.statistics import clones, merged
from workbench.runtime.updates.optimizer_state import Parameters
from workbench.runtime.updates.stage_states import write_own

STATISTICS = "norms"
"""Sorts before the units' files."""


class Snapshots:
    """Files of the weights of all stages, in a folder that their processes share."""

    def __init__(self, folder: Path, model: LayeredModel) -> None:
        """`folder` is the run's own."""
        self._folder = folder / "snapshots"
        self._units = [unit for unit in range(model.num_units) if model.shapes(unit)]

    def put(self, steps: int, parameters: Parameters, statistics: Mapping[str, Tensor]) -> None:
        """Write the weights that a stage owns, and BatchNorm's running statistics there, after so
        many steps. Raises OSError if the disk refuses."""
        target = self._folder / step_name(steps)
        part = target / f".{token_hex(4)}"
        part.mkdir(parents=True)
        if statistics:
            save_file(clones(statistics), part / f"{STATISTICS}-{min(parameters)}")
        write_own(part, parameters)
        for path in sorted(part.iterdir()):  # whoever looks finds whole files, statistics first
            path.rename(target / path.name)
        part.rmdir()

    def ready(self) -> Iterator[tuple[int, Callable[..., None], dict[str, Tensor]]]:
        """Steps after which all stages have written, each with what moves the files, as
        `Holder.write`, and with statistics; they are gone afterwards."""
        for target in sorted(self._folder.glob("step-*")):
            if all((target / file_of(unit)).exists() for unit in self._units):
                move = partial(self._move, target)
                yield int(target.name[5:]), move, merged(sorted(target.glob(f"{STATISTICS}-*")))
                rmtree(target, ignore_errors=True)

    def clear(self) -> None:
        """Remove files that nobody has taken, such as an attempt before left."""
        rmtree(self._folder, ignore_errors=True)

    def _move(self, target: Path, to: Path, kinds: Sequence[str]) -> None:
        for unit in self._units:
            (target / file_of(unit)).rename(to / file_of(unit))
