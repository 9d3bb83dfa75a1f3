"""BatchNorm's running statistics, of layers that several ranks run.

They are no parameters: nobody adds them up over the ranks, and no update touches them. Each rank
has those of the layers that it runs backward, which see a micro-batch once (model/keyed.py). Where
every rank runs a layer, on its own micro-batches, plain training would see those of the first rank,
then those of the second, and so on. A running statistic is linear in what it has seen: so each rank
lets its own fade for the micro-batches of the others, all but the first begin at zero, and the sum
over the ranks is what plain training has.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from workbench.model.base import LayeredModel
from workbench.model.keyed import OnceNorm
from workbench.schedule.buffers import keeps
from workbench.schedule.schedule import Schedule

COUNT = "num_batches_tracked"
KINDS = ("running_mean", "running_var", COUNT)


def statistics_file(whose: int | str) -> str:
    """The name of the file of a rank's, or of all, in the folder of a run's ranks."""
    return f"statistics-{whose}.safetensors"


def norms_in(module: nn.Module) -> dict[str, OnceNorm]:
    """Those that have running statistics, by their paths."""
    return {
        path: part
        for path, part in module.named_modules()
        if isinstance(part, OnceNorm) and part.running_mean is not None
    }


def name_of(model: LayeredModel, unit: int, path: str, what: str) -> str:
    """A statistic's name in the whole model's `state_dict`."""
    return model.state_name(unit, f"{path}.{what}" if path else what)


def undivided(model: LayeredModel, units: Iterable[nn.Module]) -> dict[str, Tensor]:
    """The statistics of a model that one process has whole, by their names: they themselves."""
    return {
        name_of(model, unit, path, what): getattr(norm, what)
        for unit, module in enumerate(units)
        for path, norm in norms_in(module).items()
        for what in KINDS
    }


class Statistics:
    """Those of one rank."""

    def __init__(
        self,
        model: LayeredModel,
        schedule: Schedule,
        rank: int,
        modules: Mapping[int, nn.Module],
    ) -> None:
        """`modules`: unit -> the module of its passes that are differentiated on this rank."""
        self._norms: dict[int, dict[str, OnceNorm]] = {}
        for unit, module in modules.items():
            if norms := norms_in(module):
                self._norms[unit] = norms
        self._calls = {
            norm: model.norm_calls(unit, path)
            for unit, norms in self._norms.items()
            for path, norm in norms.items()
        }
        self._names = {
            (unit, path, what): name_of(model, unit, path, what)
            for unit, norms in self._norms.items()
            for path in norms
            for what in KINDS
        }
        passes = [
            (action.unit, action.rank, action.span)
            for action in schedule.actions
            if action.unit in self._norms and keeps(action)
        ]
        self._ahead, self._behind = (
            Counter(unit for unit, other, _ in passes if compare(other, rank))
            for compare in (operator.lt, operator.gt)
        )
        """Unit -> micro-batches of a step that the ranks before this one, or after it, run."""
        mine = [(unit, span) for unit, other, span in passes if other == rank]
        self._first = {unit: min(span for u, span in mine if u == unit) for unit in self._norms}
        self._last = {unit: max(span for u, span in mine if u == unit) for unit in self._norms}
        for unit in self._ahead:
            for norm in self._norms[unit].values():
                if self._calls[norm]:
                    norm.running_mean.zero_()
                    norm.running_var.zero_()

    def begin(self, unit: int, span: tuple[int, int]) -> None:
        """Before a pass that is differentiated: what the ranks before have seen in this step."""
        if unit in self._norms and span == self._first[unit]:
            self._fade(unit, self._ahead[unit])

    def end(self, unit: int, span: tuple[int, int]) -> None:
        """After its backward pass, whose graph holds them: what the ranks behind will see."""
        if unit in self._norms and span == self._last[unit]:
            self._fade(unit, self._behind[unit])

    def _fade(self, unit: int, micro_batches: int) -> None:
        for norm in self._norms[unit].values():
            for _ in range(micro_batches * self._calls[norm]):
                norm.num_batches_tracked.add_(1)
                rate = norm.momentum
                if rate is None:
                    rate = 1.0 / float(norm.num_batches_tracked)
                norm.running_mean.mul_(1.0 - rate)
                norm.running_var.mul_(1.0 - rate)

    def write(self, path: Path) -> None:
        """To a file that `merged` reads; none where there are no statistics."""
        if self._names:
            values = {
                name: self._value(key).cpu().clone()
                for key, name in self._names.items()
                if self._changes(key) or not self._ahead[key[0]]
            }
            save_file(values, path)

    def read(self, path: Path) -> None:
        """Begin with the values of a file: only their number, where another rank has the rest."""
        values = load_file(path)
        for key, name in self._names.items():
            if not (self._changes(key) and self._ahead[key[0]]) or key[-1] == COUNT:
                self._value(key).copy_(values[name])

    def _changes(self, key: tuple[int, str, str]) -> bool:
        unit, path, _ = key
        return self._calls[self._norms[unit][path]] > 0

    def _value(self, key: tuple[int, str, str]) -> Tensor:
        unit, path, what = key
        return getattr(self._norms[unit][path], what)


def merged(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The statistics of the whole model, by their names in its `state_dict`, from the files of all
    ranks."""
    found: dict[str, Tensor] = {}
    for path in paths:
        for name, value in load_file(path).items():
            before = found.get(name, torch.zeros_like(value))
            counts = name.endswith(COUNT)
            found[name] = torch.maximum(before, value) if counts else before + value
    return found
