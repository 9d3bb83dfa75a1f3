"""The slices of a module against the module as its author wrote it, before anything is trained.

Both run forward and backward on the example batch and on the module's own weights, on the GPU
where it has room for them and their gradients: the loss is compared and, of every parameter's
gradient, its norm and two sums, so that no two copies of all gradients are ever there. The module
runs forward once more, which shows whether a pass leaves something behind for the next one.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from workbench.model.base import Context
from workbench.model.drawn import Pass, drawing
from workbench.model.frozen import held
from workbench.model.slices import EXAMPLE, Slices, loss_of
from workbench.training.compare import LOSS, Seen, agree

CLOSE = 1e-5
"""Relative difference at most: sums of gradients may be added up in another order."""
SUMS = 100
"""How much more sums may differ, in which much cancels out."""
ROOM = 4
"""Bytes of a device's free memory for each byte of the weights, for them to be compared there."""


def check_written(slices: Slices, device: torch.device) -> None:
    """Raise ValueError, one sentence, where the slices would not train as the module does."""
    nbytes = sum(parameter.nbytes for parameter in slices.module.parameters())
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[0] < ROOM * nbytes:
        device = torch.device("cpu")
    before = [buffer.clone() for buffer in slices.module.buffers()]
    given = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in slices.example.items()
    }

    def author(ctx: Context) -> Tensor:
        with drawing(Pass(ctx, slices.model.draws)), held(slices.module, [*slices.frozen]):
            return loss_of(slices.module(**given), None).float()

    def cut(ctx: Context) -> Tensor:
        x = tuple(given[value.name] for value in slices.layers[0].inputs)
        for layer in slices.layers:
            x = slices.model.forward(layer.index, layer.module, x, replace(ctx, unit=layer.index))
        return x[0] if isinstance(x, tuple) else x

    for layer in slices.layers:
        layer.module.to(device)
    try:
        agree(
            lambda ctx: _prints(slices, author(ctx)), lambda ctx: _prints(slices, cut(ctx)),
            [Context(seed=0, step=-1, unit=0, samples=tuple(range(EXAMPLE)))], "slices", far=_far,
            module=slices.module,
            again=torch.no_grad()(lambda ctx: {LOSS: author(ctx).view(1)}),
        )  # fmt: skip
        for buffer, value in zip(slices.module.buffers(), before, strict=True):
            buffer.copy_(value)
    finally:
        for layer in slices.layers:
            layer.module.to("cpu")


def _prints(slices: Slices, loss: Tensor) -> Seen:
    """The loss and, of each gradient, its norm, sum, and sum of every third number."""
    named = {n: p for n, p in slices.module.named_parameters() if p.requires_grad}
    found = {LOSS: loss.detach().view(1)}
    grads = torch.autograd.grad(loss, [*named.values()], materialize_grads=True)
    for name, gradient in zip(named, grads, strict=True):
        sums = gradient.norm(), gradient.sum(), gradient.flatten()[::3].sum()
        found[name] = torch.tensor([*map(float, sums)], dtype=torch.float64)
    return found


def _far(one: Tensor, other: Tensor) -> float:
    """The largest difference of two prints over the norm, where that is too large."""
    apart = (one.double() - other.double()).abs() / other.abs()[0].clamp(min=1e-12)
    apart[1:] /= SUMS
    return 0.0 if (largest := float(apart.max())) <= CLOSE else largest
