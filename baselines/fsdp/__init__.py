"""FSDP2 with its CPU offload: torch's own way to train what does not fit on the device."""

from __future__ import annotations

from pathlib import Path

from baselines.fsdp.planner import plan
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec

__all__ = ["plan", "train"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with FSDP2; its process group is gone when this returns or raises."""
    from baselines.fsdp.run import train as train_torch  # imports torch

    return train_torch(spec, report, folder)
