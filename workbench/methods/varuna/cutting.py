"""Where to cut a module whose shape is known, and nobody has said it: by what its slices take here.

One slice of each kind is measured on the first rank's device, in micro-batches of the job and as
the Profiler measures it, but briefly. Of the cuts that are foreseen to fit that device's memory,
AdamW's states among it, the one with the fastest slowest stage is taken; of the last stage it is
known that it computes nothing again. Where none fits, memory does not count.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from workbench.core.stage_map import StageMap
from workbench.methods.varuna.autoconfig import cut_of, stages_of
from workbench.methods.varuna.profile import ModelProfile, Named
from workbench.methods.varuna.shares import Shares
from workbench.methods.varuna.slice_timing import measure, memory_of, tied_in
from workbench.methods.varuna.slices import EXAMPLE, Inputs, Slices

LONGEST_S = 0.2
"""Seconds for a slice whose passes do not become steady."""


def measured_cut(
    slices: Slices, places: StageMap, shares: Shares, order: str,
    *, device: torch.device, dtype: torch.dtype,
) -> str:  # fmt: skip
    """Slices of each stage, as ``5 4 4 3``. Raises ValueError where a slice finds no memory."""
    micro = len(shares.rows(0)[0])
    learning = slices.learning(range(slices.count))
    kinds = [slices.model.kind(unit) for unit in range(slices.count)]
    found = {
        kind: measure(
            slices, kinds.index(kind), learning, [micro], partial(_repeated, slices.example),
            device=device, dtype=dtype, longest_s=LONGEST_S,
        )[0]
        for kind in dict.fromkeys(kinds)
    }  # fmt: skip
    room, libraries = memory_of(device, 1)
    profile = ModelProfile(
        model=Named(name="", digest=""), machine=Named(name="", digest=""), device_bytes=room,
        slices=tuple(found[kind] for kind in kinds), tied=tied_in(slices), library_bytes=libraries,
    )  # fmt: skip
    stages = stages_of(profile, order, places.stages, places.replicas, micro, shares.batch)
    return cut_of(stages)


def _repeated(example: Inputs, rows: int) -> Inputs:
    """So many rows of an example; what reads data is not asked again."""
    taken = torch.arange(rows) % EXAMPLE
    return {
        name: value[taken] if isinstance(value, Tensor) and value.shape[:1] == (EXAMPLE,) else value
        for name, value in example.items()
    }
