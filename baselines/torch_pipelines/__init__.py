"""torch's own pipelines: GPipe, 1F1B, interleaved 1F1B and interleaved zero bubble.

Each is a class of torch.distributed.pipelining; which one, the name of the method says. torch plans
for itself: GPipe and 1F1B are predicted from the schedule that it is known to run, the two others
are measured only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from baselines.late import refuse_host_activations
from baselines.stages import check_stages
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan

SCHEDULES = {
    "torch-gpipe": "ScheduleGPipe",
    "torch-1f1b": "Schedule1F1B",
    "torch-interleaved": "ScheduleInterleaved1F1B",
    "torch-zero-bubble": "ScheduleInterleavedZeroBubble",
}
"""Method -> class of torch."""
HALVED = "torch-zero-bubble"
"""Its backward passes come in halves, which torch cannot do to compiled layers."""


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The plan of GPipe or 1F1B. Raises ValueError for what a schedule cannot divide, for weights
    that other stages than the first and the last share, and for the others."""
    from baselines import parallel_plan

    check(spec)
    if spec.method in ("torch-gpipe", "torch-1f1b"):
        return parallel_plan.pipeline(spec, profile, spec.method.removeprefix("torch-"))
    raise ValueError(
        f"torch plans {spec.method} by itself, and how is not predicted; a run measures it"
    )


def check(spec: RunSpec) -> None:
    """Raise ValueError for micro-batches that torch's schedule cannot divide, for stages of other
    ranks or units, and activations that would go to the host."""
    refuse_host_activations(spec, "a pipeline")
    check_stages(spec, spec.ranks * getattr(spec.options, "chunks", 1))
    if spec.method == "torch-1f1b" and spec.microbatches < spec.ranks:
        raise ValueError(
            f"torch's 1F1B needs a micro-batch for each of {spec.ranks} stages; microbatches is "
            f"{spec.microbatches}"
        )
    if hasattr(spec.options, "chunks") and spec.microbatches % spec.ranks:
        raise ValueError(
            f"{spec.method} on {spec.ranks} ranks needs a multiple of {spec.ranks} micro-batches; "
            f"microbatches is {spec.microbatches}"
        )
    if spec.method == HALVED and spec.compile == "on":
        raise ValueError(
            "compile is on; torch halves no backward pass of compiled layers: leave it at auto or "
            "off"
        )


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with stages of the model on every rank's device. Raises ValueError as `check` does."""
    from baselines import pipeline  # imports torch

    check(spec)
    return pipeline.train(__name__, spec, report, folder)


def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
    """In a rank's process: the training of its stages."""
    from torch.distributed import pipelining

    from baselines import pipeline

    if spec.method == HALVED:
        spec = spec.with_(compile="off")
    return pipeline.training(spec, report, folder, getattr(pipelining, SCHEDULES[spec.method]))
