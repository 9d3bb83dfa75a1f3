"""From a layout to a plan: build the schedule, prove it, simulate it, and say in words what
binds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.core.bytesize import format_bytes
from workbench.core.spec import RunSpec
from workbench.methods.draft import Layout
from workbench.methods.program import build
from workbench.profile.profile import Hardware, Profile, ProfileCosts
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, TIERS, Schedule
from workbench.schedule.simulate import Simulation, simulate
from workbench.schedule.validate import validate

STEPS = 4
"""Simulated steps: the first warms up, the mean of the others is the steady state."""

FRAGMENTS, FRAGMENT_BYTES = 20, 768 << 20
"""What is left to a GPU's allocator, for pieces too small for what is asked: one part in so many of
the budget, up to so many bytes. Seen: 317 MiB of 32 GiB at batch 4, 700 of 16 GiB at batch 16."""
LAUNCHED_FRAGMENTS, LAUNCHED_BYTES = 8, 120 << 20
"""No less than that, or one part in so many of a small budget, where passes are launched: they make
and free all that they work in. Seen: 101 MiB of 1 GiB, with passes of 16 samples."""

LANE_NAMES = {
    COMPUTE: "compute",
    H2D: "the link to the device",
    D2H: "the link to the host",
    HOST: "the host optimizer",
    DISK_IN: "disk reads",
    DISK_OUT: "disk writes",
}


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Bytes a run may use; None for no limit (the disk's free space is not ours to judge)."""

    device: int
    host: int
    disk: int | None = None

    @classmethod
    def of(cls, spec: RunSpec, profile: Profile, *, allocated: bool = False) -> Budgets:
        """What the spec allows, else what the machine has. `allocated`: by torch's allocator on
        this runtime, which needs a little more on a GPU than a plan asks for.
        """
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
    if hardware.device != "cuda" or hardware.source != "measured":
        return 0, 0
    left = min(device // FRAGMENTS, FRAGMENT_BYTES)
    return left, max(left, min(device // LAUNCHED_FRAGMENTS, LAUNCHED_BYTES))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout with its proved memory and predicted time."""

    layout: Layout
    schedule: Schedule
    peak: dict[str, int]
    """Bytes no execution exceeds, per tier."""
    simulation: Simulation

    @property
    def step_seconds(self) -> float:
        return self.simulation.step_seconds


def evaluate(layout: Layout, profile: Profile, budgets: Budgets, settings: dict) -> Candidate:
    """Build, prove and simulate one layout (whether or not it fits the budgets)."""
    schedule = build(layout, profile, settings=settings)
    peak = validate(schedule).peak_bytes[0]
    if budgets.lacking(peak) is None:
        schedule = build(layout, profile, budgets=budgets.to_dict(), settings=settings)
    return Candidate(
        layout=layout,
        schedule=schedule,
        peak=peak,
        simulation=simulate(schedule, ProfileCosts(profile), steps=STEPS),
    )


def as_plan(
    candidate: Candidate,
    budgets: Budgets,
    *,
    method: str,
    window: int | None = None,
    resident: int | None = None,
    notes: tuple[str, ...] = (),
    whole: bool = False,
) -> Plan:
    """The plan a candidate amounts to. `whole` when nothing is offloaded."""
    lacking = budgets.lacking(candidate.peak)
    return Plan(
        method=method,
        fits=lacking is None,
        schedule=candidate.schedule,
        step_seconds=candidate.step_seconds,
        peak_bytes=candidate.simulation.peak_bytes[0],
        moved_bytes=candidate.schedule.moved_bytes(),
        binding=binding(candidate, budgets, whole=whole),
        lacking=lacking,
        window=window,
        resident=resident,
        settings=dict(candidate.schedule.settings),
        notes=notes,
    )


def binding(candidate: Candidate, budgets: Budgets, *, whole: bool) -> str:
    """The constraint that decides, in words."""
    lacking = budgets.lacking(candidate.peak)
    if lacking is not None:
        limit = budgets.to_dict()[lacking]
        return (
            f"{lacking} memory: the smallest layout needs {format_bytes(candidate.peak[lacking])}, "
            f"the budget is {format_bytes(limit)}"
        )
    simulation, step = candidate.simulation, candidate.step_seconds
    busy = {lane: simulation.busy_seconds(lane) for lane in LANE_NAMES}
    busy[HOST] /= max(1, candidate.layout.host_workers)
    lane = max(busy, key=busy.get)
    share = busy[lane] / step if step else 0.0
    compute = busy[COMPUTE]
    if lane == COMPUTE:
        words = f"compute: busy {share:.0%} of a step of {step:.4g} s"
        if share < 0.97:
            words += f", {step - compute:.3g} s exposed by dependencies and memory"
    else:
        words = (
            f"{LANE_NAMES[lane]}: busy {busy[lane]:.4g} s ({share:.0%}) of a step of {step:.4g} s, "
            f"in which compute takes {compute:.4g} s"
        )
    if not whole:
        free = budgets.device - candidate.peak[DEVICE]
        words += f"; {format_bytes(free)} of device memory is left"
    return words


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest integer in [low, high] that fits, where smaller ones fit whenever larger ones
    do.
    """
    if not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
