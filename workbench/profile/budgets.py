"""Bytes that a run may use of each tier of memory: as its spec says, else as the machine has."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.spec import RunSpec
from workbench.profile.profile import Hardware, Profile
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, TIERS

FRAGMENTS, FRAGMENT_BYTES = 20, 768 << 20
"""Bytes of the budget left to a GPU's allocator, for pieces too small for a request: one part in
`FRAGMENTS`, at most `FRAGMENT_BYTES`. Seen: 317 MiB of 32 GiB at batch 4, 700 of 16 GiB at batch
16."""
LAUNCHED_FRAGMENTS, LAUNCHED_BYTES = 8, 120 << 20
"""No less than that, or one part in so many of a small budget, where passes are launched: they make
and free all that they work in. Seen: 101 MiB of 1 GiB, with passes of 16 samples."""


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Bytes a run may use; None for no limit (the disk's free space is not ours to judge)."""

    device: int
    host: int
    disk: int | None = None

    @classmethod
    def of(cls, spec: RunSpec, profile: Profile, *, allocated: bool = False) -> Budgets:
        """The spec's limits, otherwise the machine's memory. `allocated`: by torch's allocator on
        this runtime, which needs a little more on a GPU than a plan asks for."""
        hardware = profile.hardware
        device = spec.device_memory or hardware.device_bytes
        return cls(
            device=device - (_fragments(device, hardware)[0] if allocated else 0),
            host=spec.host_memory or hardware.host_bytes,
            disk=spec.disk_memory,
        )

    @staticmethod
    def launched(spec: RunSpec, profile: Profile) -> int:
        """How much less of the device than `of` allows is for launched passes."""
        hardware = profile.hardware
        recorded, launched = _fragments(spec.device_memory or hardware.device_bytes, hardware)
        return launched - recorded

    def lacking(self, peak: dict[str, int]) -> str | None:
        """The tier a peak exceeds by the largest factor, None when it fits."""
        limits = {DEVICE: self.device, HOST_TIER: self.host, DISK: self.disk}
        over = {t: peak[t] / limits[t] for t in TIERS if limits[t] and peak[t] > limits[t]}
        return max(over, key=over.get) if over else None

    def to_dict(self) -> dict[str, int]:
        limits = {DEVICE: self.device, HOST_TIER: self.host, DISK: self.disk}
        return {tier: limit for tier, limit in limits.items() if limit is not None}


def _fragments(device: int, hardware: Hardware) -> tuple[int, int]:
    """Bytes of a device that are left to the allocator of this runtime, where there is one: of any
    passes, and of launched ones."""
    if hardware.device != "cuda" or hardware.source in ("published", "datasheet", "benchmark"):
        return 0, 0
    left = min(device // FRAGMENTS, FRAGMENT_BYTES)
    return left, max(left, min(device // LAUNCHED_FRAGMENTS, LAUNCHED_BYTES))
