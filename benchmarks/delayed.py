"""The reference of asynchronous pipelines: one process that computes each gradient on the weights
that the schedule declares, on any device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.core.division import micro_span
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.planner import pipeline_of
from workbench.methods.ftpipe.run import stages_in
from workbench.methods.ftpipe.stage_sizes import StageSizes
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.model import make_model
from workbench.model.base import Context, LayeredModel, set_parameter
from workbench.model.weighing import weights_of
from workbench.runtime.passes.bundle import bundled, single
from workbench.schedule.action import Kind
from workbench.training.run import load_batches


class Delayed:
    """One process that knows which weights each pass reads, and nothing of pipelines. After each
    saving nothing is stale."""

    def __init__(self, spec: RunSpec, folder: Path, device: torch.device | str = "cpu") -> None:
        self._spec, self._model = spec, make_model(spec.model, spec.seed)
        self._device = device
        model = self._model
        self._batches = load_batches(spec, model, folder / "cache")
        stages = stages_in(model, spec)
        line = pipeline_of(spec, stages, StageSizes(IdealSizes(), stages))
        made = schedule(line)
        self._stale = {(a.kind, a.unit, a.microbatch): a.stale for a in made.actions}
        self._late = {loan[:2]: line.late(loan) for loan in line.loans}
        """Owner and borrower -> updates that a lent weight lacks besides."""
        self._stage_of = {unit: n for n, own in enumerate(stages) for unit in own}
        self._oldest = max(self._stale.values()) + max(self._late.values(), default=0)
        """Updates that some pass lacks."""
        like = {"seed": spec.seed, "device": device}
        self._now = [{unit: model.build(unit, **like) for unit in own} for own in stages]
        self._kept = [{0: copy.deepcopy(modules)} for modules in self._now]
        self._optimizers = [optimizer(spec, model, modules) for modules in self._now]

    def step(self, step: int) -> float:
        """A step's mean loss."""
        batch, micros = self._spec.batch, self._spec.microbatches
        spans = [micro_span(batch, micro, micros) for micro in range(micros)]
        parts = [tuple(self._batches.samples(step)[first:end]) for first, end in spans]
        rows = [self._batches.rows(part) for part in parts]
        shares = [len(part) / batch for part in parts]
        if self._model.counts_differ:
            targets = [own[-1] for own in rows]
            weights = weights_of(self._model, self._batches, step, targets)
            shares = [weight / micros for weight in weights]
        total = sum(map(partial(self._micro_batch, step), range(micros), parts, rows, shares))
        for stage, optimizer in enumerate(self._optimizers):
            for group in optimizer.param_groups:
                group["lr"] = self._spec.learning_rate(step)
            own = [weight for group in optimizer.param_groups for weight in group["params"]]
            if (limit := self._spec.clip) is not None:
                share = sum(weight.numel() for weight in own) / self._model.parameters_count()
                prop = self._spec.options.stage_clip == "local-prop"
                torch.nn.utils.clip_grad_norm_(own, limit * share if prop else limit)
            optimizer.step()
            optimizer.zero_grad()
            kept = self._kept[stage]
            kept[step + 1] = copy.deepcopy(self._now[stage])
            for old in [each for each in kept if each < step + 1 - self._oldest]:
                del kept[old]
        return total

    def _micro_batch(
        self, step: int, micro: int, samples: tuple[int, ...], rows: Sequence[Tensor], share: float
    ) -> float:
        """The loss of a micro-batch, whose gradients are added to those of the newest weights."""
        *inputs, targets = (tensor.to(self._device) for tensor in rows)

        def passed(kind: Kind, stage: int, x: tuple) -> tuple[dict, tuple]:
            """The weights that a pass of a stage reads, and what comes out."""
            since = step - step % (self._spec.save_every or self._spec.steps)
            stale = self._stale[kind, stage, micro]
            modules = self._kept[stage][max(since, step - stale)]
            for (unit, name), (owner, lent) in self._model.tied().items():
                if unit in modules:  # by the declared version, which may be another one
                    at = self._stage_of[owner]
                    late = self._late.get((at, stage), 0)
                    lender = self._kept[at][max(since, step - stale - late)]
                    weight = lender[owner].get_parameter(lent)
                    weight = weight if stage == at else weight.detach().clone()
                    set_parameter(modules[unit], name, weight)
            for unit, module in modules.items():
                ctx = Context(seed=self._spec.seed, step=step, unit=unit, samples=samples)
                last = targets if unit == self._model.head else None
                x = self._model.forward(unit, module, single(x), ctx, last)
                x = bundled(x)
            return modules, x

        crossing, last = [tuple(inputs)], len(self._now) - 1
        for stage in range(last):
            out = passed(Kind.FORWARD, stage, crossing[-1])[1]
            crossing.append(tuple(t.detach().requires_grad_(t.is_floating_point()) for t in out))
        above, loss = (None,), 0.0
        for stage in reversed(range(last + 1)):
            modules, out = passed(Kind.BACKWARD, stage, crossing[stage])
            ends = (out[0] * share,) if stage == last else out
            loss = ends[0].item() if stage == last else loss
            pairs = zip(ends, above, strict=True)
            pairs = [
                (e, a) for e, a in pairs if e.requires_grad and (a is not None or stage == last)
            ]
            if pairs:
                torch.autograd.backward(*zip(*pairs, strict=True))
            above = tuple(t.grad for t in crossing[stage])
            for unit, module in modules.items():
                for name, used in module.named_parameters():
                    owner, lent = self._model.tied().get((unit, name), (unit, name))
                    newest = next(one[owner] for one in self._now if owner in one)
                    own, made = newest.get_parameter(lent), used.grad
                    if made is not None:
                        own.grad = made.clone() if own.grad is None else own.grad + made
                    used.grad = None
        return loss


def optimizer(
    spec: RunSpec, model: LayeredModel, modules: Mapping[int, nn.Module]
) -> torch.optim.Optimizer:
    """Torch's, of a stage's modules."""
    named = [
        (model.decays(unit, name), parameter)
        for unit, module in modules.items()
        for name, parameter in module.named_parameters()
    ]
    groups = [
        {
            "params": [parameter for decays, parameter in named if decays == wanted],
            "weight_decay": spec.weight_decay if wanted else 0.0,
        }
        for wanted in (True, False)
    ]
    groups = [group for group in groups if group["params"]] or groups
    how, adams = spec.options, {"betas": (spec.beta1, spec.beta2), "eps": spec.eps}
    return {
        "adamw": lambda: torch.optim.AdamW(groups, **adams),
        "adam": lambda: torch.optim.Adam(groups, **adams),
        "sgd": lambda: torch.optim.SGD(
            groups, lr=spec.lr, momentum=how.momentum, nesterov=how.nesterov
        ),
        "adafactor": lambda: torch.optim.Adafactor(groups),
    }[how.optimizer]()
