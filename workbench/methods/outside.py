"""Plans of schedules that our builder did not make: what other people's systems do in a step.

Their schedules are proved and simulated like ours, but their allocators are not ours: what a
library's device memory must hold can be more than its buffers, so a plan fits when the memory that
is *held* does. Such a schedule is for prediction only; nobody here executes it.
"""

from __future__ import annotations

from dataclasses import replace

from workbench.methods.draft import Layout
from workbench.methods.evaluate import STEPS, Candidate, as_plan
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile, ProfileCosts
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
) -> Plan:
    """The plan that a finished schedule amounts to.

    `held_device_bytes` is memory that the device's allocator keeps beside the permanent buffers and
    can use again for passing ones; `reserved_factor` what fragments add to the peak. The larger of
    the two decides whether the plan fits, and is in the settings as ``reserved_bytes``. A schedule
    that is known not to be exact training is simulated only: `exact` False.
    """
    simulation = simulate(schedule, ProfileCosts(profile), steps=STEPS)
    peak = (validate(schedule) if exact else simulation).peak_bytes[0]
    steady = schedule.static_bytes(DEVICE)
    reserved = max(round(peak[DEVICE] * reserved_factor), steady + held_device_bytes)
    settings = {"steady_bytes": steady, "reserved_bytes": reserved, **(settings or {})}
    needed = {**peak, DEVICE: reserved}
    lacking = budgets.lacking(needed)
    candidate = Candidate(
        layout=Layout(method=method, resident=frozenset(), slots=0),
        schedule=replace(schedule, settings=settings, budgets={} if lacking else budgets.to_dict()),
        peak=needed,
        simulation=simulation,
    )
    return as_plan(candidate, budgets, method=method, window=window, notes=notes)
