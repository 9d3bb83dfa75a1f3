"""A method for tests of the machinery around methods: it does what the spec's text says.

``steps SECONDS`` sleeps in every step and reports it; ``until FOLDER`` does not begin its last step
before there is a file there, named by the run's seed, and reports steps of `TOLD_S`; the other
words are in `train`. Loss of step k is 1 / (k + 1), so every run of one length is equal to every
other. Checkpoints are one number in a file.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.schedule.plan import DoesNotFit

FOREVER_S = 600
TOLD_S = 0.25
SLEEPER = [sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    word, _, argument = spec.text.partition(" ")
    if word == "ignore_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report.event("hanging")
        time.sleep(FOREVER_S)
    elif word == "hang":
        report.event("hanging")
        time.sleep(FOREVER_S)
    elif word == "hang_in_c":  # a deadlock that holds the interpreter lock: no Python code runs
        mutex = ctypes.create_string_buffer(64)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    elif word == "children":
        _spawn_family(folder)
        report.event("hanging")
        time.sleep(FOREVER_S if argument != "leave" else 0)
    elif word == "value_error":
        raise ValueError("the corpus is empty; give one with at least one sample")
    elif word == "library_error":
        json.loads("not JSON")  # a ValueError, but nothing the user can mend
    elif word == "late_value_error":
        report.step(0, 1.0, 0.1)
        raise ValueError("a shape is wrong")
    elif word == "bug":
        raise KeyError("layer 3\nand a second line")
    elif word == "no_space":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scratch")
    elif word == "does_not_fit":
        raise DoesNotFit("fake does not fit: the smallest layout needs 3 GiB", tier="host")
    elif word == "memory_error":
        report.step(0, 3.0, 0.1)
        raise MemoryError("no memory")
    elif word == "torch_host":
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        )
    elif word == "tier":
        from workbench.runtime.memory.tiers import OutOfMemory

        raise OutOfMemory(tier=argument, what="weights", asked=10, in_use=5, budget=12)
    elif word == "kill_self":
        report.step(0, 2.0, 0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "exit":
        os._exit(int(argument))
    elif word == "disk_full":  # every file of this process may have this many bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(argument), int(argument)))
    return _steps(spec, report, folder, word, argument)


def _steps(spec: RunSpec, report: Reporter, folder: Path, word: str, argument: str) -> Outcome:
    seconds = float(argument or 0) if word == "steps" else TOLD_S if word == "until" else 0.0
    until = Path(argument) / str(spec.seed) if word == "until" else None
    checkpoint = folder / "checkpoints" / "next_step"
    first = int(checkpoint.read_text()) if spec.save_every and checkpoint.exists() else 0
    if first:
        report.event("resumed", next_step=first)
    last = float("nan") if spec.text == "diverge" else None
    losses = [1 / (step + 1) for step in range(spec.steps)]
    losses[-1] = last or losses[-1]
    for step in range(first, spec.steps):
        while until and step + 1 == spec.steps and not until.exists():
            time.sleep(0.01)
        time.sleep(0.0 if until else seconds)
        report.step(step, losses[step], seconds)
        if spec.save_every and (step + 1) % spec.save_every == 0:
            checkpoint.parent.mkdir(exist_ok=True)
            part = checkpoint.with_suffix(".part")
            part.write_text(str(step + 1))
            part.rename(checkpoint)
    return Outcome(
        losses=losses,
        step_seconds=[seconds] * spec.steps,
        peak_bytes={"device": 100, "host": 200, "disk": None},
        moved_bytes={"load": 1, "store": 2, "read": 0, "write": 0},
        parameters=1000,
        engine="fake",
    )


def _spawn_family(folder: Path) -> None:
    """A child in our group, one in a session of its own, and an orphan whose parent is gone."""
    subprocess.Popen(SLEEPER)
    subprocess.Popen(SLEEPER, start_new_session=True)
    double_fork = "import os, sys, time\nos.fork() and os._exit(0)\nos.setsid()\n"
    subprocess.run([sys.executable, "-c", double_fork + f"os.fork() or time.sleep({FOREVER_S})"])
