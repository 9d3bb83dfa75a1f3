"""Consecutive layers of any module as a stage of several processes, each with a share of the rows.

Every process has the stage's weights whole. How many there are may change at a boundary: what
crosses it is cut along its rows. Layers that a plan recomputes are computed again one by one, each
from its input. BatchNorm takes its statistics from the whole micro-batch, and what the module is
called with is not sent, since each process has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workbench.core.division import even_share
from workbench.model.base import Part
from workbench.model.keyed import OnceNorm, norms_in
from workbench.model.modules import Decomposed
from workbench.runtime.passes.bundle import Boundary, Bundle, bundled, single
from workbench.runtime.passes.shard_ends import Crossing
from workbench.runtime.passes.shard_stage import Key, MicroRows
from workbench.runtime.passes.statistics import STATISTICS, name_of
from workbench.runtime.passes.unit_stage import UnitRows, UnitStage
from workbench.runtime.transport.boxes import Spread, sizes
from workbench.runtime.transport.collectives import Columns, Group
from workbench.runtime.transport.group_transport import Form


class Rows(NamedTuple):
    """A tensor between layers. A `Shaped` (shard_ends.py)."""

    part: Part

    def shape(self, samples: int) -> tuple[int, ...]:
        """Shape for so many samples."""
        return self.part.full_shape(samples)


def parts_into(model: Decomposed, unit: int) -> list[Part]:
    """Tensors that flow into a unit, with their places among those that the module takes."""
    pairs = zip(model.boundary(unit, 1), model.taken(unit), strict=True)
    return [replace(part, given=given) for part, given in pairs]


def layer_crossings(model: Decomposed, unit: int, front: int, behind: int) -> list[Crossing]:
    """What crosses the boundary before a unit, between so many processes. Raises ValueError where
    gradients of a tensor that is no stack of rows would have to be added up there."""
    found = []
    for number, part in enumerate(parts_into(model, unit)):
        if part.given is not None:
            continue
        if part.batch_dim is None and part.differentiable and front != behind:
            raise ValueError(
                f"layers {unit - 1} and {unit} have dp {front} and {behind}, and the first hands "
                f"on a trained tensor of {part.shape} that has no rows; cut elsewhere, or give "
                "both one dp"
            )
        ends = (Spread(1, dp, dim=part.batch_dim, rows=part.rows) for dp in (front, behind))
        found.append(Crossing(str(number), Rows(part), *ends, part.differentiable))
    return found


def held_in(model: Decomposed, units: range) -> dict[Key, Key]:
    """Parameters of some units: the first place of each -> its owner in the whole model."""
    tied, found = model.tied(), {}
    for unit in units:
        borrowed = [name for of, name in tied if of == unit]
        for key in ((unit, name) for name in (*model.shapes(unit), *borrowed)):
            found.setdefault(tied.get(key, key), key)
    return {key: owner for owner, key in found.items()}


class LayerStage(UnitStage):
    """A `StageModule` (stage_passes.py) of one of several processes. Passes compute in its dtype,
    with the weights in it (shard_weights.py)."""

    records = False
    """Its passes are autograd's."""

    def __init__(
        self, model: Decomposed, units: range, *, again: Sequence[bool], came: Sequence[Crossing],
        goes: Sequence[Crossing], process: int, group: Group, seed: int, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """`again`: of each unit whether it is computed again in its backward pass. `process` is the
        number of this one in the `group` of the stage's."""
        weights = dtype if dtype.itemsize > 2 else torch.float32
        super().__init__(
            model, units, seed=seed, seq=1, device=device, dtype=dtype, weights=weights
        )
        self._again = dict(zip(units, again, strict=True))
        self._came, self._goes, self._process = came, goes, process
        self._columns = Columns(group)
        self._ends = [
            Boundary(parts_into(model, unit), dtype) if 0 < unit < model.num_units else None
            for unit in (units.start, units.stop)
        ]
        for (owner, lent), copy in self.borrowed.items():
            whole = model.build(owner, seed=seed, dtype=weights).get_parameter(lent)
            copy.data.copy_(whole)
        for module in self.modules.values():
            for norm in (part for part in module.modules() if isinstance(part, OnceNorm)):
                norm.sharers = self._columns

    def parameters(self) -> Iterator[tuple[Key, nn.Parameter]]:
        """Each parameter, by its first place in the stage."""
        for unit, local in held_in(self.model, self.units):
            yield (unit, local), self.modules[unit].get_parameter(local)

    def statistics(self) -> dict[str, Tensor]:
        """Running ones of its norms, by their names in the whole model."""
        return {
            name_of(self.model, unit, path, what): getattr(norm, what)
            for unit, module in self.modules.items()
            for path, norm in norms_in(module).items()
            for what in STATISTICS
        }

    def begin_anew(self) -> None:
        """Have norms count a step that is done again."""
        for module in self.modules.values():
            for norm in norms_in(module).values():
                norm.begin_anew()

    def share(self, samples: int) -> range:
        """This process's rows of so many."""
        return range(*even_share(samples, self._process, self._columns.count))

    def came(self, samples: int) -> list[Form]:
        """Tensors from the stage before: this process's boxes."""
        return self._boxes([(each, each.behind) for each in self._came], samples)

    def goes(self, samples: int) -> list[Form]:
        """Tensors for the stage behind: this process's boxes."""
        return self._boxes([(each, each.front) for each in self._goes], samples)

    def _boxes(self, ends: Sequence[tuple[Crossing, Spread]], samples: int) -> list[Form]:
        return [
            (
                sizes(where.box(each.shape(samples), self._process)),
                each.form.part.dtype or self.dtype, each.differentiable,
            )
            for each, where in ends
        ]  # fmt: skip

    def begin(self, step: int, rows: Sequence[MicroRows]) -> None:
        """Before a step: each of its micro-batches, whole."""
        own = []
        for each in rows:
            here = self.share(len(each.ctx.samples))
            part = slice(here.start, here.stop)
            ctx = replace(each.ctx, samples=each.ctx.samples[part])
            *inputs, targets = (tensor[part] for tensor in each.inputs.values())
            own.append(UnitRows(tuple(inputs), targets, ctx))
        super().begin(step, own)

    def run(self, came: Bundle, micro: int, step: int) -> Bundle:
        """A pass over this process's rows of a micro-batch of a step. Returns tensors for the stage
        behind, or the rows' mean loss, a scalar."""
        rows = self._steps[step][micro]
        x = rows.inputs if self.first else self._joined(came, rows)
        for unit in self.units:
            x = self._unit(unit, x, rows)
        if self.last:
            return x
        end = self._ends[1]
        each = zip(x, end.parts, end.dtypes, strict=True)
        return tuple(tensor.to(dtype) for tensor, part, dtype in each if part.given is None)

    def _unit(self, unit: int, x: Bundle, rows: UnitRows) -> Bundle:
        targets = rows.targets if unit == self.model.head else None
        ctx = replace(rows.ctx, unit=unit)

        def run(*x: Tensor) -> Bundle:
            return bundled(self.model.forward(unit, self.modules[unit], single(x), ctx, targets))

        if self._again[unit] and torch.is_grad_enabled():
            return checkpoint(run, *x, use_reentrant=False, preserve_rng_state=False)
        return run(*x)
