"""Operators as modules over shards, of one device of a row: their common part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from workbench.core.model_spec import ModelSpec
from workbench.model.base import Context
from workbench.model.dropout import dropout, dropped
from workbench.model.keys import key
from workbench.model.operators.place import Place
from workbench.model.sharded.shards import Shard


class Columns(Protocol):
    """The devices of a row, which share matrices (runtime/transport/collectives.py)."""

    number: int
    count: int

    def summed(self, terms: Tensor) -> Tensor: ...

    def read(self, whole: Tensor) -> Tensor: ...

    def largest(self, values: Tensor) -> Tensor: ...

    def total(self, values: Tensor) -> Tensor: ...

    def share(self, whole: Tensor, dim: int) -> Tensor: ...

    def gathered(self, part: Tensor, dim: int, size: int) -> Tensor: ...


class Rows(NamedTuple):
    """Samples of an operator's row of devices."""

    inputs: tuple[Tensor, ...]
    """Of the model."""
    targets: Tensor
    ctx: Context
    """Of its unit."""
    labels: int
    """Labels that count in the micro-batch, of all rows together."""
    all_count: bool
    """Whether all do."""
    whole: int
    """Samples of the micro-batch."""
    again: bool
    """Whether the pass is repeated."""


class Sharded(nn.Module):
    """An operator with its shards."""

    pure: ClassVar[bool] = True
    """Whether it reads tensors and weights alone, and changes nothing, where nothing is dropped."""
    shards: Mapping[str, Shard] = {}
    """Parameter, by its name in the submodule -> its division."""

    def __init__(
        self, spec: ModelSpec, place: Place, columns: Columns, rows: Columns, *,
        sharded: bool = False, algo: int = 0,
    ) -> None:  # fmt: skip
        """`rows` are the devices that have equal shards, one of each row. `sharded`: whether the
        input comes in shards of its last dimension; `algo` is the partition dimension."""
        super().__init__()
        self.spec, self.place, self.columns, self.rows = spec, place, columns, rows
        self.sharded, self.algo = sharded, algo
        self.shards = self.divided()

    def divided(self) -> dict[str, Shard]:
        """The parameters' divisions."""
        return {}

    def take(self, whole: Callable[[str], Tensor], device: torch.device) -> None:
        """Make the parameters from those of the whole model, by their names in the submodule."""
        columns = self.columns
        for name, shard in self.shards.items():
            own = shard.of(whole(name), columns.number, columns.count).to(device)
            self.register_parameter(name.replace(".", "_"), nn.Parameter(own))

    def owned(self) -> dict[str, nn.Parameter]:
        """Its shards, by their names in the submodule."""
        return {name: self.get_parameter(name.replace(".", "_")) for name in self.shards}

    def drops(self, rows: Rows) -> bool:
        """Whether something is dropped in a pass."""
        return self.spec.dropout > 0 and rows.ctx.training

    def seeds(self, ctx: Context) -> list[int]:
        """Of each sample where masks are keyed by the place of a draw in the model."""
        own = (ctx.seed, "drawn", ctx.step)
        return [key(*own, sample, self.place.draw) for sample in ctx.samples]

    def _dropped(self, x: Tensor, rows: Rows) -> Tensor:
        if not self.drops(rows):
            return x
        if self.place.draw is None:
            return dropout(x, self.spec.dropout, rows.ctx, self.place.site)
        return dropped(x, self.spec.dropout, self.seeds(rows.ctx))


def of_unit(ctx: Context, unit: int, first: int, end: int) -> Context:
    """The context of some rows of a micro-batch in a unit."""
    return replace(ctx, unit=unit, samples=ctx.samples[first:end])
