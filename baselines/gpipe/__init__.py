"""GPipe (Huang et al., NeurIPS 2019) by torch: all forward passes, then all backward passes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from baselines.parallel_plan import gpipe as plan
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec

__all__ = ["plan", "train", "training"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with a stage of the model on every rank's device."""
    from baselines import pipeline  # imports torch

    return pipeline.train(__name__, spec, report, folder)


def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
    """In a rank's process: the training of its stage."""
    from torch.distributed.pipelining import ScheduleGPipe

    from baselines import pipeline

    return pipeline.training(spec, report, folder, ScheduleGPipe)
