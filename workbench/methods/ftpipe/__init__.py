"""FTPipe (Eliad et al., ATC'21): stages of a model on any device, trained asynchronously.

Imports no torch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.planner import plan

__all__ = ["plan", "train", "training"]


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train on the spec's ranks. Raises ValueError for what FTPipe cannot train."""
    from workbench.methods.ftpipe.run import train

    return train(spec, report, folder)


def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
    """In a rank's process: the training of its stages."""
    from workbench.methods.ftpipe.run import training

    return training(spec, report, folder)
