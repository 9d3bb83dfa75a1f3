"""Facts of this machine, learned without importing torch: the command line must answer at once.

The *device class* is the part of a machine that a measurement depends on most, and goes into a
run's key: ``cpu:<model> x<cores>`` or ``cuda:<GPU name>``. Results of two classes therefore never
share a record.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import math
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as the driver names it."""

    name: str
    driver: str
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """The installed torch, read from its version file."""

    version: str
    cuda: str | None
    """CUDA version it was built for; None for a CPU build."""


@cache
def torch_build() -> TorchBuild | None:
    """The installed torch, or None."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    values: dict[str, str | None] = {}
    for node in ast.parse(
        (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    ).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant):
            values[target.id] = node.value.value
    return TorchBuild(version=values.get("__version__") or "unknown", cuda=values.get("cuda"))


@cache
def gpus() -> tuple[Gpu, ...]:
    """GPUs that CUDA would show this process, in its order; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    found = []
    for line in answer.stdout.splitlines():
        name, driver, mebibytes = (part.strip() for part in line.split(","))
        nbytes = int(mebibytes) * 2**20 if mebibytes.isdigit() else 0
        found.append(Gpu(name=name, driver=driver, memory_bytes=nbytes))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found)
    if visible.replace(",", "").isdigit():
        return tuple(found[int(i)] for i in visible.split(",") if int(i) < len(found))
    return tuple(found) if visible.startswith(("GPU-", "MIG-")) else ()


def resolve_device(device: str) -> str:
    """``cpu`` or ``cuda`` for ``auto``; raises ValueError for a GPU that cannot be used here."""
    build = torch_build()
    usable = bool(gpus()) and build is not None and build.cuda is not None
    if device == "cuda" and not usable:
        why = "the installed torch is a CPU build" if gpus() else "no NVIDIA GPU is visible"
        raise ValueError(f"device is cuda, but {why}; use --device cpu, or auto")
    return ("cuda" if usable else "cpu") if device == "auto" else device


def device_class(device: str) -> str:
    """``cpu:<model> x<cores>`` or ``cuda:<GPU name>`` for a resolved device."""
    return (
        f"cuda:{gpus()[0].name}" if device == "cuda" else f"cpu:{cpu_model()} x{available_cores()}"
    )


@cache
def cpu_model() -> str:
    """The processor's name as the system shows it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return platform.processor() or platform.machine()


def available_cores() -> int:
    """Cores this process may use: its affinity, capped by the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores or 1
    if quota == "max":
        return cores or 1
    return max(1, min(cores or 1, math.ceil(int(quota) / int(period))))


def host_memory_bytes() -> int:
    """Memory this process may use: the machine's, or its container's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total


def give_back_heap() -> None:
    """Return memory that Python has freed to the system, where the C library can (glibc keeps it
    for later, below what is still in use)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
