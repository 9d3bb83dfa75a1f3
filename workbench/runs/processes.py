"""Environment of the processes of a run, and the end of each, however it was started or hides.

A worker's children are not ours to know: DeepSpeed starts launchers and compilers, some in sessions
of their own. Process groups miss those, and the parent chain breaks when a parent dies first. So
every process of a run carries a mark in its environment, which children inherit and an orphan keeps
(continuous-integration servers clean up in the same way). Where there is no ``/proc`` the process
group has to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from workbench.core.paths import import_path

MARK = "WORKBENCH_RUN"
"""Environment variable whose value names the run: its folder, or one of the results' where the run
was not known yet (ahead.py). It identifies; it configures nothing."""

LOAD_S = 1.0
"""Longest time in which the system loads a program."""
VSIZE, ENV_END = 23, 51
"""Fields of ``/proc/PID/stat``, counted from 1: the size of a process's memory, which the system's
own threads and zombies have none of, and where its environment ends."""

_PROC = Path("/proc")
ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Under a cap, memory lost between segments is memory a plan counts on: for every method alike."""


def kernels() -> dict[str, str]:
    """Variable by which torch keeps what it compiles among the user's files: by default it does so
    among temporary ones, which a machine that is started anew has lost."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workbench/inductor"
    with contextlib.suppress(OSError):  # where nobody may write, torch's own place has to do
        base.mkdir(parents=True, exist_ok=True)
        return {"TORCHINDUCTOR_CACHE_DIR": str(base)}  # Triton's kernels are in it, too
    return {}


def variables(mark: str) -> dict[str, str]:
    """The environment of processes of a run."""
    return {**ALLOCATOR, **kernels(), **os.environ, MARK: mark, **import_path()}


def marked(mark: str) -> list[int]:
    """Living processes that carry `mark`, this one left out. Zombies do not count as living."""
    entry = f"\0{MARK}={mark}\0".encode()
    found = []
    asked, deadline = [*_PROC.glob("[0-9]*")], time.monotonic() + LOAD_S
    while asked:
        loading = []
        for folder in asked:
            # One of another user, or one that ended meanwhile, cannot be read and is not ours.
            with contextlib.suppress(OSError):
                environment = environment_of(folder)
                if environment is None:
                    loading.append(folder)
                elif entry in b"\0" + environment:
                    found.append(int(folder.name))
        asked = loading if time.monotonic() < deadline else []
        if asked:
            time.sleep(0.001)
    return [pid for pid in found if pid != os.getpid()]


def environment_of(process: Path) -> bytes | None:
    """Environment that a process, by its folder in ``/proc``, was started with. None while the
    system loads its program: there is no environment to read then, for some microseconds or, on a
    busy machine, for tens of milliseconds. Raises OSError where it cannot be read."""
    facts = (process / "stat").read_bytes().rpartition(b")")[2].split()  # from the third on
    size, end = int(facts[VSIZE - 3]), int(facts[ENV_END - 3])
    environment = (process / "environ").read_bytes()
    return None if size and not end and not environment else environment


def kill_marked(mark: str, *, group: int | None = None, patience_s: float = 10.0) -> int:
    """SIGKILL everything that carries `mark`, and the process group, until nothing is left.

    Returns how many processes were killed. Loops, because a process may fork while it is being
    looked for. Gives up after `patience_s` (a process in an uninterruptible disk wait dies when the
    wait ends).
    """
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    killed: set[int] = set()
    deadline = time.monotonic() + patience_s
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(pids)
        time.sleep(0.005)
    return len(killed)


def kernel_oom_kills() -> int | None:
    """How many processes the kernel's out-of-memory killer ended since boot; None where unknown."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
