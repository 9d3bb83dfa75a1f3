"""Ordinary data parallelism: the whole model on every device, torch's DistributedDataParallel."""

from __future__ import annotations

from pathlib import Path

from baselines.parallel_plan import data_parallel as plan
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec

__all__ = ["plan", "train"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train on the spec's ranks, each with everything on its device."""
    from baselines.data_parallel.run import train as train_torch  # imports torch

    return train_torch(spec, report, folder)
