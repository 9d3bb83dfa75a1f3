"""Sums and exchanges among the processes of a stage, which autograd differentiates.

Between operators a replica of a tensor is whole on each process that has one, and so is its
gradient; hence each operation here has a dual, which its backward pass is:

    forward                                    backward
    sum of terms, for all                      the gradient as it is
    the tensor as it is, for shards to read    sum of gradients, for all
    another spread of the tensor               the spread before; a term of a sum gets all of it

All processes of a group perform equal operations in one order. Pieces of another spread go in one
all-to-all, which is a gather, a scatter or neither, as the pieces are; where none travel, such as
from replicas to shards, there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.runtime.transport.boxes import (
    Box,
    Move,
    Shape,
    Spread,
    resharding,
    sizes,
    within,
)

Group = dist.ProcessGroup | None
"""None is this process alone."""


class Columns:
    """The processes of one row of an operator, which share its matrices."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.number = 0 if group is None else dist.get_rank(group)
        self.count = 1 if group is None else dist.get_world_size(group)

    def summed(self, terms: Tensor) -> Tensor:
        """The sum of all processes' terms."""
        return terms if self._group is None else _Sum.apply(terms, self._group)

    def read(self, whole: Tensor) -> Tensor:
        """A replica, of which this process computes with a shard of the weights: its gradient is
        the sum of all processes'."""
        return whole if self._group is None else _Read.apply(whole, self._group)

    def total(self, values: Tensor) -> Tensor:
        """The sum of values that processes of several rows have, of which each goes on with it: so
        has its gradient several terms."""
        return self.read(self.summed(values))

    def share(self, whole: Tensor, dim: int) -> Tensor:
        """This process's share of a dimension of a replica."""
        return self._spread(whole, (None, dim), tuple(whole.shape))

    def gathered(self, part: Tensor, dim: int, size: int) -> Tensor:
        """A replica, of whose dimension of so many each process has its share."""
        shape = (*part.shape[:dim], size, *part.shape[dim + 1 :])
        return self._spread(part, (dim, None), shape)

    def _spread(
        self, tensor: Tensor, shards: tuple[int | None, int | None], shape: Shape
    ) -> Tensor:
        have, need = (Spread(self.count, 1, shard) for shard in shards)
        return spread(tensor, have, need, shape, self.number, self._group)

    def largest(self, values: Tensor) -> Tensor:
        """The largest of all processes' values, element by element; without a gradient."""
        values = values.detach()
        if self._group is not None:
            values = values.clone()
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group)
        return values


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, terms: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = terms.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


def spread(
    tensor: Tensor, have: Spread, need: Spread, shape: Shape, process: int, group: Group
) -> Tensor:
    """This process's part of a tensor of a `shape` in another spread; `tensor` is its part of the
    one that it has. `process` is its number in the stage, whose `group` calls this together."""
    if have == need or group is None:
        return tensor
    return _Spread.apply(tensor, have, need, shape, process, group)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, tensor: Tensor, have: Spread, need: Spread, shape: Shape, process: int, group: Group
    ) -> Tensor:
        ctx.back = need, Spread(have.tp, have.dp, have.shard), shape, process, group
        return _spread(tensor, have, need, shape, process, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _spread(gradient, *ctx.back), None, None, None, None, None


def _spread(
    tensor: Tensor, have: Spread, need: Spread, shape: Shape, process: int, group: Group
) -> Tensor:
    boxes = have.box(shape, process), need.box(shape, process)
    return exchange(tensor, *boxes, resharding(have, need, shape), process, group)


def exchange(
    tensor: Tensor, have: Box | None, need: Box | None, moved: Sequence[Move], process: int,
    group: Group,
) -> Tensor:  # fmt: skip
    """The box that a process needs of a tensor, of which it gives `tensor`, the box that it has.
    `moved` are all pieces of all processes of the group; of a target's those that overlap are added
    up."""
    travels = any(move.source != move.target for move in moved)
    sent = [
        (move.target, tensor[within(move.box, have)]) for move in moved if move.source == process
    ]
    came = [move for move in moved if move.target == process]
    if not travels and len(came) == 1 and came[0].box == need:
        return sent[0][1].clone(memory_format=torch.contiguous_format)
    pieces = dict.fromkeys([process], sent[0][1]) if sent else {}
    if travels:
        count = dist.get_world_size(group)
        gives, takes = [0] * count, [0] * count
        for target, piece in sent:
            gives[target] += piece.numel()
        for move in came:
            takes[move.source] += prod(sizes(move.box))
        order = sorted(sent, key=lambda each: each[0])
        flat = torch.cat([tensor.new_empty(0), *(piece.reshape(-1) for _, piece in order)])
        arrived = tensor.new_empty(sum(takes))
        dist.all_to_all_single(arrived, flat, takes, gives, group=group)
        pieces = dict(enumerate(arrived.split(takes)))
    if need is None:
        return tensor.new_empty(0)
    once = sum(prod(sizes(move.box)) for move in came) == prod(sizes(need))
    made = tensor.new_empty(sizes(need)) if once else tensor.new_zeros(sizes(need))
    for move in came:
        piece, place = pieces[move.source].view(sizes(move.box)), made[within(move.box, need)]
        place.copy_(piece) if once else place.add_(piece)
    return made
