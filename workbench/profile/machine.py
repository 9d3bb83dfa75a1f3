"""The machine a measurement holds for, and what makes it hold no longer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.core import host
from workbench.core.bytesize import format_bytes
from workbench.core.host import available_cores

USABLE = 0.9
"""Share of a memory that tiers may count on; the rest is the system's and the framework's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Facts of a machine, besides the program, on which speed and memory of a run depend."""

    device: str
    """``cpu`` or ``cuda``."""
    processor: str
    cores: int
    memory_bytes: int
    """Bytes of the host's memory, or of its container's limit."""
    gpu: str | None
    """None where the processor plays the device."""
    gpu_bytes: int
    torch: str
    """Version, without the build's suffix."""

    @property
    def name(self) -> str:
        """For people: ``AMD EPYC, 2 cores`` or ``NVIDIA H200 (AMD EPYC, 16 cores)``."""
        host = f"{self.processor}, {self.cores} core{'s' if self.cores > 1 else ''}"
        return f"{self.gpu} ({host})" if self.gpu else host

    @property
    def folder(self) -> str:
        """Name of the folder for measurements of this class of device."""
        text = host.device_class(self.device).lower()
        return re.sub(r"[^a-z0-9]+", "-", text).strip("-")

    def difference(self, other: Machine) -> str | None:
        """In words, why a measurement of `other` does not hold here; None if it does."""
        for field in ("device", "processor", "cores", "gpu", "torch"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                return f"its {field} is {theirs}, here it is {mine}"
        for field in ("memory_bytes", "gpu_bytes"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if abs(mine - theirs) > 0.05 * mine:
                what = "memory" if field == "memory_bytes" else "GPU memory"
                return f"its {what} is {format_bytes(theirs)}, here it is {format_bytes(mine)}"
        return None

    def tiers(self) -> tuple[int, int]:
        """Usable bytes of the device and of the host tier; a machine without a GPU is halved."""
        usable = int(self.memory_bytes * USABLE)
        if self.gpu:
            return int(self.gpu_bytes * USABLE), usable
        return usable // 2, usable // 2


def this_machine(device: str = "auto") -> Machine:
    """The machine this runs on. Raises ValueError for a device that cannot be used here."""
    device = host.resolve_device(device)
    gpu = host.gpus()[0] if device == "cuda" else None
    return Machine(
        device=device,
        processor=host.cpu_model(),
        cores=available_cores(),
        memory_bytes=host.host_memory_bytes(),
        gpu=gpu.name if gpu else None,
        gpu_bytes=gpu.memory_bytes if gpu else 0,
        torch=host.torch_build().version.partition("+")[0],
    )
