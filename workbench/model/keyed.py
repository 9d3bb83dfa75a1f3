"""Modules of torch that depend on how often and in what parts they run, made to depend on neither.

A layer that visits a device runs forward twice, and a minibatch passes it in parts. `nn.Dropout`
would draw other masks the second time, and BatchNorm would count its statistics twice. Their
counterparts here ask what is running (drawn.py): masks belong to seed, step, sample and place, and
running statistics are updated by the pass that is differentiated, the one that happens once for
each micro-batch whatever the method.

The statistics that BatchNorm normalizes with are those of a micro-batch, as everywhere: a minibatch
divided otherwise is another training.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from workbench.model.drawn import Pass, Seen, current, filled, is_looked_at

COUNT = "num_batches_tracked"
STATISTICS = ("running_mean", "running_var", COUNT)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class KeyedDropout(nn.Dropout):
    """`nn.Dropout` whose masks belong to the samples."""

    def forward(self, x: Tensor) -> Tensor:
        if is_looked_at():
            return F.dropout(x, self.p, self.training)
        running = current()
        if self.p == 0.0 or not self.training or (running and not running.ctx.training):
            return x
        if running is None:
            raise ValueError("a dropout module does not know what samples it is called with")
        if isinstance(running, Seen):
            running.shapes.append((x.shape, True, False))
            return x
        if self.p == 1.0:
            running.next_draw(x.shape, hidden=False)
            return x * 0.0
        kept = filled(
            torch.empty(x.shape, dtype=torch.bool, device=x.device),
            lambda row, generator: row.bernoulli_(1.0 - self.p, generator=generator),
            hidden=False,
        )
        return x * kept * (1.0 / (1.0 - self.p))


class Sharers(Protocol):
    """Processes that share a micro-batch's rows (runtime/transport/collectives.py)."""

    count: int

    def summed(self, terms: Tensor) -> Tensor: ...

    def total(self, values: Tensor) -> Tensor: ...


class OnceNorm(_BatchNorm):
    """BatchNorm whose running statistics see each micro-batch once, at each call in a pass. Names
    are BatchNorm's own."""

    _counted: tuple[int | None, dict[tuple[int, ...], int]] = (None, {})
    """The step that was counted last, and calls by the samples of its micro-batches: a repetition,
    as by a checkpoint, also when others have passed meanwhile, is not counted."""
    sharers: Sharers | None = None
    """Processes that have rows of one micro-batch each; None for this one alone."""

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        own = (self.running_mean, self.running_var)
        if not self.training:
            batchwise = self.running_mean is None
            return F.batch_norm(x, *own, *self._affine(x), batchwise, 0.0, self.eps)
        running = current()
        if isinstance(running, Seen):
            running.calls[id(self)] = running.calls.get(id(self), 0) + 1
        counts = torch.is_grad_enabled() and self.running_mean is not None
        counts = counts and (running is None or self._is_new(running))
        rate = self.momentum
        if counts:
            self.num_batches_tracked.add_(1)
            if rate is None:
                rate = 1.0 / float(self.num_batches_tracked)
        else:  # autograd keeps as many tensors as the first time, or a checkpoint objects
            own = tuple(None if t is None else t.clone() for t in own)
        if self.sharers is not None and self.sharers.count > 1:
            return self._over_all(x, own, rate or 0.0)
        return F.batch_norm(x, *own, *self._affine(x), True, rate or 0.0, self.eps)

    def _over_all(self, x: Tensor, own: tuple[Tensor | None, Tensor | None], rate: float) -> Tensor:
        """By the statistics of all processes' rows."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        dims, shape = [d for d in range(x.dim()) if d != 1], [1, -1, *[1] * (x.dim() - 2)]
        count = self.sharers.summed(wide.new_tensor(x.numel() // x.shape[1], dtype=torch.float64))
        mean = self.sharers.total(wide.sum(dims)) / count
        apart = wide - mean.view(shape)
        variance = self.sharers.total(apart.square().sum(dims)) / count
        with torch.no_grad():
            for kept, found in zip(own, (mean, variance * count / (count - 1)), strict=True):
                if kept is not None:
                    kept.lerp_(found.to(kept.dtype), rate)
        y = apart * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(x.dtype)

    def _affine(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias as its kernel takes them. Statistics stay in fp32, and beside them a CPU
        has no kernel for weights in bf16; autocast keeps them in fp32 as well."""
        if not x.is_cpu or self.running_mean is None or self.weight is None:
            return self.weight, self.bias
        return self.weight.to(self.running_mean.dtype), self.bias.to(self.running_mean.dtype)

    def begin_anew(self) -> None:
        """Count the next micro-batch, also one that was counted: a checkpoint is taken up."""
        self._counted = None, {}

    def _is_new(self, running: Pass) -> bool:
        """Whether this call of a pass with gradients is no repetition."""
        call = running.calls[id(self)] = running.calls.get(id(self), 0) + 1
        if self._counted[0] != running.ctx.step:
            self._counted = running.ctx.step, {}
        counted = self._counted[1]
        if call <= counted.get(running.ctx.samples, 0):
            return False
        counted[running.ctx.samples] = call
        return True


ONCE = {norm: type(f"Once{norm.__name__}", (OnceNorm, norm), {}) for norm in NORMS}


def norms_in(module: nn.Module) -> dict[str, OnceNorm]:
    """BatchNorm modules that have running statistics, by their paths."""
    return {
        path: part
        for path, part in module.named_modules()
        if isinstance(part, OnceNorm) and part.running_mean is not None
    }


def within(path: str, name: str) -> str:
    """The name of a tensor of the submodule at a path."""
    return f"{path}.{name}" if path else name


def make_keyed(model: nn.Module) -> nn.Module:
    """Have a model's dropout and BatchNorm modules do so; they stay the objects that they are, with
    their hooks. Gives the model back."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = KeyedDropout
        elif type(module) in ONCE:
            module.__class__ = ONCE[type(module)]
    return model
