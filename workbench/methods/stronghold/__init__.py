"""STRONGHOLD: a working window of layers on the device, everything else on the host or disk."""

from __future__ import annotations

from pathlib import Path

from workbench.methods.stronghold.planner import Planner, fits, plan
from workbench.runs.record import Outcome
from workbench.runs.report import Reporter
from workbench.runs.spec import RunSpec

__all__ = ["Planner", "fits", "plan", "train"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Profile, plan, and train under the plan."""
    from workbench.methods.driver import train_with

    return train_with(plan, spec, report, folder)
