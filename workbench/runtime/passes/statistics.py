"""BatchNorm's running statistics, of layers that several ranks run.

They are no parameters: nobody adds them up over the ranks, and no update touches them. Each rank
has those of the layers that it runs backward, which see a micro-batch once (model/keyed.py). Where
every rank runs a layer, on its own micro-batches, plain training would see those of the first rank,
then those of the second, and so on; where a module is called in two layers, each has a copy. A
running statistic is linear in what it has seen: so each copy lets its own fade for the calls of the
others, in plain training's order, all but the first begin at zero, and the sum of the copies is
what plain training has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from workbench.model.base import LayeredModel
from workbench.model.keyed import COUNT, STATISTICS, OnceNorm, norms_in, within
from workbench.schedule.buffers import keeps
from workbench.schedule.schedule import Schedule


def statistics_file(whose: int | str) -> str:
    """The name of the file of a rank's, or of all, in the folder of a run's ranks."""
    return f"statistics-{whose}.safetensors"


def name_of(model: LayeredModel, unit: int, path: str, what: str) -> str:
    """A statistic's name in the whole model's `state_dict`."""
    return model.state_name(unit, within(path, what))


def undivided(model: LayeredModel, units: Iterable[nn.Module]) -> dict[str, Tensor]:
    """The statistics of a model that one process has whole, by their names: they themselves."""
    return {
        name_of(model, unit, path, what): getattr(norm, what)
        for unit, module in enumerate(units)
        for path, norm in norms_in(module).items()
        for what in STATISTICS
    }


def take_up(
    model: LayeredModel,
    units: Iterable[nn.Module],
    saved: Mapping[str, Tensor],
    others: Iterable[nn.Module] = (),
) -> None:
    """Have a checkpoint's statistics in the modules of a model that one process has whole, and
    count a step that is done again; `others` run over the statistics of these."""
    modules = [*units]
    for name, value in undivided(model, modules).items():
        value.copy_(saved[name])
    for norm in (norm for module in (*modules, *others) for norm in norms_in(module).values()):
        norm.begin_anew()


class Statistics:
    """Running statistics of one rank's BatchNorms."""

    def __init__(
        self,
        model: LayeredModel,
        schedule: Schedule,
        rank: int,
        modules: Mapping[int, nn.Module],
        batch: int,
        replica: int,
    ) -> None:
        """`modules`: unit -> the module of its passes that are differentiated on this rank;
        `batch`: samples of a step, of all replicas."""
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
            for what in STATISTICS
        }
        shares = [schedule.mesh.share(batch, each) for each in range(schedule.replicas)]
        passes = [
            (_shifted(action.span, first), action.unit, (action.rank, each))
            for each, (first, _) in enumerate(shares if self._norms else ())
            for action in schedule.of_replica(each, batch).actions
            if keeps(action) and action.unit is not None
        ]
        self._ahead, here = shares[replica][0], (rank, replica)
        self._before: dict[OnceNorm, dict[tuple[int, int], int]] = {}
        """Calls of a module's copies elsewhere that plain training makes between the micro-batch
        before and this one."""
        self._after: dict[OnceNorm, tuple[tuple[int, int], int]] = {}
        """The last micro-batch of a step, and the calls elsewhere that come after it."""
        self._first: set[OnceNorm] = set()
        """Norms that plain training would call before their copies: they have the beginning."""
        for unit, norms in self._norms.items():
            for path, norm in norms.items():
                self._order(model, norm, (unit, here), name_of(model, unit, path, COUNT), passes)

    def _order(
        self,
        model: LayeredModel,
        norm: OnceNorm,
        here: tuple[int, tuple[int, int]],
        name: str,
        passes: list[tuple[tuple[int, int], int, tuple[int, int]]],
    ) -> None:
        """Note what other copies of a module see; `here`: this one's unit, rank and replica."""
        places = model.norms_named(name)
        waiting, before, last = 0, {}, None
        calls = sorted(each for each in passes if each[1] in places)
        for span, unit, rank in calls:
            if (unit, rank) == here:
                before[span], waiting, last = waiting, 0, span
            else:
                waiting += model.norm_calls(unit, places[unit])
        self._before[norm], self._after[norm] = before, (last, waiting)
        if calls and calls[0][1:] == here:
            self._first.add(norm)
        elif self._calls[norm]:
            norm.running_mean.zero_()
            norm.running_var.zero_()

    def begin(self, unit: int, span: tuple[int, int]) -> None:
        """Before a pass that is differentiated: what copies elsewhere have seen until now."""
        for norm in self._norms.get(unit, {}).values():
            fade(norm, self._before[norm][_shifted(span, self._ahead)])

    def end(self, unit: int, span: tuple[int, int]) -> None:
        """After its backward pass, whose graph holds them: what copies will see until the step is
        over."""
        for norm in self._norms.get(unit, {}).values():
            last, calls = self._after[norm]
            fade(norm, calls if _shifted(span, self._ahead) == last else 0)

    def write(self, path: Path) -> None:
        """To a file that `merged` reads; none where there are no statistics."""
        if self._names:
            values: dict[str, Tensor] = {}
            for key, name in self._names.items():
                value, norm = self._value(key).cpu().clone(), self._norms[key[0]][key[1]]
                if self._calls[norm] or norm in self._first:
                    found = together(name, value, values[name]) if name in values else value
                    values[name] = found
            save_file(values, path)

    def read(self, path: Path) -> None:
        """Begin, also anew, with the values of a file: only their number, where another rank has
        the rest."""
        values = load_file(path)
        for key, name in self._names.items():
            norm = self._norms[key[0]][key[1]]
            norm.begin_anew()
            here = key[-1] == COUNT or norm in self._first or not self._calls[norm]
            self._value(key).copy_(values[name]) if here else self._value(key).zero_()

    def keep(self) -> None:
        """Remember them before a step that may fail."""
        self._kept = clones({key: self._value(key) for key in self._names})

    def forget(self) -> None:
        """Have what was kept, and count a step that is done again."""
        for (unit, path, what), value in self._kept.items():
            self._value((unit, path, what)).copy_(value)
            self._norms[unit][path].begin_anew()

    def _value(self, key: tuple[int, str, str]) -> Tensor:
        unit, path, what = key
        return getattr(self._norms[unit][path], what)


