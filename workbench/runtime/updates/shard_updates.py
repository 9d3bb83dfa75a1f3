"""AdamW for the shards of one process (shard_weights.py): by torch, or of weights in 16 bits by the
update of all methods' device tier, which keeps their fp32 masters' other half (split.py)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch
from torch import Tensor

from workbench.core.spec import RunSpec
from workbench.runtime.checkpoint.checkpoint import KINDS
from workbench.runtime.memory.device_budget import DeviceMeter
from workbench.runtime.updates import device_adam
from workbench.runtime.updates.adam_step import AdamStep
from workbench.runtime.updates.shard_weights import Key, ShardWeights
from workbench.runtime.updates.split import join, split
from workbench.runtime.updates.stage_updates import adamw


class ShardUpdates(Protocol):
    """Updates of one process's shards, and their states."""

    clips: bool
    """Whether an update clips, so that gradients stay as they are."""

    def step(self, step: int, norm: float) -> None:
        """Update all shards in a step of the run, whose gradients have this global norm."""

    def state(self, key: Key, kind: str) -> Tensor:
        """A shard's master weight or moment, by its kind in checkpoints; zeros before the first
        update."""

    def put(self, key: Key, states: dict[str, Tensor], done: int) -> None:
        """Go on with a shard's states after so many updates."""


class TorchUpdates:
    """A `ShardUpdates` of weights that are their own masters."""

    clips = False

    def __init__(
        self, spec: RunSpec, weights: ShardWeights, decaying: Collection[str], device: torch.device
    ) -> None:  # fmt: skip
        self._spec, self._shards = spec, weights.shards
        self._adamw = adamw(spec, weights.named, decaying, device)

    def step(self, step: int, norm: float) -> None:
        for group in self._adamw.param_groups:
            group["lr"] = self._spec.learning_rate(step)
        self._adamw.step()

    def state(self, key: Key, kind: str) -> Tensor:
        shard = self._shards[key]
        if kind == KINDS[0]:
            return shard.detach()
        held = self._adamw.state.get(shard, {})
        return held[kind] if kind in held else torch.zeros_like(shard)

    def put(self, key: Key, states: dict[str, Tensor], done: int) -> None:
        shard, group = self._shards[key], self._adamw.param_groups[0]
        there = shard.device if group.get("fused") or group.get("capturable") else "cpu"
        moments = {kind: states[kind].to(shard.device, copy=True) for kind in KINDS[1:]}
        shard.copy_(states[KINDS[0]])
        self._adamw.state[shard] = {"step": torch.tensor(float(done), device=there), **moments}


class SplitUpdates:
    """A `ShardUpdates` of weights in 16 bits: with gradients, moments and the rest of the masters
    14 bytes a weight."""

    clips = True

    def __init__(self, spec: RunSpec, weights: ShardWeights, meter: DeviceMeter) -> None:
        self._spec, self._weights, self._done = spec, weights, 0
        count = len(weights.flat)
        self._moments = {kind: meter.zeros(count, torch.float32) for kind in KINDS[1:]}

    def step(self, step: int, norm: float) -> None:
        self._done += 1
        hyper = AdamStep.of(self._spec, step, number=self._done, norm=norm)
        weights = self._weights
        slabs = (weights.flat, *self._moments.values(), weights.gradients)
        for grid in weights.grids:
            device_adam.update(
                *(slab[grid.part] for slab in slabs), hyper, decay_split=grid.decaying,
                rest=weights.rest[grid.part], threads=torch.get_num_threads(),
            )  # fmt: skip

    def state(self, key: Key, kind: str) -> Tensor:
        at, shard = self._weights.places[key], self._weights.shards[key]
        if kind != KINDS[0]:
            return self._moments[kind][at].view(shard.shape)
        return join(self._weights.flat[at], self._weights.rest[at]).view(shard.shape)

    def put(self, key: Key, states: dict[str, Tensor], done: int) -> None:
        at, self._done = self._weights.places[key], done
        held = {kind: each.to(self._weights.flat.device).flatten() for kind, each in states.items()}
        split(held[KINDS[0]], self._weights.flat[at], self._weights.rest[at])
        for kind, moments in self._moments.items():
            moments[at] = held[kind]
