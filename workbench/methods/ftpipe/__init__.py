"""FTPipe (Eliad et al., ATC'21): stages of a model on any device, trained asynchronously.

What needs torch is imported when it is used.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from workbench.core.record import Outcome, RunRecord
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model import units_of
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def check(spec: RunSpec) -> None:
    """Raise ValueError for a cut of other units than the model's, ranks without a unit, and a
    partitioner that is not installed."""
    from workbench.methods.ftpipe.planner import stages_of
    from workbench.partition.metis import check_package

    units = units_of(spec.model)
    if spec.options.sizes:
        stages_of(spec, units)
    elif spec.options.partitioner == "metis":
        check_package()
    if spec.ranks > units:
        raise ValueError(f"ranks is {spec.ranks}; no more than the model's {units} units have any")


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The plan. Raises ValueError for stages that cannot be."""
    from workbench.methods.ftpipe.planner import plan

    return plan(spec, profile)


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train on the spec's ranks. Raises ValueError for what FTPipe cannot train."""
    from workbench.methods.ftpipe.run import train

    return train(spec, report, folder)


def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
    """In a rank's process: the training of its stages."""
    from workbench.methods.ftpipe.run import FtpipeTraining

    return closing(FtpipeTraining(spec, report, folder))


def results_of(record: RunRecord) -> tuple[str, dict[str, Any]]:
    """Name and contents of the file that the original system would have written."""
    from workbench.methods.ftpipe.results_json import results_of

    return results_of(record)
