"""A mode of a planner whose layers visit from shared host memory, as a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.planner import Planner
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def method(planner: Planner, mode: str) -> tuple[Callable, Callable, Callable]:
    """`plan`, `plan_sizes` and `train` of the method."""

    def plan(spec: RunSpec, profile: Profile) -> Plan:
        """The plan from one profile; other micro-batch sizes in proportion."""
        return plan_sizes(spec, {profile.microbatch: profile})

    def plan_sizes(spec: RunSpec, profiles: Mapping[int, Profile]) -> Plan:
        """The plan from profiles by samples in a micro-batch, as a run makes it."""
        planner.check(spec, mode)
        return planner.plan(spec, profiles, mode=mode)

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        """Train on the spec's ranks."""
        from workbench.methods.harmony.train import train

        return train(planner, spec, report, folder, mode=mode)

    return plan, plan_sizes, train
