"""A rank of a plan as the tests want it: ``python -m tests.methods.aceso.rank_driver WHAT FOLDER
RANK``, with WHAT words of ``fp64`` (everything in it), ``late`` (each collective and message waits
for a moment first, another one on each rank), ``paired`` (messages between stages have groups of
two, and are told of, as with NCCL), and ``SIGKILL`` or ``SIGSTOP``, which rank 1 sends
itself inside a collective of a backward pass."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.methods import double
from workbench.methods.aceso import run, stepping
from workbench.ranks import process
from workbench.runtime.transport import collectives, neighbours
from workbench.runtime.transport.groups import new_group

SLOWED = ("all_to_all_single", "all_reduce", "isend", "irecv")
LAST = 100
"""Sum of gradients that a rank does not come to the end of."""


def late(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Make collectives and messages wait."""
    draw = random.Random(seed)

    def slowed(perform):
        def waits(*args, **kw):
            time.sleep(draw.random() * 2e-3)
            return perform(*args, **kw)

        return waits

    for name in SLOWED:
        patch.setattr(dist, name, slowed(getattr(dist, name)))


def paired(patch: pytest.MonkeyPatch) -> None:
    """Give messages groups of their own, of gloo."""

    linked = neighbours.linked

    def by_pairs(pairs, rank, backend, *more):
        return linked(pairs, rank, "pairs", *more)

    patch.setattr(neighbours, "few", lambda: None)
    patch.setattr(neighbours, "new_group", lambda ranks, *_, **__: new_group(ranks, "gloo"))
    patch.setattr(stepping, "linked", by_pairs)


def ends(patch: pytest.MonkeyPatch, how: signal.Signals) -> None:
    """Have this process sent a signal where a sum of gradients is begun, and others wait in it."""
    backward, count = collectives._Read.backward, iter(range(1, 1 << 30))

    def read(ctx, gradient):
        if next(count) == LAST:
            time.sleep(0.2)
            os.kill(os.getpid(), how)
        return backward(ctx, gradient)

    patch.setattr(collectives._Read, "backward", staticmethod(read))


def main(what: str, folder: Path, rank: int) -> int:
    """The rank's exit status."""
    patch = pytest.MonkeyPatch()
    if "fp64" in what:
        double.use(patch)
        patch.setattr(run, "DTYPES", {"fp32": torch.float64})
    if "late" in what:
        late(patch, rank)
    if "paired" in what:
        paired(patch)
    if "SIG" in what and rank == 1:
        ends(patch, signal.Signals[what])
    return process.main(folder, rank)


if __name__ == "__main__":
    ended = main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(ended)
