"""A method's doors: the plan is made before, by the search, and trained on ranks.

What needs torch is imported when it is used.
"""

from __future__ import annotations

from pathlib import Path

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """Raises ValueError: a profile of layers does not tell what operators take."""
    raise ValueError(
        f"{spec.method} trains a plan whose costs are those of operators, which a profile of "
        "layers does not have; the plan's own search predicts it, and a run measures it"
    )


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train the spec's plan on its ranks. Raises ValueError for a plan that cannot be trained."""
    from workbench.methods.aceso.run import train

    return train(spec, report, folder)
