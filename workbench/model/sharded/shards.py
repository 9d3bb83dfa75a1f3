"""A parameter's shards: the parts that the devices of a row have, of one dimension or of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workbench.core.division import even_share


@dataclass(frozen=True, slots=True)
class Shard:
    """How a parameter is divided; by default not at all. Shares need not be equal."""

    dim: int | None = None
    """Dimension that is split."""
    blocks: int = 1
    """Equal blocks of that dimension, of each of which a device has its share, such as the rows of
    queries, keys and values."""

    def view(self, parameter: Tensor) -> Tensor:
        """A parameter, or its shard, with blocks in a dimension of their own."""
        if self.blocks == 1:
            return parameter
        return parameter.unflatten(self.dim, (self.blocks, -1))

    @property
    def split(self) -> int | None:
        """Dimension of the `view` that is split."""
        return self.dim if self.blocks == 1 else self.dim + 1

    def of(self, whole: Tensor, number: int, count: int) -> Tensor:
        """A copy of one of `count` shards."""
        if self.dim is None or count == 1:
            return whole.detach().clone()
        viewed = self.view(whole.detach())
        first, end = even_share(viewed.shape[self.split], number, count)
        part = viewed.narrow(self.split, first, end - first)
        return part.flatten(self.dim, self.split).contiguous().clone()


WHOLE = Shard()
