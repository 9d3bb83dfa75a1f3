"""Touches memory that a run will want, so that a virtual machine has it by then.

Some virtual machines get memory from their host when it is touched for the first time, 3 GB a
second however many threads ask, and keep what their processes give back. So a run that lays out
100 GB waits half a minute, and the next one 3 s (an H200's machine). Here the bytes are touched
while the run's process imports and its layers are compared and timed, by a process that gives them
back before any are laid out: one of its own, since a process that waits for pages can map nothing
meanwhile, and to import is to map. Elsewhere two cores touch a quarter of it, for nothing.

    python -m workbench.runtime.memory.pages_ahead CONFIG DEVICE DEVICE_MEMORY HOST_MEMORY

has the words of a command, which may be empty. It prints how many bytes it has touched up to now.
Imports no torch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from workbench.core import host
from workbench.core.bytesize import parse_bytes
from workbench.core.parents import die_with_parent
from workbench.model.weights.stored import beside, find
from workbench.runtime.memory.pages import bring

ON_HOST, IN_ALL = 12, 16
"""Bytes of the host that a parameter takes whose states lie there (98.8 GB for 8.03 billion were
planned), and bytes of the device where all of them do."""
LEAST, PART = 4 << 30, 1 << 30
"""Bytes that are worth a process, and that are touched before it looks around."""
MOST, LEFT = 0.75, 0.06
"""Shares of the host's memory: of what is touched where nobody says how much a run may have, and of
what stays free."""
THREADS, GIVEN, SHARE = 2, 5e9, 0.25
"""Bytes a second at which a machine touches what it has already, and the share of all bytes behind
which that is looked at: the first ones may have been another process's."""


def wanted(config: str, device: str, device_memory: str, host_memory: str) -> int:
    """Bytes of the host that a run from the weights beside a configuration may want; 0 where the
    device has room for all. Raises ValueError where there are none, or words are none."""
    gpus, weights = host.gpus(), beside(config)
    if device == "cpu" or not gpus or not weights:
        return 0
    parameters = find(weights).numel
    room = parse_bytes(device_memory) if device_memory else gpus[0].memory_bytes
    if IN_ALL * parameters <= room:
        return 0
    most = parse_bytes(host_memory) if host_memory else int(MOST * host.host_memory_bytes())
    return min(ON_HOST * parameters, most)


def touch(nbytes: int) -> None:
    """Touch so many bytes, printing how many, and hold them as long as others have memory; no
    longer where the machine has them already."""
    area = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        area.madvise(mmap.MADV_HUGEPAGE)
    address, done = ctypes.addressof(ctypes.c_char.from_buffer(area)), 0
    while psutil.virtual_memory().available > PART + LEFT * host.host_memory_bytes():
        if part := min(PART, nbytes - done):
            began = time.monotonic()
            if not bring([(address + done, part)], THREADS):
                return
            done += part
            print(done, flush=True)
            if done >= SHARE * nbytes and part > GIVEN * (time.monotonic() - began):
                return
        else:
            time.sleep(0.1)


if __name__ == "__main__":
    die_with_parent(os.getppid())
    with suppress(ValueError, OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # who lacks memory is to have this
        if (asked := wanted(*sys.argv[1:])) >= LEAST:
            touch(asked)
