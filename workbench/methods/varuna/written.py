"""The slices of a module against the module as its author wrote it, before anything is trained.

Both run forward and backward on the example batch, on the CPU, on the module's own weights: the
loss and, of every parameter, the gradient's norm and its product with fixed random numbers, so that
no two copies of all gradients are ever there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from workbench.methods.varuna.slices import EXAMPLE, Slices, loss_of
from workbench.model.base import Context
from workbench.model.drawn import Pass, drawing
from workbench.model.frozen import held

CLOSE = 1e-5
"""Relative difference at most: sums of gradients may be added up in another order."""
Prints = dict[str, tuple[float, float]]
"""Name -> (norm, product with random numbers) of a gradient, or the loss twice."""


def check_written(slices: Slices) -> None:
    """Raise ValueError, one sentence, where the slices would not train as the module does."""
    before = [buffer.clone() for buffer in slices.module.buffers()]
    ctx = Context(seed=0, step=0, unit=0, samples=tuple(range(EXAMPLE)))
    wanted, found = (_prints(slices, make(slices, ctx)) for make in (_by_author, _by_slices))
    for buffer, value in zip(slices.module.buffers(), before, strict=True):
        buffer.copy_(value)
    for name, (norm, product) in wanted.items():
        here, there = found[name]
        scale = max(norm, 1e-12)
        if not (abs(here - norm) <= CLOSE * scale and abs(there - product) <= CLOSE * scale * 10):
            raise ValueError(
                f"cut into slices the module would train otherwise than by itself: {name} "
                f"differs ({here:.6g} for {norm:.6g}); its code reads something that is neither "
                "handed from module to module nor a parameter or buffer"
            )


def _by_author(slices: Slices, ctx: Context) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with drawing(Pass(ctx, slices.model.draws)), held(slices.module, [*slices.frozen]):
            return loss_of(slices.module(**slices.example), None).float()

    return run


def _by_slices(slices: Slices, ctx: Context) -> Callable[[], Tensor]:
    def run() -> Tensor:
        x = tuple(slices.inputs[value.name] for value in slices.layers[0].inputs)
        for layer in slices.layers:
            taken = x if isinstance(x, tuple) else (x,)
            x = slices.model.forward(
                layer.index, layer.module, taken, replace(ctx, unit=layer.index)
            )
        return x[0] if isinstance(x, tuple) else x

    return run


def _prints(slices: Slices, run: Callable[[], Tensor]) -> Prints:
    try:
        loss = run()
    except ValueError:
        raise
    except Exception as error:  # whatever the author's code raises
        raise ValueError(
            f"the module fails by itself: {type(error).__name__}: {error}".split("\n")[0]
        ) from error
    named = {n: p for n, p in slices.module.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    generator = torch.Generator().manual_seed(0)
    found = {"the loss": (loss.item(), loss.item())}
    for name, gradient in zip(named, grads, strict=True):
        if gradient is not None:
            random = torch.randn(gradient.shape, generator=generator)
            found[f"the gradient of {name!r}"] = (
                float(gradient.norm()),
                float((gradient * random).sum()),
            )
    return found
