"""Stages of a model against the module as it is written, before anything trains them.

The stages are those of the runtime, in one process and fp32: each runs on tensors that are cut from
the stage before, and takes gradients from the stage behind. Loss and every gradient are compared on
samples that are made up. A model of this project is made small first, in all but its depth, since
no size changes what a layer hands to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.model_spec import HEADLESS, ModelSpec
from workbench.model import make_model
from workbench.model.base import Context, LayeredModel, set_parameter
from workbench.model.decompose.operators import Operator
from workbench.model.decompose.plan import Ref, flatten
from workbench.model.whole import Whole, make_whole
from workbench.runtime.passes.differentiation import Above
from workbench.runtime.passes.stage_passes import StagePasses, wants
from workbench.runtime.passes.unit_stage import UnitRows, UnitStage
from workbench.training.compare import LOSS, NoNumber, Rows, Seen, agree
from workbench.training.compared import lacks_memory, made_up_rows

SMALL = {"hidden": 16, "heads": 2, "seq": 16, "vocab": 256, "target_seq": 4}
SMALL_PICTURES = {"hidden": 8, "seq": 32, "vocab": 10}


def check_stages(spec: ModelSpec, stages: Sequence[range], seed: int) -> str:
    """Compare; returns how that was done, or why it was not. Raises ValueError (`Differs`) where
    the stages compute something else, which names the first tensor that differs."""
    small = small_of(spec)
    model = make_model(small, seed)
    if lacking := lacks_memory(model):
        return f"not compared with the module: that {lacking}"
    rows = made_up_rows(small, small.seq)
    samples = tuple(range(len(rows[-1])))
    whole = make_whole(model, seed=seed, undivided=True)
    cut = [
        UnitStage(
            model, units, seed=seed, seq=small.seq, device=torch.device("cpu"), dtype=torch.float32
        )
        for units in stages
    ]
    _tie(model, cut)
    contexts = [Context(seed=seed, step=step, unit=0, samples=samples) for step in range(2)]
    try:
        agree(partial(_by_module, whole, rows), partial(_by_stages, cut, rows), contexts, "stages")
    except NoNumber as error:
        return f"not compared with the module: {error}"
    size = "" if small == spec else f", at {_sizes(spec, small)}"
    return f"loss and gradients of the stages are those of the module{size}"


def small_of(spec: ModelSpec) -> ModelSpec:
    """A model of as many layers and small sizes; one that is not ours stays as it is."""
    if not spec.ours:
        return spec
    sizes = SMALL_PICTURES if spec.family in HEADLESS else SMALL
    less = {name: min(size, getattr(spec, name) or size) for name, size in sizes.items()}
    if spec.target_seq is None:
        less.pop("target_seq", None)
    widths = {} if spec.family in HEADLESS else {"head_size": None, "feed_forward": None}
    if less.get("hidden", 2) % less.get("heads", 1):
        less["heads"] = 1
    return replace(spec, **less, **widths)


def _sizes(spec: ModelSpec, small: ModelSpec) -> str:
    names = ("hidden", "heads", "seq", "vocab")
    changed = [name for name in names if getattr(spec, name) != getattr(small, name)]
    return ", ".join(f"{name}={getattr(small, name)}" for name in changed) or "its small widths"


def _tie(model: LayeredModel, stages: Sequence[UnitStage]) -> None:
    """Have stages share what the model's units do."""
    modules = {unit: module for stage in stages for unit, module in stage.modules.items()}
    for (unit, name), (owner, lent) in model.tied().items():
        set_parameter(modules[unit], name, modules[owner].get_parameter(lent))


def _by_module(whole: Whole, rows: Rows, ctx: Context) -> Seen:
    """A pass of the module itself."""
    *inputs, targets = (row.clone() for row in rows)
    x = inputs[0] if len(inputs) == 1 else tuple(inputs)
    loss = whole(x, targets, step=ctx.step, samples=ctx.samples)
    loss.backward()
    seen = {LOSS: loss.detach()} | {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in whole.named_parameters()
    }
    whole.zero_grad()
    return seen


def _by_stages(stages: Sequence[UnitStage], rows: Rows, ctx: Context) -> Seen:
    """A pass of the stages, one after the other."""
    *inputs, targets = (row.clone() for row in rows)
    x, samples, step = inputs[0] if len(inputs) == 1 else tuple(inputs), len(targets), ctx.step
    passes, came = StagePasses(dict(enumerate(stages))), ()
    for number, stage in enumerate(stages):
        stage.begin(step, [UnitRows(x, targets, ctx)])
        came = passes.forward((number, 0, step), came, samples, keeps=True)
    seen, above = {LOSS: came[0].detach()}, Above(share=1.0)
    for number, stage in reversed([*enumerate(stages)]):
        gradients = passes.backward((number, 0, step), (), samples, above)
        stage.end(step)
        above = Above(gradients, wants(stage.came(samples)))
    for stage in stages:
        for name, parameter in stage.named_parameters().items():
            if name not in seen:
                grad = parameter.grad
                seen[name] = torch.zeros_like(parameter) if grad is None else grad
    for stage in stages:
        for module in stage.modules.values():
            module.zero_grad()
    return seen


def check_order(
    module: nn.Module, inputs: Sequence[Tensor], found: Sequence[Operator], stage: dict[str, int]
) -> str:
    """Compare a module with its operators in the order of their stages; returns as `check_stages`,
    and raises ValueError as that does. Nothing is drawn: the module evaluates."""
    module.cpu().eval()
    ordered = sorted(found, key=lambda one: stage[one.name])  # stable: calls keep their order
    if any(one.program.plan.mode is True for one in found):
        return "not compared with the module, which does other things in evaluation"

    def seen(out: Any) -> Seen:
        tensors = [t for t in flatten(out)[0] if isinstance(t, Tensor) and t.is_floating_point()]
        loss = sum(t.float().square().mean() for t in tensors)
        loss.backward()
        grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        module.zero_grad()
        return {LOSS: loss.detach(), **grads}

    def by_operators(_: Context) -> Seen:
        values = {n: tensor.clone() for n, tensor in enumerate(inputs)}
        for one in ordered:
            one.program.cpu().eval()
            extra = [] if one.sized else [torch.zeros(len(inputs[0]))]
            made = one.program(*(values[n] for n in one.reads), *extra)
            values.update(zip(one.makes, made, strict=True))
        leaves = found[-1].program.plan.output[1]
        return seen([values[leaf.number] for leaf in leaves if isinstance(leaf, Ref)])

    contexts = [Context(seed=0, step=0, unit=0, samples=(0,))]
    agree(lambda _: seen(module(*(t.clone() for t in inputs))), by_operators, contexts, "stages")
    return "outputs and gradients of the operators, stage by stage, are those of the module"
