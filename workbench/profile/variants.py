"""Other ways to run a unit's passes: in halves, from a checkpoint, recorded.

* The two halves of a backward pass (passes/halves.py) are timed beside the whole one; the profile's
  own backward time is then divided as they divide it. Only orders with halved passes ask for them.
* A backward pass that begins at a checkpoint (passes/template.py) computes again only what it
  needs, so it is shorter than a forward and a backward pass: the last matrix product of a block is
  not needed.
* A launched pass of a few samples takes as long as one thread needs to launch its kernels, on an
  H100 0.6 ms for 0.2 ms of work. Who knows only that time plans micro-batches that are too large
  where passes will be recorded (passes/replay.py). So a block is recorded as a run does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from workbench.profile.alone import Alone, Setting
from workbench.profile.bench import Action, marked, phases, timed, weigh
from workbench.profile.footprint import give_back_workspaces
from workbench.profile.measure import metered
from workbench.profile.profile import RECORDED_BELOW_S
from workbench.profile.timing import summarize
from workbench.profile.units import (
    CHECKPOINT,
    HALVES,
    RECORDED,
    RECORDED_CHECKPOINT,
    UnitCost,
    Variant,
)
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.bundle import bytes_of
from workbench.runtime.passes.halves import input_half
from workbench.runtime.passes.replay import Chain, Key, Replays

ROUNDS = {"seconds": 0.5, "least": 5, "most": 20, "burst": 5}
"""Of the passes of a timing (bench.timed)."""
LONG_S = 0.1
"""Forward passes that take longer are not timed from a checkpoint: the whole of them is counted
again."""
CLOSE = 0.01
"""Relative difference of two gradients that are one: some kernels add up in any order."""


def with_variants(
    costs: Mapping[str, UnitCost], setting: Setting, *, halved: bool, checkpointed: bool
) -> dict[str, UnitCost]:
    """Costs by kind of unit, with those variants of their passes that are wanted, and recorded ones
    where they can be."""
    model, found = setting.model, {**costs}
    records = setting.device.type == "cuda" and model.compilable
    if not (halved or checkpointed or records):
        return found
    with metered(setting.device) as meter:
        first = {model.kind(unit): unit for unit in reversed(range(1, model.num_units))}
        for kind, unit in first.items():
            alone, cost, variants = Alone(setting, unit, meter), costs[kind], []
            if halved:
                variants.append(halves(alone, cost))
            if checkpointed and not alone.head and cost.forward_s <= LONG_S:
                variants.append(checkpoint(alone, cost))
            if records and not alone.head:
                variants += recorded(alone, cost, checkpointed=checkpointed)
            found[kind] = replace(cost, variants=tuple(variants))
            del alone
    return found


def halves(alone: Alone, cost: UnitCost) -> Variant:
    """Both halves of the unit's backward pass."""
    graph, first, second = own = _halved(alone)
    whole = alone.phases()
    _, first_s, second_s, _, whole_s = _medians(alone, *own, whole["recompute"], whole["backward"])
    share = cost.backward_s / whole_s if whole_s else 1.0
    output = alone.output_bytes()
    graph()
    one = marked(alone.meter, first)
    returned = bytes_of(one.made)
    held = max(0, one.after - (one.before - output) - returned)
    scratch = max(0, one.peak - (one.before - output) - returned - held)
    two = marked(alone.meter, second)
    more = max(0, two.peak - two.before - bytes_of(two.made))
    return Variant(
        name=HALVES, seconds=(share * first_s, share * second_s), scratch_bytes=(scratch, more),
        nbytes=held,
    )  # fmt: skip


def _halved(alone: Alone) -> tuple[Action, Action, Action]:
    """A forward pass, the first half, and the second one, to be done one after the other. The
    output is gone after the first half, and its gradients stay until the second is done."""
    held: dict[str, Any] = {}

    def graph() -> None:
        x, y = alone.graph()
        held["through"], held["ends"] = ([t for t in some if t.requires_grad] for some in (x, y))
        held["above"] = alone.above(held["ends"])

    def first() -> tuple[Tensor, ...]:
        grads, held["half"] = input_half(
            held.pop("ends"), held["above"], held["through"], alone.parameters
        )
        return grads

    return graph, first, lambda: held.pop("half").gradients()


