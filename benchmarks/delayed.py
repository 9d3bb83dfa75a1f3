"""The reference of asynchronous pipelines: one process that computes each gradient on the weights
that the schedule declares, and knows nothing of pipelines, lanes or messages."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.core.division import micro_span
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.planner import pipeline_of, stages_of
from workbench.methods.ftpipe.stage_sizes import StageSizes
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.model import make_model
from workbench.model.base import Context
from workbench.model.weighing import weights_of
from workbench.schedule.action import Kind
from workbench.training.run import load_batches

Modules = dict[int, nn.Module]


class Delayed:
    """Training of stages that share no weights."""

    def __init__(self, spec: RunSpec, folder: Path, device: torch.device) -> None:
        self._spec, self._model, self._device = spec, make_model(spec.model, spec.seed), device
        model = self._model
        assert not model.tied(), "weights that stages share have versions of their own"
        self._batches = load_batches(spec, model, folder / "cache")
        stages = stages_of(spec, model.num_units)
        made = schedule(pipeline_of(spec, stages, StageSizes(IdealSizes(), stages)))
        self._stale = {(a.kind, a.unit, a.microbatch): a.stale for a in made.actions}
        oldest = [
            max(self._stale[Kind.FORWARD, stage, micro] for micro in range(spec.microbatches))
            for stage in range(len(stages))
        ]
        self._now: list[Modules] = [
            {unit: model.build(unit, seed=spec.seed, device=device) for unit in own}
            for own in stages
        ]
        self._kept = [
            [copy.deepcopy(own)] * (1 + n) for own, n in zip(self._now, oldest, strict=True)
        ]
        """Versions of each stage, the newest last."""
        self._optimizers = [self._optimizer(own) for own in self._now]

    def losses(self) -> list[float]:
        """Mean losses of the spec's steps."""
        return [self._step(step) for step in range(self._spec.steps)]

    def _step(self, step: int) -> float:
        spec, model, micros = self._spec, self._model, self._spec.microbatches
        numbers = self._batches.samples(step)
        spans = [micro_span(spec.batch, micro, micros) for micro in range(micros)]
        parts = [tuple(numbers[first:end]) for first, end in spans]
        read = [self._batches.rows(part) for part in parts]
        weights = [len(part) * micros / spec.batch for part in parts]
        if model.counts_differ:
            weights = weights_of(model, self._batches, step, [rows[-1] for rows in read])
        total = 0.0
        for micro, (part, rows, weight) in enumerate(zip(parts, read, weights, strict=True)):
            inputs = [tensor.to(self._device) for tensor in rows]
            total += self._micro_batch(step, micro, part, inputs, weight / micros)
        for stage, optimizer in enumerate(self._optimizers):
            for group in optimizer.param_groups:
                group["lr"] = spec.learning_rate(step)
            own = [weight for group in optimizer.param_groups for weight in group["params"]]
            if spec.clip is not None:
                torch.nn.utils.clip_grad_norm_(own, spec.clip)
            optimizer.step()
            optimizer.zero_grad()
            kept = self._kept[stage]
            kept[:] = [*kept[1:], copy.deepcopy(self._now[stage])]
        return total

    def _micro_batch(
        self, step: int, micro: int, samples: tuple[int, ...], rows: list[Tensor], share: float
    ) -> float:
        """The loss of a micro-batch, whose gradients are added to those of the newest weights."""
        *inputs, targets = rows

        def passed(kind: Kind, stage: int, x: tuple[Tensor, ...]) -> tuple[Modules, tuple]:
            modules = self._kept[stage][-1 - min(step, self._stale[kind, stage, micro])]
            for unit, module in modules.items():
                ctx = Context(seed=self._spec.seed, step=step, unit=unit, samples=samples)
                last = targets if unit == self._model.head else None
                made = self._model.forward(unit, module, x if len(x) > 1 else x[0], ctx, last)
                x = made if isinstance(made, tuple) else (made,)
            return modules, x

        crossing, last = [tuple(inputs)], len(self._now) - 1
        for stage in range(last):
            with torch.no_grad():
                _, out = passed(Kind.FORWARD, stage, crossing[-1])
            crossing.append(tuple(t.detach().requires_grad_(t.is_floating_point()) for t in out))
        above, loss = [], 0.0
        for stage in reversed(range(last + 1)):
            modules, out = passed(Kind.BACKWARD, stage, crossing[stage])
            if stage == last:
                ends, loss = [out[0] * share], out[0].item() * share
            else:
                pairs = [(t, g) for t, g in zip(out, above, strict=True) if g is not None]
                pairs = [(t, g) for t, g in pairs if t.requires_grad]
                ends, above = [t for t, _ in pairs], [g for _, g in pairs]
            torch.autograd.backward(ends, above or None)
            above = [tensor.grad for tensor in crossing[stage]]
            for unit, module in modules.items():
                newest = dict(self._now[stage][unit].named_parameters())
                for name, used in module.named_parameters():
                    if used.grad is not None:
                        own = newest[name]
                        own.grad = used.grad if own.grad is None else own.grad + used.grad
                        used.grad = None
        return loss

    def _optimizer(self, modules: Modules) -> torch.optim.Optimizer:
        spec, groups = self._spec, {True: [], False: []}
        for unit, module in modules.items():
            for name, parameter in module.named_parameters():
                groups[self._model.decays(unit, name)].append(parameter)
        return torch.optim.AdamW(
            [
                {"params": own, "weight_decay": spec.weight_decay * decays}
                for decays, own in groups.items()
                if own
            ],
            betas=(spec.beta1, spec.beta2), eps=spec.eps,
        )  # fmt: skip
