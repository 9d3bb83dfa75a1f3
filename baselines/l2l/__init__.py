"""L2L, run by this project's own runtime under L2L's schedule."""

from __future__ import annotations

from pathlib import Path

from baselines.l2l.planner import plan
from workbench.runs.record import Outcome
from workbench.runs.report import Reporter
from workbench.runs.spec import RunSpec

__all__ = ["plan", "train"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train layer by layer."""
    from workbench.methods.driver import train_with

    return train_with(plan, spec, report, folder)
