"""GPipe on the spec's ranks: what torch does in one step (`parallel_plan`)."""

from __future__ import annotations

from baselines import parallel_plan
from workbench.methods.plan import Plan
from workbench.profile.profile import Profile
from workbench.runs.spec import RunSpec


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The plan of GPipe. Raises ValueError for what it cannot divide."""
    return parallel_plan.gpipe(spec, profile)
