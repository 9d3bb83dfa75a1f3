"""Weights of a stage whose operators are divided each by itself: gradients, sums, ties and norm.

Gradients lie in one flat tensor, sorted by the grids of operators, so that one sum over replicas
serves all of a grid. Weights in 16 bits lie likewise, beside the rest of their fp32 masters
(split.py). In the norm each shard counts once, and each replica once. A weight that
several operators share is there for each of them; each copy adds the rows of the others' gradients
that it has itself, however differently they are divided, so all make equal updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise, starmap
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workbench.core.model_spec import ModelSpec
from workbench.model.base import LayeredModel
from workbench.model.operators.operator import OperatorList
from workbench.model.operators.place import Place
from workbench.model.sharded import MODULES
from workbench.model.sharded.shards import Shard
from workbench.runtime.passes.shard_ends import Setting
from workbench.runtime.passes.shard_stage import Key, ShardStage
from workbench.runtime.transport.boxes import Box, Shape, Spread, moves
from workbench.runtime.transport.collectives import Columns, Group, exchange
from workbench.runtime.transport.groups import add_up
from workbench.runtime.transport.stage_groups import StageGroups
from workbench.runtime.updates.split import split


@dataclass(frozen=True, kw_only=True)
class Part:
    """A parameter of the model, and where its shards are."""

    key: Key
    owner: Key
    """Its own, or that of the parameter whose copy it is."""
    name: str
    """In the whole model."""
    shape: Shape
    """Of the whole parameter, blocks in a dimension of their own."""
    shard: Shard
    stage: int
    spread: Spread
    """Over the processes of the stage; dimension 0 is no batch."""

    def box(self, process: int) -> Box:
        """The shard of a process of the stage."""
        alone = Spread(self.spread.tp, 1, self.spread.shard)
        return alone.box(self.shape, process % self.spread.tp)

    def boxes(self, groups: StageGroups, ranks: Sequence[int]) -> list[Box | None]:
        """The shards of some processes of the world; None where there is none."""
        own = groups.ranks(self.stage)
        return [self.box(rank - own[0]) if rank in own else None for rank in ranks]


def parts_of(
    operators: OperatorList, places: Sequence[Place], model: LayeredModel, spec: ModelSpec,
    stages: Sequence[Sequence[Setting]],
) -> list[Part]:  # fmt: skip
    """All parameters of a model, in the order of its operators."""
    found, tied = [], model.tied()
    settings = [(stage, each) for stage, own in enumerate(stages) for each in own]
    for (stage, setting), operator, place in zip(
        settings, operators.operators, places, strict=True
    ):
        sharded = operator.layouts[setting.algo][0].shard is not None
        alone = Columns(None), Columns(None)
        module = MODULES[operator.kind](spec, place, *alone, sharded=sharded, algo=setting.algo)
        for name, shard in module.shards.items():
            key = place.unit, place.local(name)
            owner = tied.get(key, key)
            whole = torch.empty(model.shapes(owner[0])[owner[1]], device="meta")
            spread = Spread(setting.tp, setting.dp, shard.split)
            found.append(
                Part(
                    key=key, owner=owner, name=model.state_name(*key), stage=stage, shard=shard,
                    shape=tuple(shard.view(whole).shape), spread=spread,
                )
            )  # fmt: skip
    return found


class Grid(NamedTuple):
    """Weights of operators that are divided over equally many columns, in the flat tensors."""

    part: slice
    replicas: Group
    """Processes that have these shards."""
    decaying: int
    """Elements, the first ones, that decay."""


class ShardWeights:
    """Weights of one process, their gradients, and what it does with these at the end of a step."""

    def __init__(
        self, stage: ShardStage, parts: Sequence[Part], groups: StageGroups,
        new: Callable[[Sequence[int]], Group], zeros: Callable[[int, torch.dtype], Tensor],
        decays: Callable[[Part], bool],
    ) -> None:  # fmt: skip
        """`parts` are all the model's; `new` makes a group, with all processes of the world, and
        `zeros` a flat tensor. The stage's weights become of its dtype here."""
        of, dtype = dict(stage.parameters()), stage.dtype
        self.parts = sorted(
            (part for part in parts if part.key in of),
            key=lambda part: (part.spread.tp, not decays(part)),
        )
        self.shards: dict[Key, nn.Parameter] = {part.key: of[part.key] for part in self.parts}
        ends = [0, *accumulate(own.numel() for own in self.shards.values())]
        self.places = dict(zip(self.shards, starmap(slice, pairwise(ends)), strict=True))
        self.gradients = zeros(ends[-1], dtype)  # [elements of all shards here]
        self.precise = dtype if dtype.itemsize > 2 else torch.float32
        """Of masters and moments."""
        self.flat = self.rest = None
        """Weights in 16 bits, and the rest of their masters."""
        if dtype.itemsize == 2:
            self.flat, self.rest = zeros(ends[-1], dtype), zeros(ends[-1], torch.int16)
        for key, own in self.shards.items():
            at = self.places[key]
            if self.flat is not None:
                split(own.detach(), self.flat[at], self.rest[at])
                own.data = self.flat[at].view(own.shape)
            own.grad = self.gradients[at].view(own.shape)
        self.grids: list[Grid] = []
        for tp, same in groupby(self.parts, lambda part: part.spread.tp):
            held = [(self.places[part.key], decays(part)) for part in same]
            part = slice(held[0][0].start, held[-1][0].stop)
            decaying = sum(at.stop - at.start for at, decay in held if decay)
            self.grids.append(Grid(part, groups.replicas(tp), decaying))
        process = groups.process
        self._counted = [
            self.shards[part.key].grad
            for part in self.parts
            if process < part.spread.tp  # of its replicas the first row's
            and (process == 0 or part.spread.shard is not None)
            and part.key == part.owner
        ]
        self._ties = [*self._tied(parts, groups, new)]

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """Shards by the parameters' names in the whole model."""
        return {part.name: self.shards[part.key] for part in self.parts}

    def add_up(self) -> None:
        """Make gradients those of all samples, and of all copies of a weight."""
        for part, replicas, _ in self.grids:
            if replicas is not None:
                add_up(self.gradients[part], dist.get_world_size(replicas), replicas)
        for tie in self._ties:
            tie.add_up()

    @property
    def counted(self) -> list[Tensor]:
        """Gradients that count in the norm here: of all processes together, each element once."""
        return self._counted

    def _tied(
        self, parts: Sequence[Part], groups: StageGroups, new: Callable[[Sequence[int]], Group]
    ) -> Iterator[ShardTie]:
        for owner in {part.owner: None for part in parts if part.key != part.owner}:
            copies = [part for part in parts if part.owner == owner]
            stages = sorted({part.stage for part in copies})
            ranks = [rank for stage in stages for rank in groups.ranks(stage)]
            group = new(ranks) if len(ranks) > 1 else None
            me = groups.starts[groups.stage] + groups.process
            if me in ranks:
                held = [self.shards[p.key].grad if p.key in self.shards else None for p in copies]
                boxes = [part.boxes(groups, ranks) for part in copies]
                yield ShardTie(held, boxes, ranks.index(me), group)


class ShardTie:
    """A weight that is there several times, each copy in shards of its own."""

    def __init__(
        self, held: Sequence[Tensor | None], boxes: Sequence[Sequence[Box | None]], process: int,
        group: Group,
    ) -> None:  # fmt: skip
        """The gradient here of each copy, its boxes on all processes of the group, and the number
        of this process in it."""
        self._held, self._boxes, self._process, self._group = held, boxes, process, group

    def add_up(self) -> None:
        """Make the gradient of each copy the sum of all, in one order."""
        copies = range(len(self._held))
        came = [[self._exchanged(giver, taker) for giver in copies] for taker in copies]
        for own, parts in zip(self._held, came, strict=True):
            if own is not None:
                own.copy_(sum(parts[1:], parts[0]).view(own.shape))

    def _exchanged(self, giver: int, taker: int) -> Tensor:
        """A copy's gradient where this process has another copy's."""
        have, need = self._boxes[giver], self._boxes[taker]
        given = self._held[giver]
        if given is None:
            given = next(each for each in self._held if each is not None).new_empty(0)
        at = self._process
        return exchange(given, have[at], need[at], moves(have, need), at, self._group)