def checkpoint(alone: Alone, cost: UnitCost) -> Variant:
    """A backward pass that begins at a checkpoint."""
    passes = alone.forward, alone.checkpoint, alone.backward
    _, there, back = _medians(alone, *phases(*passes).values())
    gradients = sum(p.nbytes for p in alone.parameters)
    found = weigh(
        alone.meter, *passes, output=alone.output_bytes(), returned=gradients + bytes_of(alone.x)
    )
    return Variant(
        name=CHECKPOINT,
        seconds=(max(there + back - cost.forward_s, cost.backward_s),),
        scratch_bytes=(found["backward_scratch_bytes"],),
        nbytes=found["kept_bytes"],
    )


def recorded(alone: Alone, cost: UnitCost, *, checkpointed: bool) -> list[Variant]:
    """The passes of a block as recordings, and where wanted a backward pass that begins at a
    checkpoint. Passes that are too long to be recorded, or for whose recordings the device has no
    room, take their launched time, and those from a checkpoint are not recorded. Of a block that
    cannot be recorded there are none."""
    launched = cost.forward_s, cost.recompute_s, cost.backward_s
    found = [Variant(name=RECORDED, seconds=launched)]
    if cost.forward_s >= RECORDED_BELOW_S:
        return found
    x, key = alone.x, (alone.unit, len(alone.x) == 1)
    above = torch.randn_like(x[0])
    try:
        with _recordings(alone) as replays:
            seconds = _medians(
                alone,
                lambda: replays.forward(key, x),
                lambda: replays.recompute(key, x),
                lambda: replays.backward(key, above),
            )
            found = [Variant(name=RECORDED, seconds=tuple(seconds), nbytes=replays.nbytes)]
        if checkpointed:
            with _recordings(alone, back=True) as replays:
                found += _from_checkpoint(alone, replays, key, above)
    except (OutOfMemory, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
    except torch.AcceleratorError:  # something in there waits for the GPU
        return []
    return found


def _from_checkpoint(alone: Alone, replays: Replays, key: Key, above: Tensor) -> list[Variant]:
    """None where the backward pass reads more of its forward pass than the input: then its
    gradients are those of other samples than the ones it is given. These have positions of one
    document each, and were recorded with a document for each token."""
    x = (alone.x[0], *(ones.cumsum(-1) for ones in alone.x[1:]))
    seconds = _medians(alone, lambda: replays.from_checkpoint(key, x, above))
    first, grads = replays.from_checkpoint(key, x, above)
    made = [grad.clone() for grad in (first, *grads)]
    replays.recompute(key, x)
    first, grads = replays.backward(key, above)
    alike = all(map(_close, made, (first, *grads)))
    return [Variant(name=RECORDED_CHECKPOINT, seconds=tuple(seconds))] if alike else []


@contextmanager
def _recordings(alone: Alone, *, back: bool = False) -> Iterator[Replays]:
    """Recordings of a block as a run makes them; with `back` those of a backward pass from a
    checkpoint, too."""
    template, device = alone.template, alone.device
    chain = Chain.alone(alone.kind, alone.module, alone.parameters, alone.samples)
    replays = Replays(
        template.block, alone.boundary, alone.samples, device_meter(device),
        checkpointed=template.checkpointed_block,
    )  # fmt: skip
    try:
        each = {alone.unit: chain}
        replays.record(each, each, each if back else {})
        yield replays
    finally:
        replays.close()
        give_back_workspaces(device)
        torch.cuda.empty_cache()


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one.float() - other.float()).norm() <= CLOSE * other.float().norm())


def _medians(alone: Alone, *actions: Action) -> list[float]:
    """Median seconds of each of some actions, done one after the other."""
    return [summarize(each).seconds for each in timed(actions, alone.device, **ROUNDS)]
