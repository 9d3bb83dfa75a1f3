"""Entry points of methods on this runtime: one device or several ranks plan and train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import Schedule


def trained_by(
    planner: Callable[[RunSpec, Profile], Plan], engine: str = "workbench"
) -> Callable[[RunSpec, Reporter, Path], Outcome]:
    """`train` of a method on one device."""

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        """Plan from this machine's profile (measured now if it is not stored yet), then train.

        `folder` is the run's own, ``RESULTS/runs/KEY``; profiles are kept in RESULTS for all runs.
        """
        from workbench.methods.history import check_start
        from workbench.methods.train import check_data, train_planned  # imports torch
        from workbench.profile.store import profile_for

        # A text that is not there should be said before minutes of measuring, not after.
        check_data(spec, report, folder)
        check_start(spec, folder)
        report.phase("profiling")
        profile = profile_for(
            spec, folder.parents[1], lambda text: report.event("profile", text=text)
        )
        plan = planner(spec, profile.with_link(spec.link_bytes_per_s))
        plan = replace(plan, spread=profile.hardware.spread)
        report.event("plan", **plan.to_dict())
        return train_planned(spec, plan, report, folder, engine=engine)

    return train


class Planner(Protocol):
    """A module that plans for several ranks, from profiles by samples in a micro-batch."""

    def check(self, spec: RunSpec, mode: str) -> None: ...

    def plan(self, spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str) -> Plan: ...

    def rehearsal(self, spec: RunSpec, profile: Profile) -> Schedule:
        """A schedule of a small model, which has four units a rank (profile/rehearsal.py)."""


class OnRanks(NamedTuple):
    """A method on several ranks."""

    plan: Callable[[RunSpec, Profile], Plan]
    plan_sizes: Callable[[RunSpec, Mapping[int, Profile]], Plan]
    train: Callable[[RunSpec, Reporter, Path], Outcome]


def on_ranks(planner: Planner, mode: str) -> OnRanks:
    """A mode of a planner, as a method."""

    def plan(spec: RunSpec, profile: Profile) -> Plan:
        """The plan from one profile; other micro-batch sizes in proportion."""
        return plan_sizes(spec, {profile.microbatch: profile})

    def plan_sizes(spec: RunSpec, profiles: Mapping[int, Profile]) -> Plan:
        """The plan from profiles by samples in a micro-batch, as a run makes it."""
        planner.check(spec, mode)
        return planner.plan(spec, profiles, mode=mode)

    def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
        """Train on the spec's ranks."""
        from workbench.methods.train_ranks import train

        return train(planner, spec, report, folder, mode=mode)

    return OnRanks(plan, plan_sizes, train)
