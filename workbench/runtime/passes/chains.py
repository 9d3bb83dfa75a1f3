"""Finds the passes of a rank's layers that are recorded, and the chains they form (replay.py).

A micro-batch's passes through a backward pack stand one after the other on the compute lane: its
blocks forward, keeping what is needed, and then backward. So each is a chain; the embedding and the
head, which are launched, stand at its ends. A backward pass that begins at a checkpoint is a
recording by itself. Micro-batches of equal size share one recording, as do all visits of a layer to
one place in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from workbench.runtime.passes.links import Links
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, Action, Kind, lane_kind


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedPass:
    """A pass as part of a recording."""

    units: tuple[int, ...]
    """Number of the block that is passed forward, or of all blocks of the chain."""
    modules: tuple[nn.Module, ...]
    """Module of the block that is passed forward, or modules of all blocks of the chain."""
    rows: int
    """Samples that pass."""
    index: int | None = None
    """Index of its block in the chain; None for a forward pass that keeps nothing but its input,
    and for a backward pass that begins there."""

    @property
    def key(self) -> tuple[tuple[nn.Module, ...], int]:
        """Key of the recording, or of the chain."""
        return self.modules, self.rows

    @property
    def first(self) -> bool:
        """Whether it takes the input of the recording."""
        return not self.index

    @property
    def last(self) -> bool:
        """Whether it takes or makes the output of the last block."""
        return self.index in (None, len(self.modules) - 1)


def recorded_passes(
    actions: Iterable[Action],
    links: Mapping[str, Links],
    modules: Mapping[str, nn.Module],
    head: int,
) -> dict[str, RecordedPass]:
    """Action -> its part in a recording, for all passes of blocks among a rank's actions; `modules`
    has the module over the weights of each buffer."""
    found: dict[str, RecordedPass] = {}
    chain: list[Action] = []
    for action in actions:
        if lane_kind(action.lane) != COMPUTE or not 0 < action.unit < head:
            continue
        first, end = action.span
        if name.checkpoints(action) or action.kind is Kind.FORWARD and not name.keeps(action):
            alone = (modules[links[action.name].weights],)
            found[action.name] = RecordedPass(units=(action.unit,), modules=alone, rows=end - first)
        elif name.keeps(action):
            chain.append(action)
        elif action.kind is Kind.BACKWARD:
            all_of = tuple(modules[links[one.name].weights] for one in chain)
            units = tuple(one.unit for one in chain)
            at = units.index(action.unit)
            for one in (chain[at], action):
                found[one.name] = RecordedPass(
                    units=units, modules=all_of, rows=end - first, index=at
                )
            if at == 0:
                chain = []
    return found
