"""All exchanges between spreads, on one of four processes: ``python -m
tests.methods.aceso.exchanges FOLDER RANK`` leaves what it has found wrong in a file."""

from __future__ import annotations

import json
import os
import sys
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.runtime.transport.boxes import Spread
from workbench.runtime.transport.collectives import Columns, spread
from workbench.runtime.transport.loopback import join

RANKS = 4
SHAPES = ((5, 6, 3), (1, 2, 7))
"""Shapes of a tensor; the second has fewer rows and columns than there are processes."""
SPREADS = [
    Spread(tp, RANKS // tp, shard, partial)
    for tp in (1, 2, 4)
    for shard, partial in ((None, False), (1, False), (2, False), (None, True))
]


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def part(whole: Tensor, where: Spread, rank: int) -> Tensor:
    return whole[tuple(slice(*each) for each in where.box(tuple(whole.shape), rank))]


def total(value: Tensor | float) -> float:
    """The sum over all processes."""
    found = torch.as_tensor(value, dtype=torch.float64).clone()
    dist.all_reduce(found)
    return float(found)


def once(tensor: Tensor, where: Spread, rank: int) -> Tensor:
    """A tensor, of replicas the first alone."""
    keeps = where.shard is not None or where.partial or rank % where.tp == 0
    return tensor if keeps else torch.zeros_like(tensor)


def wrong(have: Spread, need: Spread, shape: tuple[int, ...], rank: int) -> str:
    """The exchange is the tensor itself, however it lies, and the backward pass its adjoint:
    <A x, y> = <x, A' y>, each element of x and y once."""
    terms = [drawn(shape, column) for column in range(have.tp if have.partial else 1)]
    mine = terms[rank % have.tp] if have.partial else terms[0]
    x = part(mine, have, rank).clone().requires_grad_()
    y = part(drawn(shape, 99), need, rank)
    made = spread(x, have, need, shape, rank, dist.group.WORLD)
    if not torch.allclose(made, part(sum(terms), need, rank), rtol=0, atol=1e-12):
        return f"{have} to {need}: values"
    made.backward(y)
    one = total((once(made.detach(), need, rank) * y).sum())
    other = total((once(x.detach(), have, rank) * x.grad).sum())
    return "" if abs(one - other) < 1e-10 else f"{have} to {need}: {one} is not {other}"


def wrong_columns(rank: int) -> str:
    """Sums and reads of a row of four are each other's adjoint."""
    columns, x = Columns(dist.group.WORLD), drawn((3,), rank).requires_grad_()
    y = drawn((3,), 99)
    columns.summed(x).backward(y)
    read = drawn((3,), 99).requires_grad_()
    columns.read(read).backward(drawn((3,), rank))
    whole = sum(drawn((3,), each) for each in range(RANKS))
    fits = torch.equal(x.grad, y) and torch.allclose(read.grad, whole)
    return "" if fits else "columns"


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    join(torch.device("cpu"), file=folder / "meeting", rank=rank, ranks=RANKS)
    found = [
        wrong(have, need, shape, rank)
        for have, need, shape in product(SPREADS, SPREADS, SHAPES)
        if have != need and not need.partial
    ]
    told = {"asked": len(found), "wrong": [*filter(None, (*found, wrong_columns(rank)))]}
    (folder / str(rank)).write_text(json.dumps(told))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
