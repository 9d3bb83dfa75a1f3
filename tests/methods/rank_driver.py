"""A rank as the tests want it: with delays, or failing at an action.

``python -m tests.methods.rank_driver WHAT FOLDER RANK``; WHAT is nothing, ``delays`` (of a seed,
where ``delays SEED`` names one), ``fp64`` (everything in it), ``UNIT:nan:STEP`` (a gradient of that
unit is no number), ``RANK:hangs:WHERE`` with WHERE among import, meet, end; ``RANK:KIND:STEP:HOW``,
HOW being fill (a tier is full), hang, kill, raise or wait; or ``fp64`` and one of the others, or
``stages`` that stay with a process; or
``together``, with one thread for all that a device would work off, and one of the others.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.methods import double
from workbench.ranks import process
from workbench.runtime import rank
from workbench.runtime.executor.executor import Executor
from workbench.runtime.executor.lane_threads import ISSUED
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.pack_engine import PackEngine
from workbench.schedule.action import COMPUTE, Action, lane_kind

HANG_S = 600.0


def delays(seed: int):
    rng = random.Random(seed)

    def perturb(action: Action, step: int) -> None:
        time.sleep(rng.random() * 2e-3)

    return perturb


def fails(rank: int, kind: str, step: int, how: str):
    def perturb(action: Action, at: int) -> None:
        if (action.rank, action.kind.name, at) != (rank, kind, step):
            return
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(HANG_S)
        if how == "wait":
            time.sleep(0.5)
            return
        if how == "fill":
            raise OutOfMemory(
                tier="host", what="a lock", asked=1024, in_use=0, budget=None, why="error 2"
            )
        raise RuntimeError("a made-up failure")

    return perturb


def poisons(unit: int, step: int) -> None:
    """Let a unit's gradients that leave in a step hold one that is not a number."""
    gradients_out = PackEngine._gradients_out

    def poisoned(self, action, links, at):
        if (action.unit, at) == (unit, step):
            self._memory.place(links.gradients, 1).fill_(math.nan)
        gradients_out(self, action, links, at)

    PackEngine._gradients_out = poisoned


class NothingRead(TorchDispatchMode):
    """Numbers of a device are not for who must not wait for it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler to look, for seconds, in whichever thread is first."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise AssertionError("the thread that issues would wait for the device")
        return func(*args, **(kwargs or {}))


def together(patch: pytest.MonkeyPatch) -> None:
    """Let one thread walk what it would walk with a GPU, where it would never wait for that."""
    patch.setattr(rank, "Executor", lambda *args, **kw: Executor(*args, **{**kw, "together": True}))
    perform = PackEngine.perform

    def watched(engine: PackEngine, action: Action, step: int) -> None:
        with NothingRead() if lane_kind(action.lane) in (COMPUTE, *ISSUED) else nullcontext():
            perform(engine, action, step)

    patch.setattr(PackEngine, "perform", watched)


def hangs(where: str) -> None:
    """Let this rank hang before its first action, or when all is done."""
    if where == "import":
        time.sleep(HANG_S)
    if where == "meet":
        process._meet = lambda *_: time.sleep(HANG_S)
    if where == "end":
        os._exit = lambda status: time.sleep(HANG_S)


def main(what: str, folder: Path, number: int) -> int:
    """The rank's exit status."""
    perturb = None
    if what.startswith("fp64"):
        what = what.removeprefix("fp64").strip()
        (double.stages if what == "stages" else double.use)(pytest.MonkeyPatch())
        what = what.removeprefix("stages")
    if what.startswith("together"):
        together(pytest.MonkeyPatch())
        what = what.removeprefix("together").strip()
    if what.startswith("delays"):
        perturb = delays(number + 100 * int(what.removeprefix("delays") or 0))
    elif ":nan:" in what:
        unit, _, step = what.split(":")
        poisons(int(unit), int(step))
    elif ":hangs:" in what:
        number_of, _, where = what.split(":")
        if int(number_of) == number:
            hangs(where)
    elif what:
        number_of, kind, step, how = what.split(":")
        perturb = fails(int(number_of), kind, int(step), how)
    return process.main(folder, number, **({"perturb": perturb} if perturb else {}))


if __name__ == "__main__":
    ended = main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(ended)  # looked up now, since it may be what hangs
