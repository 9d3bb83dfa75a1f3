"""The process between the runner and the worker, so that nothing outlives a run.

    runner (notebook, command line) --pipe--> guard --pipe--> worker (trains) --> anything it starts

A worker cannot be trusted with its own end: it may sit in a C call, be out of memory, or be killed.
The guard is a small single-threaded process that holds no torch and only waits, for whichever comes
first:

* the runner is gone (its end of the pipe closes, which is what SIGKILL of a notebook looks like):
  kill all;
* SIGTERM, or the time limit: SIGTERM to the worker, some grace to unwind in, then kill all;
* the worker ended: kill what it left behind.

If the guard itself is killed, the kernel kills the worker, and the runner (or the next run of this
key, which finds the marks) kills the rest. The guard holds a share of the key's lock, so no second
run of the key starts while anything of the first one lives. What it saw goes into events.jsonl as
the event ``exit``.

Run as ``python -m workbench.runs.guard FOLDER``, standard input being the pipe; or before there is
a folder (ahead.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from workbench.core.parents import die_with_parent
from workbench.runs.ahead import WORD, tell, told
from workbench.runs.events import EventLog
from workbench.runs.jobfile import JobFile
from workbench.runs.processes import MARK, kernel_oom_kills, kill_marked

GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL."""


def main(words: list[str]) -> int:
    """Returns the worker's exit status as a shell would, 128 + n for signal n."""
    parent, me, wake = os.getppid(), os.getpid(), _wake_on_signals()
    oom_kills = kernel_oom_kills()
    ours, theirs = socket.socketpair()
    worker = subprocess.Popen(
        [sys.executable, "-m", "workbench.runs.worker", *words],
        stdin=theirs,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(me),
    )
    theirs.close()
    if words[0] == WORD:
        order = told()
        if order is None:  # nobody wants anything
            kill_marked(os.environ[MARK], group=worker.pid)
            return 0
        folder, (output, *_) = order  # the others are locks, which are held by being open
        with contextlib.suppress(OSError):  # it has ended, as is seen below
            tell(ours, folder, [output])
    else:
        folder = Path(words[0])
    job = JobFile.load(folder)
    log = EventLog(folder / "events.jsonl")
    deadline = time.monotonic() + job.timeout_s if job.timeout_s is not None else None
    reason, ended = None, None
    while ended is None:
        wait_s = 0.5 if deadline is None else min(0.5, max(0.0, deadline - time.monotonic()))
        ready, _, _ = select.select([0, wake], [], [], wait_s)
        signals = os.read(wake, 64) if wake in ready else b""
        ended = _reap(worker.pid)
        if ended is not None:
            break
        if 0 in ready or os.getppid() != parent:  # the runner is gone: nobody wants the result
            reason, deadline = "orphaned", time.monotonic()
        elif signal.SIGTERM in signals and reason is None:
            reason, deadline = "cancelled", time.monotonic() + GRACE_S
            worker.terminate()
        if deadline is not None and time.monotonic() >= deadline:
            if reason is not None:
                kill_marked(job.mark, group=worker.pid)
                ended = _reap(worker.pid, block=True)
            else:
                reason, deadline = "timeout", time.monotonic() + GRACE_S
                worker.terminate()
    status, peak_bytes = ended
    kill_marked(job.mark, group=worker.pid)
    returncode = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):  # a full disk: the exit status tells the runner enough
        log.write(
            "exit",
            returncode=returncode,
            reason=reason,
            peak_resident_bytes=peak_bytes,
            oom_kills=(kernel_oom_kills() or 0) - (oom_kills or 0),
        )
    return returncode if returncode >= 0 else 128 - returncode


def _wake_on_signals() -> int:
    """A descriptor that yields the signal's number when a child ends or SIGTERM comes."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return read


def _reap(pid: int, *, block: bool = False) -> tuple[int, int] | None:
    """Wait status and peak resident bytes of the worker, None while it runs."""
    found, status, usage = os.wait4(pid, 0 if block else os.WNOHANG)
    if found == 0:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return status, usage.ru_maxrss * unit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