def _shifted(span: tuple[int, int], by: int) -> tuple[int, int]:
    return span[0] + by, span[1] + by


def fade(norm: OnceNorm, calls: int) -> None:
    """Let a module forget as much as so many calls of it would have it forget."""
    if not calls:
        return
    norm.num_batches_tracked.add_(calls)
    if norm.momentum is None:  # all calls count alike
        left = 1.0 - calls / float(norm.num_batches_tracked)
    else:
        left = (1.0 - norm.momentum) ** calls
    norm.running_mean.mul_(left)
    norm.running_var.mul_(left)


class ReplicaStatistics:
    """Running statistics of BatchNorms whose replicas have equally many micro-batches of a step,
    those of the first before those of the second. Between steps all have plain training's."""

    def __init__(
        self,
        model: LayeredModel,
        modules: Iterable[tuple[int, nn.Module]],
        place: tuple[int, int],
        group: dist.ProcessGroup | None,
    ) -> None:
        """`modules` of units; `place` of this replica among how many; `group` of all, None
        for one."""
        self.named: dict[str, Tensor] = {}
        """By their names in the whole model's `state_dict`."""
        self._kept: dict[str, Tensor] = {}
        self._calls: Counter[OnceNorm] = Counter()
        self._group, (self._before, replicas) = group, place
        self._after = replicas - 1 - self._before
        for unit, module in modules:
            for path, norm in norms_in(module).items():
                self._calls[norm] += model.norm_calls(unit, path)
                for what in STATISTICS:
                    self.named[name_of(model, unit, path, what)] = getattr(norm, what)

    def forget(self) -> None:
        """Have their values before the last step, and count one that is done again."""
        self.take_up(self._kept)

    def take_up(self, saved: Mapping[str, Tensor]) -> None:
        """Have a checkpoint's, and count a step that is done again."""
        for name, value in self.named.items():
            value.copy_(saved[name])
        for norm in self._calls:
            norm.begin_anew()

    def begin(self, micros: int) -> None:
        """Before a step of so many micro-batches a replica."""
        self._kept = clones(self.named)
        for norm, calls in self._calls.items():
            fade(norm, calls * micros * self._before)
            if self._before:
                norm.running_mean.zero_()
                norm.running_var.zero_()

    def end(self, micros: int) -> None:
        """After the step."""
        for norm, calls in self._calls.items():
            fade(norm, calls * micros * self._after)
            if self._group is not None:
                dist.all_reduce(norm.running_mean, group=self._group)
                dist.all_reduce(norm.running_var, group=self._group)


def clones(statistics: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
    """Copies, by the same keys."""
    return {key: value.clone() for key, value in statistics.items()}


def together(name: str, one: Tensor, other: Tensor) -> Tensor:
    """Two copies' values of one statistic as one."""
    return torch.maximum(one, other) if name.endswith(COUNT) else one + other


def merged(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The statistics of the whole model, by their names in its `state_dict`, from the files of all
    ranks."""
    return added(map(load_file, paths))


def added(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The statistics of the whole model, from those of all ranks."""
    found: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = together(name, found[name], value) if name in found else value
    return found
