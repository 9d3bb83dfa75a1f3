"""Modules of torch that depend on how often and in what parts they run, made to depend on neither.

A layer that visits a device runs forward twice, and a minibatch passes it in parts. `nn.Dropout`
would draw other masks the second time, and BatchNorm would count its statistics twice. Their
counterparts here ask what is running (`running`): masks belong to seed, step, sample, layer and
place (dropout.py), and running statistics are updated by the pass that is differentiated, the one
that happens once for each micro-batch whatever the method.

The statistics that BatchNorm normalizes with are those of a micro-batch, as everywhere: a minibatch
divided otherwise is another training.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from workbench.model.base import Context
from workbench.model.dropout import dropout

_RUNNING = threading.local()


class _Unkeyed:
    """Runs instead of a context where nothing is trained."""


_UNKEYED = _Unkeyed()


@contextmanager
def running(ctx: Context | _Unkeyed) -> Iterator[None]:
    """Say what the modules called inside, in this thread, run."""
    before = getattr(_RUNNING, "ctx", None)
    _RUNNING.ctx = ctx
    try:
        yield
    finally:
        _RUNNING.ctx = before


def unkeyed() -> AbstractContextManager[None]:
    """Say that a model is only looked at: dropout inside, in this thread, is torch's own."""
    return running(_UNKEYED)


class KeyedDropout(nn.Module):
    """`nn.Dropout` whose masks belong to the samples; the first dimension counts them."""

    def __init__(self, p: float, site: str) -> None:
        super().__init__()
        self.p, self.site = p, site

    def forward(self, x: Tensor) -> Tensor:
        ctx = getattr(_RUNNING, "ctx", None)
        if ctx is _UNKEYED:
            return F.dropout(x, self.p, self.training)
        if self.p == 0.0 or not self.training or (ctx is not None and not ctx.training):
            return x
        if ctx is None:
            raise ValueError(f"dropout {self.site!r} does not know what samples it is called with")
        return dropout(x, self.p, ctx, self.site)


class OnceNorm(nn.Module):
    """BatchNorm whose running statistics see each micro-batch once. Names are BatchNorm's own."""

    def __init__(self, of: _BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = of.eps, of.momentum
        self._counted: tuple[int, tuple[int, ...]] | None = None
        """The micro-batch that was counted last: a checkpoint's repetition of it is not."""
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(of, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(of, name))

    def forward(self, x: Tensor) -> Tensor:
        own = (self.running_mean, self.running_var)
        if not self.training:
            batchwise = self.running_mean is None
            return F.batch_norm(x, *own, self.weight, self.bias, batchwise, 0.0, self.eps)
        ctx = getattr(_RUNNING, "ctx", None)
        micro_batch = None if ctx in (None, _UNKEYED) else (ctx.step, ctx.samples)
        counts = torch.is_grad_enabled() and self.running_mean is not None
        counts = counts and (micro_batch is None or micro_batch != self._counted)
        rate = self.momentum
        if counts:
            self._counted = micro_batch
            self.num_batches_tracked.add_(1)
            if rate is None:
                rate = 1.0 / float(self.num_batches_tracked)
        if not counts:  # autograd keeps as many tensors as the first time, or a checkpoint objects
            own = tuple(None if t is None else t.clone() for t in own)
        return F.batch_norm(x, *own, self.weight, self.bias, True, rate or 0.0, self.eps)


def make_keyed(model: nn.Module) -> nn.Module:
    """Put these in the place of a model's dropout and BatchNorm modules; gives the model back."""
    for path, module in list(model.named_modules()):
        for name, child in module.named_children():
            place = f"{path}.{name}" if path else name
            if type(child) is nn.Dropout:
                setattr(module, name, KeyedDropout(child.p, place))
            elif isinstance(child, _BatchNorm):
                setattr(module, name, OnceNorm(child))
    return model
