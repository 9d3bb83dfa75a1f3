"""A plan in a user's own loop, in the processes of torchrun: each takes the whole batch.

The module is one whose operators have a list (model/operators). Its weights are cut as the plan
says; its own code and the loss function are compared with the list's arithmetic, on two rows,
before anything is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.model_spec import ModelSpec
from workbench.core.reporter import Untold
from workbench.methods.aceso.options import model_of, plan_of
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.stepping import PlanStepping, StepRows
from workbench.methods.pipeline.driven import check_tiers
from workbench.model import make_model
from workbench.model.base import LayeredModel, move_buffers, set_parameter
from workbench.model.hf_config import spec_from_config
from workbench.model.objective import PREFIX, Batch, Objective
from workbench.model.operators.llama_places import LLAMA
from workbench.model.text import IGNORED
from workbench.model.whole import Whole
from workbench.runtime.checkpoint.manifest import step_name
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


class Planned(Steps):
    """Steps of one process of a plan."""

    def __init__(self, task: Task) -> None:
        """Raises ValueError for what cannot be trained so."""
        spec, peers = task.spec, task.peers
        check_tiers(spec)
        if not spec.options.plan:
            raise ValueError("plan is missing; give what workbench.search found, or its file")
        plan = plan_of(spec.options.plan, task.results)
        self._plan, self._inputs = plan, INPUTS.get(plan.subject.model, 1)
        _check(task, plan)
        task.report.phase("taking the module's operators")
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
        told = as_one(partial(_digest, first), peers.group)
        if len({*told}) > 1:
            raise ValueError("the processes pass other batches; a plan's take the same whole one")
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
        for name, value in stepping.stage.statistics().items():
            value.copy_(buffers[name])
        shapes = sorted((name, tuple(p.shape)) for name, p in named.items())
        data = SimpleNamespace(digest=hashlib.sha256(f"operators {shapes}".encode()).hexdigest())
        shape = replace(spec.model, layers=model_spec.layers)
        self._history = History(replace(spec, model=shape), task.folder, data)

    @property
    def steps(self) -> int:
        return len(self._history.losses)

    @property
    def grad_norm(self) -> float | None:
        return (self._history.grad_norms or [None])[-1]

    def step(self, batch: Batch) -> float:
        self._before = step = self.steps
        *inputs, targets = batch.tensors[: self._inputs + 1]
        counts = (targets != IGNORED).reshape(len(targets), -1).sum(1).tolist()

        def read() -> StepRows:
            return StepRows(inputs, targets, counts)

        samples = range(step * batch.rows, (step + 1) * batch.rows)
        ended = self._stepping.step(step, samples, read)
        self._history.ended(
            step, ended.loss, 0.0, ended.norm, skipped=ended.overflow, report=Untold()
        )
        return ended.loss

    def forget(self) -> bool:
        self._stepping.forget()
        return self.steps == self._before

    def tensors(self) -> dict[str, Tensor]:
        found = self._stepping.holder.wholes() | self._stepping.statistics()
        return {PREFIX + name: tensor for name, tensor in found.items()}

    def save(self, folder: Path) -> Path:
        history, holder = self._history, self._stepping.holder
        path, steps = folder / step_name(self.steps), self.steps
        history.folder, history.settings = folder, self._spec.optimizer.told()
        of = holder, Untold(), self._stepping.statistics()
        holder.save(partial(history.save, steps, steps - len(history.skipped), *of))
        if not path.exists():
            raise OSError((history.notes or [f"{path} was not written"])[-1])
        return path

    def load(self, folder: Path) -> int | None:
        self._history.folder = folder
        found = self._history.resume(self._stepping.holder, Untold())
        if found:
            for name, value in self._stepping.stage.statistics().items():
                value.copy_(self._history.statistics[name])
        return found or None

    def close(self) -> None:
        self._stepping.close()


def _check(task: Task, plan: Plan) -> None:
    """Raise ValueError for a loop that the plan does not train."""
    spec, world = task.spec, len(task.peers.folders)
    if plan.gpus != world:
        raise ValueError(f"the plan is for {plan.gpus} devices, and there are {world} processes: "
                         f"start the script by torchrun with {plan.gpus}")  # fmt: skip
    if spec.batch != plan.subject.batch:
        raise ValueError(f"the batch has {spec.batch} rows; the plan's has {plan.subject.batch}, "
                         "which every process passes whole")  # fmt: skip
    for name, value, usual in (
        ("stages", task.stages, None), ("microbatches", task.microbatches, 1),
        ("activations", spec.activations, "auto"), ("weight_of", task.weight_of, None),
    ):  # fmt: skip
        if value != usual:
            raise ValueError(f"{name} is {value!r}; the plan and the labels say it, leave it out")


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
            f"{name}, and trains this project's module of it. Any module is trained by 1f1b"
        )
    return model_of(
        plan,
        ModelSpec(vocab=len(named[head]), tied=named[head] is named.get(words), seq=side),
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


def _digest(tensors: Sequence[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().view(torch.uint8).numpy())
    return found.hexdigest()


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
