"""A rank of a plan as the tests want it: ``python -m tests.methods.aceso.rank_driver WHAT FOLDER
RANK``, with WHAT words of ``fp64`` (everything in it) and ``late`` (each collective and message
waits for a moment first, another one on each rank)."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.methods import double
from workbench.methods.aceso import run
from workbench.ranks import process

SLOWED = ("all_to_all_single", "all_reduce", "isend", "irecv")


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


def main(what: str, folder: Path, rank: int) -> int:
    """The rank's exit status."""
    patch = pytest.MonkeyPatch()
    if "fp64" in what:
        double.use(patch)
        patch.setattr(run, "DTYPES", {"fp32": torch.float64})
    if "late" in what:
        late(patch, rank)
    return process.main(folder, rank)


if __name__ == "__main__":
    ended = main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(ended)
