"""Weights and moments of torch's own training, in checkpoints that every method can read.

The files are those of our runtimes (workbench/runtime/checkpoint.py), so a run of a library goes on
under another method, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from baselines.common import named_units
from workbench.model.base import LayeredModel, Whole
from workbench.runtime.checkpoint import KINDS, label_of, reader, write_unit


class AdamW(Protocol):
    """What `baselines.adamw` and its like have."""

    inner: torch.optim.Optimizer

    @staticmethod
    def counted(steps: int, master: Tensor) -> Tensor | int:
        """A number of steps, as the optimizer keeps it beside the moments."""
        ...


class ModuleHolder:
    """Has the fp32 masters of some units, and an optimizer their moments. A `Holder`."""

    def __init__(
        self, model: LayeredModel, masters: Mapping[int, Mapping[str, Tensor]], optimizer: AdamW
    ) -> None:
        """`masters`: unit -> local name -> fp32 weight, which the optimizer updates."""
        self._model, self._masters, self._optimizer = model, masters, optimizer

    @torch.no_grad()
    def write(self, folder: Path) -> dict[str, int]:
        """As `Holder.write`."""
        folder.mkdir(parents=True)
        return self._write(folder) | self._write_empty(folder)

    @torch.no_grad()
    def restore(self, folder: Path) -> None:
        """As `Holder.restore`."""
        for unit in self._masters:
            with reader(folder, unit) as read:
                for label, tensor in self._tensors(unit):
                    read(label, tensor)

    def set_steps(self, steps: int) -> None:
        """How many updates the moments have seen."""
        for masters in self._masters.values():
            for master in masters.values():
                state = self._optimizer.inner.state[master]
                state["step"] = self._optimizer.counted(steps, master)

    def _write(self, folder: Path) -> dict[str, int]:
        return dict(write_unit(folder, unit, self._tensors(unit)) for unit in self._masters)

    def _write_empty(self, folder: Path) -> dict[str, int]:
        """Files of units that own nothing, and have no masters anywhere."""
        units = range(self._model.num_units)
        empty = (unit for unit in units if not self._model.unit_parameters(unit))
        return dict(write_unit(folder, unit, ()) for unit in empty)

    def _tensors(self, unit: int) -> Iterator[tuple[str, Tensor]]:
        for local, master in self._masters[unit].items():
            for kind in KINDS:
                label = label_of(kind, self._model, unit, local)
                yield label, master if kind == "weight" else self._moment(master, kind)

    def _moment(self, master: Tensor, kind: str) -> Tensor:
        """Made where there was no update yet."""
        state = self._optimizer.inner.state[master]
        if not state:
            state["step"] = self._optimizer.counted(0, master)
        return state.setdefault(kind, torch.zeros_like(master))


class StageHolder(ModuleHolder):
    """Has the units of one rank, of which every rank has some. What the first one writes, all do;
    where one cannot, it is told to all."""

    def write(self, folder: Path) -> dict[str, int]:
        """As `Holder.write`, on the first rank, while the others `follow`."""
        return self._together(folder)

    def follow(self) -> None:
        """Write what this rank has; the first one says where, and what went wrong."""
        try:
            self._together(None)
        except OSError:
            return

    def restore(self, folder: Path) -> None:
        """As `Holder.restore`, on every rank."""
        trouble = None
        try:
            super().restore(folder)
        except (OSError, ValueError) as error:
            trouble = error
        self._agree(trouble)

    @torch.no_grad()
    def _together(self, folder: Path | None) -> dict[str, int]:
        trouble, files = None, {}
        if folder is not None:
            try:
                folder.mkdir(parents=True)
            except OSError as error:
                trouble = error
        told = [None if folder is None else str(folder)]
        dist.broadcast_object_list(told, src=0)
        if trouble is None:
            try:
                files = self._write(Path(told[0]))
                if folder is not None:
                    files |= self._write_empty(folder)
            except (OSError, SafetensorError) as error:
                trouble = OSError(str(error))
        return {name: size for part in self._agree(trouble, files) for name, size in part.items()}

    def _agree(self, trouble: Exception | None, files: dict[str, int] | None = None) -> list[dict]:
        """What all ranks have written. Raises the trouble of any, as its kind."""
        told: list = [None] * dist.get_world_size()
        mine = None if trouble is None else (isinstance(trouble, OSError), str(trouble))
        dist.all_gather_object(told, (mine, files or {}))
        for of_rank, _ in told:
            if of_rank is not None:
                raise (OSError if of_rank[0] else ValueError)(of_rank[1])
        return [part for _, part in told]


def masters_by_unit(whole: Whole, masters: Mapping[Tensor, Tensor]) -> dict[int, dict[str, Tensor]]:
    """unit -> local name -> master, of every parameter once."""
    found: dict[int, dict[str, Tensor]] = {}
    for unit, name, parameter in named_units(whole):
        found.setdefault(unit, {})[name] = masters[parameter]
    return found
