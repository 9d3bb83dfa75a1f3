"""From a placement to a plan: build the schedule, prove it, simulate it, and say in words what
binds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.core.bytesize import format_bytes
from workbench.methods.offload.placement import Placement
from workbench.methods.offload.program import build
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile, ProfileCosts
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, Schedule
from workbench.schedule.simulate import Simulation, simulate
from workbench.schedule.validate import validate

STEPS = 4
"""Simulated steps: the first warms up, the mean of the others is the steady state."""

LANE_NAMES = {
    COMPUTE: "compute",
    H2D: "the link to the device",
    D2H: "the link to the host",
    HOST: "the host optimizer",
    DISK_IN: "disk reads",
    DISK_OUT: "disk writes",
}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A placement with its proved memory and predicted time."""

    placement: Placement
    schedule: Schedule
    peak: dict[str, int]
    """Bytes no execution exceeds, per tier."""
    simulation: Simulation

    @property
    def step_seconds(self) -> float:
        return self.simulation.step_seconds


def evaluate(placement: Placement, profile: Profile, budgets: Budgets, settings: dict) -> Candidate:
    """Build, prove and simulate one placement (whether or not it fits the budgets)."""
    schedule = build(placement, profile, settings=settings)
    peak = validate(schedule).peak_bytes[0]
    if budgets.lacking(peak) is None:
        schedule = build(placement, profile, budgets=budgets.to_dict(), settings=settings)
    costs = ProfileCosts(profile, recorded=placement.replay)
    return Candidate(
        placement=placement,
        schedule=schedule,
        peak=peak,
        simulation=simulate(schedule, costs, steps=STEPS),
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
        simulated=candidate.simulation.events,
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
    busy[HOST] /= max(1, candidate.placement.host_workers)
    lane = max(busy, key=busy.get)
    step = max(step, busy[lane])  # a few simulated steps may end before a lane that lags behind
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
