"""Recordings of the blocks of a single device, in the forms that its schedules have.

Blocks that compute their passes again are chains of their own (replay.py): recomputation and
backward pass follow each other. Where no block does, each micro-batch passes all of them forward
and backward before the next one comes, and they are one chain, with the head's passes, which are
launched, in its middle. What the chain keeps has one place, however many micro-batches there are.

Layers of a user's module take and make whole bundles, which may differ from layer to layer.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Set

import torch
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.runtime.memory.device_budget import CudaMeter
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.bundle import Boundary, Bundle
from workbench.runtime.passes.replay import Chain, Key, Replays
from workbench.runtime.passes.template import Template
from workbench.runtime.passes.unit_modules import UnitModules

SMALLER = (
    "a batch is smaller than the first one, whose passes were recorded, and there is no memory for "
    "both: blocks are launched from here on, one kernel after the other; make all batches of one "
    "shape, as by leaving out the last one"
)
FAILED = "blocks are launched one kernel after the other, since recording them failed: {}"


class RecordedBlocks:
    """Passes of recorded blocks over micro-batches of one size."""

    def __init__(
        self, model: LayeredModel, modules: UnitModules, template: Template,
        boundaries: Sequence[Boundary], *, rows: int, recomputed: Set[int], meter: CudaMeter,
    ) -> None:  # fmt: skip
        """Record blocks that are `recomputed`, or where none is, all blocks. `boundaries` lead into
        units, which take micro-batches of so many `rows`."""
        alone, whole = sorted(recomputed - {0}), not model.compilable
        self._alone, self._last = bool(alone), model.head - 1
        self.units = frozenset(alone or range(1, model.head))
        """Units that are recorded."""
        chains = {
            units[0]: Chain(
                kinds=tuple(map(model.kind, units)),
                modules=tuple(map(modules.__getitem__, units)),
                parameters=tuple(map(modules.parameters, units)),
                rows=rows,
                ends=tuple(boundaries[u] for u in (*units, units[-1] + 1)) if whole else (),
            )
            for units in ([[unit] for unit in alone] or [sorted(self.units)])
        }
        self._model, self._rows, self._meter = model, rows, meter
        run = template.layer if whole else template.block
        self._replays = Replays(run, boundaries[1], meter, whole=whole)
        try:
            self._replays.record(chains if alone else {}, chains)
        except RuntimeError as error:
            if not whole or isinstance(error, (OutOfMemory, torch.OutOfMemoryError)):
                raise
            warnings.warn(FAILED.format(str(error).split("\n")[0]), stacklevel=2)
            self.let_go()

    @property
    def stream(self) -> torch.cuda.Stream:
        """Stream on which they were recorded."""
        return self._replays.stream

    def units_of(self, model: LayeredModel, parts: Sequence[Tensor]) -> frozenset[int]:
        """Units whose passes over these micro-batches are recordings; of others than were recorded,
        none. These are launched, in the memory of recordings where there is no other."""
        alike = model is self._model and {len(part) for part in parts} == {self._rows}
        if alike or not self.units:
            return self.units
        if self._meter.left < self._replays.nbytes:
            warnings.warn(SMALLER, stacklevel=2)
            self.let_go()
        return frozenset()

    def let_go(self) -> bool:
        """Let go of all recordings, whose memory is free then; returns whether there were some. No
        chain may have begun."""
        had, self.units = bool(self.units), frozenset()
        if had:
            self._replays.let_go()
        return had

    def forward(self, unit: int, x: Bundle, uniform: bool) -> Bundle:
        """A block's output; none where the next block of a chain has it. `x` is not read where the
        block before has left it in the chain."""
        key, index = self._place(unit, uniform)
        if self._alone:
            y = self._replays.forward(key, x)
        else:
            self._replays.recompute(key, x, index)
            y = self._replays.output(key) if unit == self._last else ()
        return tuple(t if any(t is own for own in x) else t.clone() for t in y)

    def recompute(self, unit: int, x: Bundle, uniform: bool) -> None:
        """The pass of a block alone that keeps what its backward pass needs, which is next."""
        self._replays.recompute(self._place(unit, uniform)[0], x)

    def backward(self, unit: int, above: Bundle, uniform: bool) -> tuple[Bundle, list[Tensor]]:
        """Gradients of a block's input, none within a chain; and gradients of its parameters, which
        are there until the next recorded pass."""
        key, index = self._place(unit, uniform)
        input_grads, grads = self._replays.backward(key, above, index)
        return tuple(t.clone() for t in input_grads), grads

    def forget(self) -> None:
        """Let go of passes that were begun and are not ended."""
        self._replays.forget()

    def close(self) -> None:
        """Let go of all memory."""
        self._replays.close()

    def _place(self, unit: int, uniform: bool) -> tuple[Key, int]:
        """Key of a block's chain, and its index there."""
        return ((unit, uniform), 0) if self._alone else ((1, uniform), unit - 1)
