"""Weights and moments of torch's own training, in checkpoints that every method can read.

The files are those of our runtimes (runtime/checkpoint/checkpoint.py), so a run of a library goes
on under another method, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from baselines.common import named_units
from workbench.model.base import LayeredModel
from workbench.model.whole import Whole
from workbench.runtime.checkpoint.checkpoint import (
    KINDS,
    ByUnit,
    in_memory,
    label_of,
    reader,
    write_unit,
)
from workbench.runtime.checkpoint.manifest import Saved
from workbench.runtime.checkpoint.together import Together


class AdamW(Protocol):
    """Interface of `baselines.adamw` and optimizers like it."""

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

    def save(self, save: Callable[[], None]) -> None:
        """Call `save`, which asks for `write`."""
        save()

    def weights(self) -> ByUnit:
        """As `Holder.weights`."""
        return in_memory({
            self._model.state_name(unit, local): master
            for unit, masters in self._masters.items()
            for local, master in masters.items()
        })  # fmt: skip

    @torch.no_grad()
    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """As `Holder.write`."""
        for unit in self._masters:
            write_unit(folder, unit, self._tensors(unit, kinds))

    @torch.no_grad()
    def restore(self, saved: Saved) -> None:
        """As `Holder.restore`."""
        for unit in self._masters:
            with reader(saved, unit) as read:
                self._read(unit, read)
        for masters in self._masters.values():  # how many updates the moments have seen
            for master in masters.values():
                counted = self._optimizer.counted(saved.manifest.updates_done, master)
                self._optimizer.inner.state[master]["step"] = counted

    def _read(self, unit: int, read: Callable[[str, Tensor], None]) -> None:
        for label, tensor in self._tensors(unit):
            read(label, tensor)

    def _tensors(self, unit: int, kinds: Sequence[str] = KINDS) -> Iterator[tuple[str, Tensor]]:
        for local, master in self._masters[unit].items():
            for kind in kinds:
                label = label_of(kind, self._model, unit, local)
                yield label, master if kind == "weight" else self._moment(master, kind)

    def _moment(self, master: Tensor, kind: str) -> Tensor:
        """Made where there was no update yet."""
        state = self._optimizer.inner.state[master]
        if not state:
            state["step"] = self._optimizer.counted(0, master)
        return state.setdefault(kind, torch.zeros_like(master))


class StageHolder(Together, ModuleHolder):
    """Has the units of one rank, of which every rank has some."""


def masters_by_unit(whole: Whole, masters: Mapping[Tensor, Tensor]) -> dict[int, dict[str, Tensor]]:
    """unit -> local name -> master, of every parameter once."""
    found: dict[int, dict[str, Tensor]] = {}
    for unit, name, parameter in named_units(whole):
        found.setdefault(unit, {})[name] = masters[parameter]
    return found
