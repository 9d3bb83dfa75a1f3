"""Which passes of a rank's layers are recorded, and which of them form a chain (replay.py).

A micro-batch's passes through a backward pack stand one after the other on the compute lane: its
blocks forward, keeping what is needed, and then backward. So each is a chain; the embedding and the
head, which are launched, stand at its ends. Micro-batches of equal size share one recording, as do
all visits of a layer to the same place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from workbench.runtime.links import Links
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, Action, Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A pass's place among recordings."""

    modules: tuple[nn.Module, ...]
    """Of the block that is passed forward, or of all blocks of the chain."""
    rows: int
    """Samples that pass."""
    place: int | None = None
    """Of its block in the chain; None for a forward pass that keeps nothing."""

    @property
    def key(self) -> tuple[tuple[nn.Module, ...], int]:
        """Of the recording, or of the chain."""
        return self.modules, self.rows

    @property
    def first(self) -> bool:
        """Whether it takes the input of what is recorded."""
        return not self.place

    @property
    def last(self) -> bool:
        """Whether it takes or makes what comes out behind the last block."""
        return self.place in (None, len(self.modules) - 1)


def places(
    actions: Iterable[Action],
    links: Mapping[str, Links],
    modules: Mapping[str, nn.Module],
    head: int,
) -> dict[str, Place]:
    """Action -> its place, of all passes of blocks among a rank's actions; `modules` are those of
    the weights that lie in a buffer."""
    found: dict[str, Place] = {}
    chain: list[Action] = []
    for action in actions:
        if action.lane != COMPUTE or not 0 < action.unit < head:
            continue
        first, end = action.span
        if name.keeps(action):
            chain.append(action)
        elif action.kind is Kind.FORWARD:
            alone = (modules[links[action.name].weights],)
            found[action.name] = Place(modules=alone, rows=end - first)
        elif action.kind is Kind.BACKWARD:
            all_of = tuple(modules[links[one.name].weights] for one in chain)
            at = [one.unit for one in chain].index(action.unit)
            for one in (chain[at], action):
                found[one.name] = Place(modules=all_of, rows=end - first, place=at)
            if at == 0:
                chain = []
    return found
