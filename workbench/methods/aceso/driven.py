"""A plan in a user's own loop, in the processes of torchrun: each takes the whole batch.

The module is one whose operators have a list (model/operators). Its weights are cut as the plan
says; its own code and the loss function are compared with the list's arithmetic, on two rows,
before anything is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.model_spec import ModelSpec
from workbench.methods.aceso.driven_layers import LayerSteps
from workbench.methods.aceso.options import model_of, plan_of
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.plan_steps import PlanSteps, check, check_alike
from workbench.methods.aceso.stepping import PlanStepping, StepRows
from workbench.model import make_model
from workbench.model.base import LayeredModel, move_buffers, set_parameter
from workbench.model.hf_config import spec_from_config
from workbench.model.objective import PREFIX, Batch, Objective
from workbench.model.operators import MODULE
from workbench.model.operators.llama_places import LLAMA
from workbench.model.text import IGNORED
from workbench.model.whole import Whole
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.transport.groups import as_one
from workbench.training.history import History
from workbench.training.loop import Steps, Task

ENDS = {
    "gpt": ("lm_head.weight", "transformer.wte.weight"),
    "t5": ("t5-post-process.weight", "embeddings.encoder-embedding.words.weight"),
    "resnet": ("head.fc.weight", ""),
}
"""List -> names of the last matrix, and of the table of words that may be it."""
INPUTS = {"t5": 3}
"""List -> tensors that the model takes, where these are more than one."""
TWO = 2
CLOSE, CLOSE_GRADIENTS = 1e-4, 1e-3
"""Relative differences of losses, and of gradients by their norm, that rounding may make."""


def planned(task: Task) -> Steps:
    """Steps of one process of the plan that is given. Raises ValueError for what cannot be trained
    so."""
    if not task.spec.options.plan:
        raise ValueError("plan is missing; give what workbench.search found, or its file")
    plan = plan_of(task.spec.options.plan, task.results)
    check(task, plan)
    return (LayerSteps if plan.subject.model == MODULE else OperatorSteps)(task, plan)


class OperatorSteps(PlanSteps):
    """Steps of a module whose operators have a list."""

    prefix = PREFIX

    def __init__(self, task: Task, plan: Plan) -> None:
        """Raises ValueError for what cannot be trained so."""
        spec, peers = task.spec, task.peers
        self._inputs = INPUTS.get(plan.subject.model, 1)
        task.report.phase("taking the module's operators")
        task.objective.fill()
        named = dict(task.objective.module.named_parameters(remove_duplicate=False))
        first = task.first.tensors[: len(task.first.places)]
        side, module = first[0].shape[-1], task.objective.module
        model_spec = _spec_of(module, named, plan, task.folder, side)
        model = make_model(model_spec)
        _check_names(model, named, task.objective.name)
        if len(first) != self._inputs + 1:
            raise ValueError(
                f"the batch has {len(first)} tensors; a plan of {plan.subject.model} takes "
                f"{self._inputs} that the model reads, and then the labels"
            )
        check_alike(task, first)
        buffers = {name: each.clone() for name, each in module.named_buffers()}
        task.report.phase("comparing the operators with the module")
        as_one(
            lambda: peers.rank or _compare(task.objective, model, model_spec, named, first),
            peers.group,
        )
        task.report.phase("making the stages")
        still = {name.removeprefix(PREFIX) for name in task.objective.no_decay}
        micros = -(-plan.subject.batch // plan.micro)
        spec = replace(spec, ranks=plan.gpus, microbatches=micros)
        self._spec = spec
        self._stepping = stepping = PlanStepping(
            replace(spec, model=model_spec), plan, model,
            lambda key: named[model.state_name(*key)], device=peers.device,
            dtype=DTYPES[spec.dtype], still=still,
        )  # fmt: skip
        peers.stops.append(stepping.stop)
        stepping.take_up(buffers)
        shapes = sorted((name, tuple(p.shape)) for name, p in named.items())
        data = SimpleNamespace(digest=hashlib.sha256(f"operators {shapes}".encode()).hexdigest())
        shape = replace(spec.model, layers=model_spec.layers)
        self._history = History(replace(spec, model=shape), task.folder, data)

    def step(self, batch: Batch) -> float:
        *inputs, targets = batch.tensors[: self._inputs + 1]
        counts = (targets != IGNORED).reshape(len(targets), -1).sum(1).tolist()
        return self._step(batch, StepRows(inputs, targets, counts))


def _spec_of(
    module: nn.Module, named: dict[str, nn.Parameter], plan: Plan, folder: Path, side: int
) -> ModelSpec:
    """The model of the plan's operators that a module is; pictures have a `side` of so many pixels.
    Raises ValueError for another one."""
    name = plan.subject.model
    for part in module.modules():
        p = getattr(part, "p", 0)
        if isinstance(p, float) and p > 0:
            raise ValueError(f"{type(module).__name__} drops with probability {p}; a plan in a "
                             "loop of one's own trains without dropout, set it to 0")  # fmt: skip
    if frozen := [each for each, p in named.items() if not p.requires_grad]:
        raise ValueError(f"parameter {frozen[0]!r} is not trained; a plan trains all")
    if name == LLAMA:
        config = getattr(module, "config", None)
        if config is None:
            raise ValueError(f"{type(module).__name__} has no config; the plan is of {LLAMA}, "
                             "transformers' LlamaForCausalLM")  # fmt: skip
        file = folder / "config.json"
        config.to_json_file(file, use_diff=False)
        return model_of(plan, spec_from_config(file, seq=dict(plan.subject.shape)["seq_length"]))
    head, words = ENDS[name]
    if head not in named:
        raise ValueError(
            f"{type(module).__name__} has no parameter {head!r}; the plan is of the operators of "
            f"{name}, and trains this project's module of it; any module is trained under a plan "
            "of its own layers, by workbench.search(module=...)"
        )
    return model_of(
        plan, ModelSpec(vocab=len(named[head]), tied=named[head] is named.get(words), seq=side)
    )


def _check_names(model: LayeredModel, named: dict[str, nn.Parameter], name: str) -> None:
    """Raise ValueError unless a module has the parameters of the model, and no others."""
    tied, left = model.tied(), {*named}
    keys = [(u, local) for u in range(model.num_units) for local in model.shapes(u)]
    for key in [*keys, *tied]:
        own, (unit, local) = model.state_name(*key), tied.get(key, key)
        wanted = tuple(model.shapes(unit)[local])
        there = tuple(named[own].shape) if own in named else None
        if there != wanted:
            has = f"of {there}" if there else "missing"
            raise ValueError(f"parameter {own!r} of {name} is {has}; the plan's is of {wanted}")
        left.discard(own)
    if left:
        raise ValueError(f"parameter {min(left)!r} of {name} is none of the plan's model")


def _compare(
    objective: Objective, model: LayeredModel, spec: ModelSpec, named: dict[str, nn.Parameter],
    first: Sequence[Tensor],
) -> None:  # fmt: skip
    """Raise ValueError where the operators have another loss, or other gradients, than the module
    and the loss function as they are written."""
    device = next(iter(named.values())).device
    some = [tensor[:TWO].to(device) for tensor in first]
    units = [model.empty_module(unit, device=device) for unit in range(model.num_units)]
    for unit, module in enumerate(units):
        for local, _ in [*module.named_parameters(remove_duplicate=False)]:
            set_parameter(module, local, named[model.state_name(unit, local)])
        move_buffers(module, device)
    whole = Whole(model, units, seed=0, checkpoint=False)
    *inputs, targets = some
    taken = tuple(inputs) if len(inputs) > 1 else inputs[0]
    if spec.decomposed:
        ours = whole(taken, targets)
    else:
        logits = whole(taken).flatten(0, -2).float()
        ours = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)
    theirs = objective(*some)
    trained = [*{id(p): p for p in named.values()}.values()]
    if not torch.isclose(ours, theirs, rtol=CLOSE):
        raise ValueError(
            f"the loss of two rows is {float(theirs):.6g} by {objective.name} and loss_fn, and "
            f"{float(ours):.6g} by the plan's operators, which take the mean cross-entropy of the "
            "batch's last tensor; any module and loss are trained by 1f1b"
        )
    pairs = (torch.autograd.grad(loss, trained) for loss in (ours, theirs))
    of = {id(p): name for name, p in reversed(named.items())}
    for p, one, other in zip(trained, *pairs, strict=True):
        if (one - other).norm() > CLOSE_GRADIENTS * other.norm() + 1e-7:
            raise ValueError(
                f"the gradient of {of[id(p)]!r} is another one by the plan's operators than by "
                f"{objective.name}, whose code computes something else; it is trained by 1f1b"
            )
