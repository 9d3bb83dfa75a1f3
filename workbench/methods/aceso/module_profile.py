"""A user's own module as a question to the search: its layers, measured on this machine.

Each layer is timed and weighed by itself (profile/measure.py), for micro-batches of several sizes.
A message counts as a copy from the device to the host's memory, and gradients are added up at the
same rate: slower than links between GPUs, and about what messages of a user's loop take.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from workbench.core.model_spec import ENGINE, MOST, ModelSpec
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.aceso.database import COLUMNS, UNIT, Database
from workbench.methods.aceso.driven_layers import layers_named
from workbench.methods.aceso.plan import Subject
from workbench.model.drawn import generators
from workbench.model.objective import Batch, Layered, LossFunction, Objective
from workbench.model.operators import MODULE
from workbench.profile.profile import Profile
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.bundle import Boundary
from workbench.runtime.passes.layer_stage import held_in, parts_into
from workbench.training.module_profile import profile_of

MOST_ROWS = 64
"""Of a micro-batch that is measured."""
FP32_BYTES = 4


def profiled_module(
    module: nn.Module, sample: Any, loss_fn: LossFunction, *, batch: int | None,
    micros: Sequence[int], dtype: str, device: str, results: Path, report: Reporter,
) -> tuple[Subject, Database]:  # fmt: skip
    """The module's layers as the operators of a plan, and what they cost. `sample` is a batch, by
    default of as many rows as those that will be trained. `micros` are sizes of micro-batches, by
    default powers of two that divide the batch, itself, its half and its quarter. Raises ValueError
    for a module that cannot be cut, or that the device has no room for."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it must be {' or '.join(DTYPES)}")
    first = Batch(sample, dtype=DTYPES[dtype])
    with generators(0):
        objective = Objective(module, loss_fn, first)
        model, weights = objective.layered()
    rows = first.rows if batch is None else batch
    for size in (rows, *micros):
        if not 1 <= size <= rows:
            raise ValueError(f"a micro-batch has {size} rows; it must be from 1 to the batch's "
                             f"{max(1, rows)}")  # fmt: skip
    halved = [k for k in range(MOST_ROWS.bit_length()) if rows % (1 << k) == 0]
    usual = {1 << k for k in halved} | {rows >> k for k in halved[:3] if rows >> k <= MOST_ROWS}
    shape = ModelSpec(
        family=f"{ENGINE}{objective.name}", layers=min(max(1, model.layers), MOST["layers"]),
        hidden=1, heads=1, vocab=1, seq=1,
    )  # fmt: skip
    spec = RunSpec(method="plain", model=shape, batch=rows, dtype=dtype, device=device)
    found: dict[tuple[int, int, int], np.ndarray] = {}
    why = "the device has too little memory"
    for size in sorted(micros or usual):
        numbers = first.counting(size).tolist()
        given = (*(t[numbers] for t in first.tensors), first.weights[numbers])
        try:
            profile = profile_of(spec, model, given, results, report)
        except (OutOfMemory, torch.OutOfMemoryError):
            break
        except ValueError as error:  # such as of BatchNorm, with one row
            why = str(error)
            continue
        found[size, 1, 0] = _table(model, profile, size, dtype)
    if not found:
        raise ValueError(f"no micro-batch of {objective.name} can be measured here: {why}")
    weights.clear()
    speed = profile.hardware.d2h_bytes_per_s / 1e9
    on_cpu = profile.hardware.device == "cpu"
    database = Database(
        place="this machine", rows=found, collectives={}, intra=(speed,), inter=(speed,),
        group_mb=0.0 if on_cpu else None, updated=profile.hardware.device_adam_params_per_s,
    )  # fmt: skip
    subject = Subject(
        model=MODULE, size=layers_named(objective.name, model, first), layers=model.num_units,
        shape=(), batch=rows,
    )  # fmt: skip
    return subject, database


def _table(model: Layered, profile: Profile, rows: int, dtype: str) -> np.ndarray:
    """[columns, layers] of a database, in its units. What the module is called with does not
    travel, and is there anyway."""
    made = np.zeros((len(COLUMNS), model.num_units), dtype=np.int64)
    units, how = range(model.num_units), DTYPES[dtype]
    into = [[part for part in parts_into(model, unit) if part.given is None] for unit in units]
    sizes = [Boundary(parts, how).nbytes(rows) for parts in into] + [0]
    for unit, cost in enumerate(profile.units):
        owned = held_in(model, range(unit, unit + 1)).values()
        weights = FP32_BYTES * sum(prod(model.shapes(u)[name]) for u, name in owned)
        scratch = cost.forward_scratch_bytes, max(0, cost.backward_scratch_bytes)
        nbytes = sizes[unit], sizes[unit + 1], weights, max(0, cost.kept_bytes), *scratch
        seconds = cost.forward_s, cost.backward_s
        made[:2, unit] = [round(each * 1e9) for each in seconds]
        made[2:, unit] = [round(each / (1 << 20) * UNIT) for each in nbytes]
    return made
