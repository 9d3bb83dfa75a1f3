"""Measurements of a module's slices on the first rank: for a cut that nobody has given, and for the
proof that stages fit a budget of memory.

One slice of each kind, and the first one, whose input has no gradient, are measured on the first
rank's device as the Profiler measures them, but briefly, and in micro-batches of the job. Of the
cuts that are predicted to fit that device's memory, AdamW's states among it, the one with the
fastest slowest stage is taken; the last stage computes nothing again. Where none fits, memory does
not count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.model.slices import EXAMPLE, Inputs, Slices
from workbench.profile.slice_timing import measure, memory_of, tied_in
from workbench.profile.slices import Named, SliceProfile


def measured(
    slices: Slices, micro: int, *, device: torch.device, dtype: torch.dtype
) -> SliceProfile:
    """All slices, in micro-batches of so many rows. Raises ValueError where a slice finds no
    memory."""
    learning = slices.learning(range(slices.count))
    kinds = [(slices.model.kind(unit), unit == 0) for unit in range(slices.count)]
    found = {
        kind: measure(
            slices, kinds.index(kind), learning, [micro],
            lambda rows: _repeated(slices.example, rows), device=device, dtype=dtype,
        )[0]
        for kind in dict.fromkeys(kinds)
    }  # fmt: skip
    room, libraries = memory_of(device, 1)
    return SliceProfile(
        model=Named(name="", digest=""), machine=Named(name="", digest=""), device_bytes=room,
        samples=(micro,), slices=tuple(found[kind] for kind in kinds), tied=tied_in(slices),
        library_bytes=libraries,
    )  # fmt: skip


def _repeated(example: Inputs, rows: int) -> Inputs:
    """So many rows of an example; what reads data is not asked again."""
    taken = torch.arange(rows) % EXAMPLE
    return {
        name: value[taken] if isinstance(value, Tensor) and value.shape[:1] == (EXAMPLE,) else value
        for name, value in example.items()
    }
