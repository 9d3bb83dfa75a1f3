"""Aceso (EuroSys'24): tp, dp, partition and recomputation of every operator, uneven stages.

A profile database (database.py) tells the cost of each operator; costs.py makes of it time and
memory of a plan (plan.py); search.py improves a plan by alleviating its bottleneck. What
needs torch (run.py) is imported when it is used.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train the spec's plan on its ranks. Raises ValueError for a plan that cannot be trained."""
    from workbench.methods.aceso.run import train

    return train(spec, report, folder)


def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
    """In a rank's process: the training of its shards."""
    from workbench.methods.aceso.run import training

    return training(spec, report, folder)
