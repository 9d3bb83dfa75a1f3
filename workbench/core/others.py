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
from dataclasses import dataclass

import psutil

from workbench.core.host import available_cores

LEAST_S = 0.25
"""Shortest time of which the system's accounts, kept in hundredths of a second, tell enough."""
MOST_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Reading:
    """Accounts of a moment, in seconds."""

    wall: float
    idle: float
    """Of all cores."""
    own: float
    """Processor time of our processes, those that have ended among them."""


def read(tree: bool = True) -> Reading:
    """The accounts now, of this process and, with `tree`, of all that it started."""
    system, own = psutil.cpu_times(), os.times()
    used = own.user + own.system + (own.children_user + own.children_system if tree else 0.0)
    for process in psutil.Process().children(recursive=True) if tree else ():
        with suppress(psutil.Error):  # it has ended meanwhile: its parent counts it
            used += sum(process.cpu_times()[:4])
    return Reading(time.perf_counter(), system.idle + getattr(system, "iowait", 0.0), used)


def cores_of_others(begin: Reading, end: Reading) -> float:
    """Cores that others used between two readings, on average."""
    elapsed = end.wall - begin.wall
    if elapsed <= 0:
        return 0.0
    return max(0.0, available_cores() - (end.idle - begin.idle + end.own - begin.own) / elapsed)


class OthersWatch:
    """What others use while a run's steps are timed: `begin` when its first step has ended, and
    `shares` when its last one has."""

    def __init__(self, gpus: int = 0) -> None:
        """`gpus`: how many the run computes on."""
        self._gpus = gpus
        self._since_start = read()
        self._began: tuple[Reading, float] | None = None

    def begin(self) -> None:
        """The steps that count begin now."""
        self._began = read(), time.time()

    def shares(self) -> dict[str, float]:
        """``cores`` and, where it can be told, ``gpu``: the share that others used, 0 to 1. Steps
        too short to tell of are judged by all of the run; empty where that is too short, too."""
        if self._began is None:
            return {}
        (begin, at), end = self._began, read()
        begin = begin if end.wall - begin.wall >= LEAST_S else self._since_start
        if end.wall - begin.wall < LEAST_S:
            return {}
        found = {"cores": min(1.0, cores_of_others(begin, end) / available_cores())}
        with suppress(OSError, AttributeError):  # no driver, or one that does not count
            gpu = _gpu_of_others(self._gpus, at) if self._gpus else None
            found |= {} if gpu is None else {"gpu": gpu}
        return {name: round(share, 3) for name, share in found.items()}


class _Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (
        ("pid", ctypes.c_uint), ("time", ctypes.c_ulonglong), ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint), ("encoder", ctypes.c_uint), ("decoder", ctypes.c_uint),
    )  # fmt: skip


def _gpu_of_others(count: int, since: float) -> float | None:
    """The largest share of one of the run's GPUs that other processes used since a moment (seconds
    since 1970); None where the driver does not know our own processes, as in some containers."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2():
        return None
    process, shares = psutil.Process(), []
    ours = {process.pid, *(child.pid for child in process.children(recursive=True))}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    indices = visible.split(",") if visible.replace(",", "").isdigit() else map(str, range(count))
    for index in [*indices][:count]:
        device, number = ctypes.c_void_p(), ctypes.c_uint(MOST_SAMPLES)
        samples = (_Sample * MOST_SAMPLES)()
        asked = ctypes.c_ulonglong(int(since * 1e6))
        if nvml.nvmlDeviceGetHandleByIndex_v2(int(index), ctypes.byref(device)):
            return None
        if nvml.nvmlDeviceGetProcessUtilization(device, samples, ctypes.byref(number), asked):
            return None
        found = samples[: number.value]
        if not any(sample.pid in ours for sample in found):
            return None
        times = {sample.time for sample in found}
        shares.append(sum(s.sm for s in found if s.pid not in ours) / 100 / len(times))
    return min(1.0, max(shares)) if shares else None
