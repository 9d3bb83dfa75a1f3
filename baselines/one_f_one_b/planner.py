"""1F1B on the spec's ranks: what torch does in one step (`parallel_plan`)."""

from __future__ import annotations

from baselines import parallel_plan
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The plan of 1F1B. Raises ValueError for what it cannot divide."""
    check(spec)
    return parallel_plan.one_f_one_b(spec, profile)


def check(spec: RunSpec) -> None:
    """Raise ValueError where there are fewer micro-batches than stages."""
    if spec.microbatches < spec.ranks:
        raise ValueError(
            f"1F1B needs a micro-batch for each of {spec.ranks} stages; microbatches is "
            f"{spec.microbatches}"
        )
