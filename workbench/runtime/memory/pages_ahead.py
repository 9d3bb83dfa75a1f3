"""Touches memory that a run will want, so that a virtual machine has it by then.

Many virtual machines get memory from their host when it is touched for the first time, at 3 to
4 GB/s for all cores together, and keep what their processes give back. So a run that lays out
100 GB waits half a minute, and the next one 3 s (an H200's machine). Here the bytes are touched
while the run's process imports and its layers are compared, by a process that gives them back
before anything is measured or laid out: one of its own, since a process that waits for pages can
map nothing meanwhile, and to import is to map.

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
MOST, LEFT = 0.75, 0.15
"""Shares of the host's memory: of what is touched, and of what stays free."""
LOOKED, GIVEN = 0.25, 7e8
"""The machine has its pages already where a share of them came at so many bytes a second and
thread: 2e9 is usual then, 2.5e8 where it has not."""
CORES = 4
"""Left to others."""


def wanted(config: str, device: str, device_memory: str, host_memory: str) -> int:
    """Bytes of the host that a run from the weights beside a configuration may want; 0 where the
    device has room for all. Raises ValueError where there are none, or words are none."""
    gpus, weights = host.gpus(), beside(config)
    if device == "cpu" or not gpus or not weights:
        return 0
    parameters = find(weights).numel
    if IN_ALL * parameters <= (
        parse_bytes(device_memory) if device_memory else gpus[0].memory_bytes
    ):
        return 0
    most = parse_bytes(host_memory) if host_memory else sys.maxsize
    return min(ON_HOST * parameters, most, int(MOST * host.host_memory_bytes()))


def touch(nbytes: int, threads: int, free: int) -> None:
    """Touch so many bytes, as long as others find `free` bytes and the machine is slow to give
    them; prints the bytes up to now."""
    area = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        area.madvise(mmap.MADV_HUGEPAGE)
    address, began = ctypes.addressof(ctypes.c_char.from_buffer(area)), time.monotonic()
    for at in range(0, nbytes, PART):
        if psutil.virtual_memory().available < free + PART:
            return
        if not bring([(address + at, min(PART, nbytes - at))], threads):
            return
        done = min(nbytes, at + PART)
        print(done, flush=True)
        if done >= LOOKED * nbytes and done > GIVEN * threads * (time.monotonic() - began):
            return


def main(words: list[str]) -> None:
    """Touch what is wanted, if that is much."""
    die_with_parent(os.getppid())
    with suppress(OSError):  # who lacks memory is to have this
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(ValueError, OSError):
        if (nbytes := wanted(*words)) >= LEAST:
            threads = max(1, host.available_cores() - CORES)
            touch(nbytes, threads, int(LEFT * host.host_memory_bytes()))


if __name__ == "__main__":
    main(sys.argv[1:])
