"""Shares of this machine that other programs use while one of ours is timed.

The system's own accounts tell: of the cores that we may use, what was neither idle nor used by our
processes went to others, or, on a virtual machine, to its neighbours. Cores that were idle are
nobody's, so the load of a large server outside our container does not count. A driver that counts
by process (NVML) tells the same of a GPU.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from statistics import fmean
from typing import NamedTuple

import psutil

from workbench.core.host import available_cores

LEAST_S = 0.25
"""Shortest time of which the system's accounts, kept in hundredths of a second, tell enough."""
MOST_SAMPLES = 4096


class Reading(NamedTuple):
    """Accounts of a moment, in seconds: the clock, idle time of all cores, and processor time of
    our processes, those that have ended among them."""

    wall: float
    idle: float
    own: float


def read(tree: bool = True) -> Reading:
    """The accounts now, of this process and, with `tree`, of all that it started."""
    system, own = psutil.cpu_times(), sum(os.times()[: 4 if tree else 2])
    for process in psutil.Process().children(recursive=True) if tree else ():
        with suppress(psutil.Error):  # it has ended meanwhile: its parent counts it
            own += sum(process.cpu_times()[:4])
    return Reading(time.perf_counter(), system.idle + getattr(system, "iowait", 0.0), own)


def cores_of_others(begin: Reading, end: Reading) -> float:
    """Cores that others used between two readings, on average."""
    elapsed, idle, own = (b - a for a, b in zip(begin, end, strict=True))
    return max(0.0, available_cores() - (idle + own) / elapsed) if elapsed > 0 else 0.0


def shares(readings: list[Reading], gpus: int) -> dict[str, float]:
    """``cores`` and, where it can be told of so many GPUs, ``gpu``: the share that others used
    (0 to 1) up to the last reading, from the last one before it that is long enough ago."""
    *before, end = readings
    begin = next((one for one in reversed(before) if end.wall - one.wall >= LEAST_S), None)
    if begin is None:
        return {}
    found = {"cores": min(1.0, cores_of_others(begin, end) / available_cores())}
    with suppress(OSError, AttributeError):  # no driver, or one that does not count
        gpu = _gpu_of_others(gpus, end.wall - begin.wall) if gpus else None
        found |= {} if gpu is None else {"gpu": gpu}
    return {name: round(share, 3) for name, share in found.items()}


class _Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (("pid", ctypes.c_uint), ("time", ctypes.c_ulonglong), ("sm", ctypes.c_uint),
                ("rest", ctypes.c_uint * 3))  # fmt: skip


def _gpu_of_others(count: int, seconds: float) -> float | None:
    """The largest share of one of `count` GPUs that other processes used in the last seconds; None
    where the driver does not know our own processes, as in some containers."""
    nvml, process, most = ctypes.CDLL("libnvidia-ml.so.1"), psutil.Process(), 0.0
    ours = {process.pid, *(child.pid for child in process.children(recursive=True))}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    indices = map(int, visible) if all(map(str.isdigit, visible)) else range(count)
    samples, since = (_Sample * MOST_SAMPLES)(), int((time.time() - seconds) * 1e6)
    failed = nvml.nvmlInit_v2()
    for index in [*indices][:count]:
        device, number = ctypes.c_void_p(), ctypes.c_uint(MOST_SAMPLES)
        failed = failed or nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        failed = failed or nvml.nvmlDeviceGetProcessUtilization(
            device, samples, ctypes.byref(number), ctypes.c_ulonglong(since)
        )
        found = [] if failed else samples[: number.value]
        if not any(sample.pid in ours for sample in found):
            return None
        of_process: dict[int, list[int]] = {}  # each has samples of its own, at its own times
        for sample in found:
            of_process.setdefault(sample.pid, []).append(sample.sm)
        most = max(most, sum(fmean(sm) for pid, sm in of_process.items() if pid not in ours) / 100)
    return min(1.0, most)
