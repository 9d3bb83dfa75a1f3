"""Others use what was neither idle nor used by a run and all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from workbench.core import others
from workbench.core.others import Reading, read, shares

WORK = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
NEIGHBOUR = """
import os, torch
x = torch.rand(4096, 4096, device="cuda")
for n in range(10**9):
    x = (x @ x).softmax(0)
    if n == 9: torch.cuda.synchronize(); print(os.getpid(), flush=True)
"""


def test_shares_are_of_the_steps_or_where_these_are_short_of_the_whole_run(monkeypatch) -> None:
    monkeypatch.setattr(others, "available_cores", lambda: 2)
    start, first = Reading(0.0, 100.0, 0.0), Reading(10.0, 110.0, 10.0)
    end = Reading(20.0, 120.0, 15.0)  # ten seconds of two cores: ten idle, five our own
    assert shares([start, first, end], 0) == {"cores": 0.25}
    soon = Reading(10.1, 110.0, 10.0)
    assert shares([start, first, soon], 0) == {"cores": 0.01}
    assert shares([start, Reading(0.1, 100.0, 0.0)], 0) == {}, "too short to tell"
    server = Reading(20.0, 800.0, 15.0)  # of a large server most cores are idle
    assert shares([start, first, server], 0) == {"cores": 0.0}


def test_what_a_run_started_is_its_own_also_when_it_has_ended() -> None:
    before, alone = read(), read(tree=False)
    child = subprocess.Popen([sys.executable, "-c", WORK], stdin=-1, stdout=-1)
    child.stdout.readline()
    assert read().own - before.own >= 0.25 > read(tree=False).own - alone.own
    child.communicate(b"\n")
    assert read().own - before.own >= 0.25, "it is gone"


@pytest.mark.gpu
def test_a_gpu_that_somebody_else_uses_is_seen() -> None:
    import torch

    # One whose parent is gone is not ours.
    x, orphan = torch.rand(4096, 4096, device="cuda"), "import subprocess, sys; "
    orphan += "subprocess.Popen([sys.executable, '-c', sys.argv[1]])"

    def used(seconds: float = 3.0) -> float:
        readings, until = [read()], time.monotonic() + seconds
        while time.monotonic() < until:
            x.copy_((x @ x).softmax(0))
            torch.cuda.synchronize()
        found = shares([*readings, read()], 1).get("gpu")
        if found is None:
            pytest.skip("this driver does not tell our own processes, as in some containers")
        return found

    assert used() < 0.05
    command = [sys.executable, "-c", orphan, NEIGHBOUR]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        try:
            assert used() > 0.2
        finally:
            os.kill(pid, signal.SIGKILL)
