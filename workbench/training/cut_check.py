"""Stages of a model against the module as it is written, before anything trains them.

Stages of layers are those of the runtime, in one process and fp32: each runs on tensors that are
cut from the stage before, and takes gradients from the stage behind. Loss and every gradient are
compared on samples that are made up. A model of this project is made small first, in all but its
depth: no size changes what a layer hands to the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.model_spec import ANSWERING, GPT_FAMILY, ModelSpec
from workbench.model import make_model
from workbench.model.base import Context, set_parameter
from workbench.model.decompose.operators import Operator
from workbench.model.decompose.plan import Ref, flatten
from workbench.model.whole import make_whole
from workbench.runtime.passes.differentiation import Above
from workbench.runtime.passes.stage_passes import StagePasses, wants
from workbench.runtime.passes.unit_stage import UnitRows, UnitStage
from workbench.training.compare import LOSS, NoNumber, Rows, Seen, agree
from workbench.training.compared import lacks_memory, made_up_rows

TOKENS = (GPT_FAMILY, "bert", *ANSWERING)
"""Families that read tokens; the others of ours read pictures."""
SMALL = {"hidden": 16, "heads": 2, "seq": 16, "vocab": 256, "target_seq": 4}
SMALL_PICTURES = {"hidden": 8, "heads": 2, "seq": 32, "vocab": 10}


def check_stages(spec: ModelSpec, stages: Sequence[range], seed: int) -> str:
    """Compare; returns how that was done, or why it was not. Raises ValueError (`Differs`) where
    the stages compute something else, which names the first tensor that differs."""
    small = small_of(spec)
    model = make_model(small, seed)
    if lacking := lacks_memory(model):
        return f"not compared with the module: that {lacking}"
    rows = made_up_rows(small, small.seq)
    contexts = [
        Context(seed=seed, step=step, unit=0, samples=tuple(range(len(rows[-1]))))
        for step in range(2)
    ]
    whole = make_whole(model, seed=seed, undivided=True)
    cpu, how = torch.device("cpu"), torch.float32
    cut = [UnitStage(model, u, seed=seed, seq=small.seq, device=cpu, dtype=how) for u in stages]
    modules = {unit: module for stage in cut for unit, module in stage.modules.items()}
    for (unit, name), (owner, lent) in model.tied().items():
        set_parameter(modules[unit], name, modules[owner].get_parameter(lent))

    def by_module(ctx: Context) -> Seen:
        x, targets = _inputs(rows)
        loss = whole(x, targets, step=ctx.step, samples=ctx.samples)
        loss.backward()
        return _seen(loss, dict(whole.named_parameters()))

    try:
        agree(by_module, lambda ctx: _by_stages(cut, rows, ctx), contexts, "stages")
    except NoNumber as error:
        return f"not compared with the module: {error}"
    size = "" if small == spec else ", at small sizes"
    return f"loss and gradients of the stages are those of the module{size}"


def small_of(spec: ModelSpec) -> ModelSpec:
    """A model of as many layers and small sizes; one that is not ours stays as it is."""
    if not spec.ours:
        return spec
    sizes = SMALL if spec.family in TOKENS else SMALL_PICTURES
    has = {name: getattr(spec, name) for name in sizes}
    less = {name: min(sizes[name], value) for name, value in has.items() if value is not None}
    if less["hidden"] % less.get("heads", 1):
        less["heads"] = 1
    patch = spec.patch and gcd(spec.patch, less["seq"])
    return replace(spec, **less, head_size=None, feed_forward=None, patch=patch)


def _by_stages(stages: Sequence[UnitStage], rows: Rows, ctx: Context) -> Seen:
    """A pass of the stages, one after the other."""
    (x, targets), step = _inputs(rows), ctx.step
    passes, came, samples = StagePasses(dict(enumerate(stages))), (), len(targets)
    for number, stage in enumerate(stages):
        stage.begin(step, [UnitRows(x, targets, ctx)])
        came = passes.forward((number, 0, step), came, samples, keeps=True)
    loss, above = came[0], Above(share=1.0)
    for number, stage in reversed([*enumerate(stages)]):
        gradients = passes.backward((number, 0, step), (), samples, above)
        stage.end(step)
        above = Above(gradients, wants(stage.came(samples)))
    named: dict[str, nn.Parameter] = {}
    for stage in stages:
        named = stage.named_parameters() | named
    return _seen(loss, named)


def _inputs(rows: Rows) -> tuple[Any, Tensor]:
    *inputs, targets = (row.clone() for row in rows)
    return inputs[0] if len(inputs) == 1 else tuple(inputs), targets


def _seen(loss: Tensor, named: Mapping[str, nn.Parameter]) -> Seen:
    """What a pass has left, which has no gradients any more."""
    seen = {LOSS: loss.detach()}
    for name, parameter in named.items():
        seen[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    for parameter in named.values():
        parameter.grad = None
    return seen


def check_order(
    module: nn.Module, inputs: Sequence[Tensor], found: Sequence[Operator], stage: Mapping[str, int]
) -> str:
    """Compare a module with its operators in the order of their stages; returns as `check_stages`,
    and raises ValueError as that does. Nothing is drawn: the module evaluates."""
    module.cpu().eval()
    if any(one.program.plan.mode is True for one in found):
        return "not compared with the module, which does other things in evaluation"
    ordered = sorted(found, key=lambda one: stage[one.name])  # stable: calls keep their order

    def seen(out: Any) -> Seen:
        tensors = [t for t in flatten(out)[0] if isinstance(t, Tensor) and t.is_floating_point()]
        loss = sum(t.float().square().mean() for t in tensors)
        loss.backward()
        return _seen(loss, dict(module.named_parameters()))

    def by_module(_: Context) -> Seen:
        return seen(module(*(tensor.clone() for tensor in inputs)))

    def by_operators(_: Context) -> Seen:
        values = {n: tensor.clone() for n, tensor in enumerate(inputs)}
        for one in ordered:
            extra = [] if one.sized else [torch.zeros(len(inputs[0]))]
            made = one.program.cpu().eval()(*(values[n] for n in one.reads), *extra)
            values.update(zip(one.makes, made, strict=True))
        leaves = found[-1].program.plan.output[1]
        return seen([values[leaf.number] for leaf in leaves if isinstance(leaf, Ref)])

    contexts = [Context(seed=0, step=0, unit=0, samples=(0,))]
    try:
        agree(by_module, by_operators, contexts, "stages")
    except RuntimeError as error:  # autograd's, of memory that was written too late
        raise ValueError(f"calls fail in the order of their stages: {error}") from error
    return "outputs and gradients of the calls, stage by stage, are those of the module"
