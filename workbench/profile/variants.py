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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
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
from workbench.runtime.passes.bundle import Boundary, Bundle, bytes_of
from workbench.runtime.passes.halves import input_half
from workbench.runtime.passes.replay import Chain, Key, Replays

ROUNDS = {"seconds": 0.5, "least": 5, "most": 20, "burst": 5}
"""Of the passes of a timing (bench.timed)."""
LONG_S = 0.1
"""Forward passes that take longer are not timed from a checkpoint: the whole of them is counted
again."""
CLOSE = 0.01
"""Relative difference of two gradients that are one: some kernels add up in any order."""
LOOKS = 3
"""Launched passes that are compared with each other, and with recorded ones."""


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


def with_recorded(
    costs: Mapping[str, UnitCost], setting: Setting
) -> tuple[dict[str, UnitCost], str]:
    """Costs by kind of unit of a user's module, with recorded passes of the layers between the
    first and the last where all of them can be; else without, and why they cannot."""
    model, found = setting.model, {**costs}
    first = {model.kind(unit): unit for unit in reversed(range(1, model.head))}
    long = max((costs[kind].forward_s for kind in first), default=inf) >= RECORDED_BELOW_S
    if long or model.varies:  # the GPU is the limit, or nothing is to be tried
        return found, model.varies
    with metered(setting.device) as meter:
        for unit in (0, *sorted(first.values())):
            alone, why = Alone(setting, unit, meter), ""
            try:
                _check_form(alone)
                if unit:
                    variants = tuple(_recorded(alone, costs[alone.kind], checkpointed=False))
                    found[alone.kind] = replace(costs[alone.kind], variants=variants)
            except Exception as error:  # whatever the module's code raises
                why = f"layer {unit}, {model.path(unit)!r}: {error}".split("\n")[0]
            del alone
            if why:
                return {**costs}, why
    return found, ""


def _check_form(alone: Alone) -> None:
    """Raise ValueError where a unit puts out other tensors than those for which there is memory,
    from which recordings read their inputs; or in another order than the next unit was compiled
    for, since nothing can be compiled while passes are recorded."""
    boundary, made = _behind(alone), alone.forward()
    wanted = [part.full_shape(alone.samples) for part in boundary.parts]
    for tensor, shape, dtype in zip(made, wanted, boundary.dtypes, strict=True):
        if (tensor.shape, tensor.dtype) != (torch.Size(shape), dtype):
            raise ValueError(f"it puts out {tensor.dtype} of {[*tensor.shape]}, planned as {dtype}")
        relayed = any(tensor is own for own in alone.x)
        if alone.unit and not (relayed or tensor.is_contiguous()):
            raise ValueError("a tensor that it puts out is not contiguous")


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
    try:
        return _recorded(alone, cost, checkpointed=checkpointed)
    except torch.AcceleratorError:  # something in there waits for the GPU
        return []


def _recorded(alone: Alone, cost: UnitCost, *, checkpointed: bool) -> list[Variant]:
    """As `recorded`. Raises the error of a recording that fails, and ValueError for one of a user's
    module that does not stand for launched passes."""
    launched = cost.forward_s, cost.recompute_s, cost.backward_s
    found = [Variant(name=RECORDED, seconds=launched)]
    if cost.forward_s >= RECORDED_BELOW_S:
        return found
    x, whole = alone.x, not alone.model.compilable
    key, above = (alone.unit, whole or len(x) == 1), _gradients_of(alone)
    try:
        with _recordings(alone) as replays:
            if whole and not _stands(alone, replays, key, above):
                raise ValueError("a recorded pass of it gives other numbers than a launched one")
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
    return found


def _gradients_of(alone: Alone) -> Bundle:
    """Made-up gradients of a unit's outputs."""
    boundary = _behind(alone).gradients()
    return tuple(map(torch.randn_like, boundary.new(alone.samples, alone.device)))


def _behind(alone: Alone) -> Boundary:
    setting = alone.setting
    return Boundary(alone.model.boundary(alone.unit + 1, setting.seq), setting.dtype)


def _stands(alone: Alone, replays: Replays, key: Key, above: Bundle) -> bool:
    """Whether recorded passes give what launched ones give, of other numbers than they were
    recorded with: to the bit, unless launched ones differ among themselves, whose kernels add up in
    any order. Code that reads something beside its inputs and weights, or launches on a stream of
    its own, may not be in a recording."""
    one, *others = (_launched(alone, above) for _ in range(LOOKS))
    made = [t.clone() for t in replays.forward(key, alone.x)]
    replays.recompute(key, alone.x)
    made += [t.clone() for t in replays.output(key)]
    input_grads, grads = replays.backward(key, above)
    made += [*input_grads, *grads]
    steady = all(all(map(torch.equal, one, other)) for other in others)
    return all(map(torch.equal if steady else _close, made, one))


def _launched(alone: Alone, above: Bundle) -> list[Tensor]:
    """Outputs of both passes forward, and the gradients of inputs and parameters."""
    made, (x, y), wanted = alone.forward(), alone.graph(), _behind(alone).differentiable
    ends = [t for t, differentiable in zip(y, wanted, strict=True) if differentiable]
    pairs = [(t, g) for t, g in zip(ends, above, strict=True) if t.requires_grad]
    through = [*(t for t in x if t.requires_grad), *alone.parameters]
    grads: Sequence[Tensor] = [torch.zeros_like(t) for t in through]
    if pairs:
        grads = torch.autograd.grad(
            [t for t, _ in pairs], through, [g for _, g in pairs], materialize_grads=True
        )
    return [*made, *(t.detach() for t in y), *grads]


def _from_checkpoint(alone: Alone, replays: Replays, key: Key, above: Bundle) -> list[Variant]:
    """None where the backward pass reads more of its forward pass than the input: then its
    gradients are those of other samples than the ones it is given. These have positions of one
    document each, and were recorded with a document for each token."""
    x = (alone.x[0], *(ones.cumsum(-1) for ones in alone.x[1:]))
    seconds = _medians(alone, lambda: replays.from_checkpoint(key, x, above))
    first, grads = replays.from_checkpoint(key, x, above)
    made = [grad.clone() for grad in (*first, *grads)]
    replays.recompute(key, x)
    first, grads = replays.backward(key, above)
    alike = all(map(_close, made, (*first, *grads)))
    return [Variant(name=RECORDED_CHECKPOINT, seconds=tuple(seconds))] if alike else []


@contextmanager
def _recordings(alone: Alone, *, back: bool = False) -> Iterator[Replays]:
    """Recordings of a block as a run makes them; with `back` those of a backward pass from a
    checkpoint, too."""
    template, device, whole = alone.template, alone.device, not alone.model.compilable
    ends = (alone.boundary, _behind(alone)) if whole else ()
    chain = Chain.alone(alone.kind, alone.module, alone.parameters, alone.samples, ends)
    run = template.layer if whole else template.block
    replays = Replays(
        run, alone.boundary, device_meter(device), checkpointed=template.checkpointed_block,
        whole=whole,
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
