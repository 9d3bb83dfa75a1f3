"""Weights and moments of shards in checkpoints that lie by unit, whole: any method goes on from
them, and so does another plan.

To write, all processes give their boxes of each parameter to the one that writes its unit, a
parameter at a time. To read, each takes its boxes of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.runtime.checkpoint.checkpoint import (
    KINDS,
    check_fits,
    file_of,
    tensors_of,
    write_unit,
)
from workbench.runtime.checkpoint.manifest import Saved
from workbench.runtime.checkpoint.together import Together
from workbench.runtime.transport.boxes import moves, within
from workbench.runtime.transport.collectives import exchange
from workbench.runtime.transport.stage_groups import StageGroups
from workbench.runtime.updates.shard_updates import ShardUpdates
from workbench.runtime.updates.shard_weights import Part, ShardWeights


class ShardStates:
    """Has the shards of one process. A `Holder`."""

    def __init__(
        self, weights: ShardWeights, parts: Sequence[Part], updates: ShardUpdates,
        groups: StageGroups, everybody: dist.ProcessGroup, names: dict[tuple[int, str], str],
    ) -> None:  # fmt: skip
        """`parts` are all the model's, `names` those of their owners; `everybody` is gloo's."""
        self._weights, self._updates, self._groups = weights, updates, groups
        self._parts, self._everybody, self._names = parts, everybody, names

    @torch.no_grad()
    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """As `Holder.write`."""
        ranks, me = range(dist.get_world_size()), dist.get_rank()
        own = sorted((p for p in self._parts if p.key == p.owner), key=lambda part: part.key[0])
        for unit, parts in groupby(own, lambda part: part.key[0]):
            tensors, writer = [], None
            for part in parts:
                if writer is None:
                    writer = self._groups.ranks(part.stage)[0]
                for kind in kinds:
                    came = self._whole(part, kind, [rank == writer for rank in ranks])
                    if me == writer:
                        tensors.append((f"{kind}/{part.name}", came))
            if me == writer:
                write_unit(folder, unit, tensors)

    @torch.no_grad()
    def wholes(self) -> dict[str, Tensor]:
        """All weights by their names in the model, whole, in every process."""
        every = [True] * dist.get_world_size()
        own = (part for part in self._parts if part.key == part.owner)
        return {part.name: self._whole(part, KINDS[0], every) for part in own}

    def _whole(self, part: Part, kind: str, wanted: Sequence[bool]) -> Tensor:
        """A weight or moment, whole where it is wanted, by rank; elsewhere nothing."""
        me, ranks = dist.get_rank(), range(len(wanted))
        have, whole = part.boxes(self._groups, ranks), tuple((0, size) for size in part.shape)
        need = [whole if each else None for each in wanted]
        mine = torch.empty(0, dtype=self._weights.precise)
        if have[me] is not None:
            mine = part.shard.view(self._updates.state(part.key, kind).cpu())
        came = exchange(mine, have[me], need[me], moves(have, need), me, self._everybody)
        return _flat(came, part) if wanted[me] else came

    @torch.no_grad()
    def restore(self, saved: Saved) -> None:
        """As `Holder.restore`."""
        found: dict[str, Tensor] = {}
        units = {part.owner[0] for part in self._weights.parts}
        found = tensors_of(saved, [file_of(unit) for unit in sorted(units)])
        for part in self._weights.parts:
            shard, name, state = self._weights.shards[part.key], self._names[part.owner], {}
            at = within(part.box(self._groups.process), tuple((0, n) for n in part.shape))
            for kind in KINDS:
                label = f"{kind}/{name}"
                whole = found.get(label)
                like = torch.empty(part.shape, device="meta")
                check_fits(saved.path, label, whole, _flat(like, part))
                state[kind] = part.shard.view(whole)[at].reshape(shard.shape)
            self._updates.put(part.key, state, saved.manifest.updates_done)


def _flat(whole: Tensor, part: Part) -> Tensor:
    """A whole parameter in its own shape."""
    shard = part.shard
    return whole if shard.blocks == 1 else whole.flatten(shard.dim, shard.split)


class ShardStatesTogether(Together, ShardStates):
    """Asked for as one, by the process `lead`."""

    def __init__(self, *args, over: dist.ProcessGroup, lead: int) -> None:
        super().__init__(*args)
        self.over, self.lead = over, lead
