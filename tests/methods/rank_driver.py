"""A rank as the tests want it: with delays, or failing at an action.

``python -m tests.methods.rank_driver WHAT FOLDER RANK``; WHAT is ``delays``, ``fp64`` (everything
in it), or ``RANK:KIND:STEP:HOW`` with HOW among hang, kill, raise, wait.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.methods import double
from workbench.methods.harmony.rank_process import main
from workbench.schedule.action import Action


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
            time.sleep(600)
        if how == "wait":
            time.sleep(0.5)
            return
        raise RuntimeError("a made-up failure")

    return perturb


if __name__ == "__main__":
    what, folder, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    perturb = None
    if what == "delays":
        perturb = delays(number)
    elif what == "fp64":
        double.use(pytest.MonkeyPatch())
    else:
        rank, kind, step, how = what.split(":")
        perturb = fails(int(rank), kind, int(step), how)
    os._exit(main(folder, number, perturb))
