"""Plans of schedules that our builder did not make: what other people's systems do in a step.

Their schedules are proved and simulated like ours, but their allocators are not ours: what a
library's device memory must hold can be more than its buffers, so a plan fits when the memory that
is *held* does. Such a schedule is for prediction only; nobody here executes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from workbench.methods.offload.evaluate import STEPS, Candidate, as_plan
from workbench.methods.offload.placement import Placement
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile, ProfileCosts
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, Schedule
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate


def plan_of(
    schedule: Schedule,
    profile: Profile,
    budgets: Budgets,
    *,
    method: str,
    held_device_bytes: int = 0,
    reserved_factor: float = 1.0,
    window: int | None = None,
    settings: dict | None = None,
    notes: tuple[str, ...] = (),
    exact: bool = True,
    costs: ProfileCosts | None = None,
) -> Plan:
    """The plan that a finished schedule amounts to.

    `held_device_bytes` is memory that the device's allocator keeps beside the permanent buffers and
    can use again for passing ones; `reserved_factor` what fragments add to the peak. The larger of
    the two decides whether the plan fits, and is in the settings as ``reserved_bytes``. A schedule
    that is known not to be exact training is simulated only: `exact` False. `costs` are the
    profile's where none are given.
    """
    simulation = simulate(schedule, costs or ProfileCosts(profile), steps=STEPS)
    peak = (validate(schedule) if exact else simulation).peak_bytes[0]
    steady = schedule.static_bytes(DEVICE)
    reserved = max(round(peak[DEVICE] * reserved_factor), steady + held_device_bytes)
    settings = {"steady_bytes": steady, "reserved_bytes": reserved, **(settings or {})}
    needed = {**peak, DEVICE: reserved}
    lacking = budgets.lacking(needed)
    candidate = Candidate(
        placement=Placement(method=method, resident=frozenset(), slots=0),
        schedule=replace(schedule, settings=settings, budgets={} if lacking else budgets.to_dict()),
        peak=needed,
        simulation=simulation,
    )
    return as_plan(candidate, budgets, method=method, window=window, notes=notes)


class OneBatch(ScheduleBuilder):
    """Passes and copies of units, for a batch in one piece that recomputes every unit but the
    head."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.profile, self.head = profile, len(profile.units) - 1

    def compute(self, kind: Kind, unit: int, after: Iterable[str] = ()) -> None:
        """A pass of a unit: it takes its output or output gradient and frees its inputs."""
        cost = self.profile.units[unit]
        scratch = {
            Kind.FORWARD: cost.forward_scratch_bytes,
            Kind.RECOMPUTE: cost.recompute_scratch_bytes,
            Kind.BACKWARD: cost.backward_scratch_bytes,
        }[kind]
        forward, backward = kind is Kind.FORWARD, kind is Kind.BACKWARD
        takes = [self.scratch(act(kind, unit, 0), scratch)]
        frees: list[str] = []
        if forward and unit < self.head:
            takes.append(self.buffer(name.activation(unit + 1, 0), DEVICE, cost.output_bytes))
        if kind is Kind.RECOMPUTE or (forward and unit == self.head):
            takes.append(self.buffer(name.kept(unit, 0), DEVICE, cost.kept_bytes))
        if backward and unit:
            gradient = name.output_gradient(unit - 1, 0)
            takes.append(self.buffer(gradient, DEVICE, cost.input_bytes))
            frees += [name.activation(unit, 0), name.kept(unit, 0)]
        if backward and unit < self.head:
            frees.append(name.output_gradient(unit, 0))
        self.add(kind, unit, COMPUTE, micro=0, after=after, takes=takes, frees=frees)

    def copy(self, kind: Kind, unit: int, lane: str, *, times: int = 1, **fields: Any) -> None:
        """A copy of as many bytes as a unit's weights have, `times` over."""
        nbytes = times * self.profile.units[unit].parameters * self.profile.weight_bytes
        self.add(kind, unit, lane, nbytes=nbytes, **fields)
