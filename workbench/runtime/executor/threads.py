"""Divides the cores: one rule, so that all methods are compared on the same machine.

With a GPU the device computes by itself and most cores serve the host. A quarter of them is left to
the lanes that launch kernels and copies: three quarters already use all of host memory's bandwidth
(16 cores of an H200 server), and a launch that waits for a core leaves the GPU idle. Without one,
host memory and half of the cores play the device: the compute lane runs torch with the first half,
host updates run on the other. The rule stands here once; methods, baselines and the profile ask.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.core.host import available_cores


class Threads(NamedTuple):
    """How many threads each side may keep busy."""

    compute: int
    """The device's, where the processor plays it; 1 with a GPU, to launch kernels."""
    host: int
    """Host updates' threads, all workers together."""


def cpu_threads(device: str = "cpu", cores: int | None = None) -> Threads:
    """The rule, for `device` (a type: ``cpu`` or ``cuda``) and by default this machine's cores.

    >>> cpu_threads("cpu", cores=16), cpu_threads("cpu", cores=1), cpu_threads("cuda", cores=16)
    (Threads(compute=8, host=8), Threads(compute=1, host=1), Threads(compute=1, host=12))
    """
    cores = available_cores() if cores is None else cores
    if device != "cpu":
        return Threads(compute=1, host=max(1, cores - cores // 4))
    compute = max(1, cores // 2)
    return Threads(compute=compute, host=max(1, cores - compute))


def update_threads(device: str, ranks: int, cores: int | None = None) -> int:
    """Threads for the host updates of each of several ranks, which share the host's part of the
    cores. Where the processor plays their devices, a rank has a share of the cores for all it does.

    >>> update_threads("cuda", 2, cores=32), update_threads("cpu", 2, cores=4)
    (12, 2)
    """
    cores = available_cores() if cores is None else cores
    return max(1, (cores if device == "cpu" else cpu_threads(device, cores).host) // ranks)


def use_device_threads(device: str = "cpu") -> Threads:
    """Make torch compute with the device's share of the cores, in every thread that follows."""
    import torch

    threads = cpu_threads(device)
    if device == "cpu":
        torch.set_num_threads(threads.compute)
        # A thread that has not asked yet takes what was set last, anywhere: a lane's 1.
        torch.get_num_threads()
    return threads


def use_rank_threads(device: str, ranks: int) -> None:
    """Set the threads of the process of one of several ranks. With GPUs torch still computes on the
    host (samples are put together there, DeepSpeed updates), and a thread a core in every rank are
    too many for it: each waits for all of its own."""
    import torch

    use_device_threads(device)
    if device != "cpu":
        torch.set_num_threads(max(1, available_cores() // ranks))


POLITENESS = 10
"""Niceness of the threads of a host update where a GPU computes. They keep every core busy, and a
kernel launch that waits for a core leaves the GPU idle."""


def use_lane_thread(device: str = "cpu", cores: int = 1) -> None:
    """Make torch work in the calling thread alone: for a lane that runs beside the compute lane.
    One that takes turns with it has as many cores.

    Every thread that calls torch gets a pool of its own, as large as the device's share. A copy
    lane that used one would take the cores from the compute lane, and hold them while its pool
    waits for the next copy: on 16 cores that made whole steps half as long again.
    """
    import torch

    if device == "cpu":
        torch.set_num_threads(cores)
