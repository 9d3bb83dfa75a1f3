"""Whether a schedule was planned for this very model and batch.

A schedule is data that may come from a file or an earlier plan, and sizes are all it says of the
model. Laid out for another one it would train something else, or fail far from the cause.
"""

from __future__ import annotations

import torch

from workbench.runs.spec import RunSpec
from workbench.runtime.storage import Flat
from workbench.schedule import buffers as name
from workbench.schedule.schedule import Schedule


def check_match(schedule: Schedule, flats: list[Flat], dtype: torch.dtype, spec: RunSpec) -> None:
    """Raise ValueError unless units, weights, micro-batches and tokens are those of the run."""
    if schedule.num_units != len(flats):
        raise ValueError(
            f"the schedule {schedule.name!r} has {schedule.num_units} units, the model "
            f"{len(flats)}; plan again for this model"
        )
    for unit, flat in enumerate(flats):
        buffer = schedule.buffers.get(name.weights(unit))
        planned, needed = buffer.nbytes if buffer else 0, flat.numel * dtype.itemsize
        if planned != needed:
            raise ValueError(
                f"the schedule {schedule.name!r} has {planned} bytes for the weights of unit "
                f"{unit}, which are {needed}; plan again for this model and {dtype}"
            )
    if schedule.num_microbatches != spec.microbatches:
        raise ValueError(
            f"the schedule {schedule.name!r} has {schedule.num_microbatches} micro-batches, the "
            f"run {spec.microbatches}; plan again for this run"
        )
    tokens = schedule.buffers.get("tokens")
    needed = 2 * torch.int64.itemsize * spec.batch * spec.model.seq
    if tokens is not None and tokens.nbytes != needed:
        raise ValueError(
            f"the schedule {schedule.name!r} has {tokens.nbytes} bytes for the tokens of a step, "
            f"which are {needed} for {spec.batch} samples of {spec.model.seq}; plan again for "
            "this run"
        )
