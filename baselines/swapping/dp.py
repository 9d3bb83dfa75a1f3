"""Data parallelism with swapping: every rank has all layers, and its share of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from baselines.swapping import planner
from workbench.methods.harmony.packs import DP
from workbench.methods.plan import Plan
from workbench.profile.profile import Profile
from workbench.runs.record import Outcome
from workbench.runs.report import Reporter
from workbench.runs.spec import RunSpec


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The plan from one profile; other micro-batch sizes in proportion."""
    return plan_sizes(spec, {profile.microbatch: profile})


def plan_sizes(spec: RunSpec, profiles: Mapping[int, Profile]) -> Plan:
    """The plan from profiles by samples in a micro-batch, as a run makes it."""
    planner.check(spec, DP)
    return planner.plan(spec, profiles, mode=DP)


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train on the spec's ranks."""
    from workbench.methods.harmony.train import train_planned

    return train_planned(planner, spec, report, folder, mode=DP)
