"""Plain training in torch, everything on the device: the roof that offloading is measured by."""

from __future__ import annotations

from pathlib import Path

from baselines.plain.planner import plan
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec

__all__ = ["plan", "train"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with everything on the device."""
    from baselines.plain_training import train as train_torch  # imports torch

    return train_torch(spec, report, folder)
