"""Plain training on this runtime: what Megatron-LM does on one device, without Megatron."""

from __future__ import annotations

from pathlib import Path

from workbench.methods.resident.planner import plan
from workbench.runs.record import Outcome
from workbench.runs.report import Reporter
from workbench.runs.spec import RunSpec

__all__ = ["plan", "train"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with everything on the device."""
    from workbench.methods.driver import train_with

    return train_with(plan, spec, report, folder, engine="workbench (plain resident training)")
