"""1F1B by torch (PipeDream with flushes: Narayanan et al., ICML 2021): as soon as a stage can, it
runs a backward pass after every forward pass, so it holds the activations of few micro-batches."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from baselines.one_f_one_b.planner import check, plan
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec

__all__ = ["plan", "train", "training"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with a stage of the model on every rank's device.

    Raises ValueError where there are fewer micro-batches than stages.
    """
    from baselines import pipeline  # imports torch

    check(spec)
    return pipeline.train(__name__, spec, report, folder)


def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
    """In a rank's process: the training of its stage."""
    from torch.distributed.pipelining import Schedule1F1B

    from baselines import pipeline

    return pipeline.training(spec, report, folder, Schedule1F1B)
