"""The slices of a module against the module as its author wrote it, before anything is trained.

Both run forward and backward on the example batch and on the module's own weights, on the GPU
where it has room for them and their gradients: the loss is compared and, of every parameter's
gradient, its norm and two sums, so that no two copies of all gradients are ever there. The module
runs forward once more, which shows whether a pass leaves something behind for the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from workbench.methods.varuna.slices import EXAMPLE, Inputs, Slices, loss_of
from workbench.model.base import Context
from workbench.model.drawn import Pass, drawing
from workbench.model.frozen import held

CLOSE = 1e-5
"""Relative difference at most: sums of gradients may be added up in another order."""
SUMS = 100
"""How much more sums may differ, in which much cancels out."""
ROOM = 4
"""Bytes of a device's free memory for each byte of the weights, for them to be compared there."""
Prints = dict[str, tuple[float, ...]]
"""Name -> norm, sum, and sum of every third number of a gradient; of the loss, itself."""


def check_written(slices: Slices, device: torch.device) -> None:
    """Raise ValueError, one sentence, where the slices would not train as the module does."""
    nbytes = sum(parameter.nbytes for parameter in slices.module.parameters())
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[0] < ROOM * nbytes:
        device = torch.device("cpu")
    for layer in slices.layers:
        layer.module.to(device)
    try:
        _compare(slices, device)
    finally:
        for layer in slices.layers:
            layer.module.to("cpu")


def _compare(slices: Slices, device: torch.device) -> None:
    before = [buffer.clone() for buffer in slices.module.buffers()]
    ctx = Context(seed=0, step=-1, unit=0, samples=tuple(range(EXAMPLE)))
    given = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in slices.example.items()
    }
    wanted = _prints(slices, _by_author(slices, given, ctx))
    with torch.no_grad():
        again = _by_author(slices, given, ctx)().item()
    (loss,) = wanted["the loss"]
    if not abs(again - loss) <= CLOSE * max(abs(loss), 1e-12):
        raise ValueError(
            "a forward pass of the module leaves something behind that the next one reads, and "
            f"passes are repeated here: the loss of the same samples was {loss:.6g}, then "
            f"{again:.6g}; compute it from what the module is given"
        )
    found = _prints(slices, _by_slices(slices, given, ctx))
    for buffer, value in zip(slices.module.buffers(), before, strict=True):
        buffer.copy_(value)
    for name, values in wanted.items():
        norm, here = values[0], found[name][0]
        close = CLOSE * max(abs(norm), 1e-12)
        apart = [abs(one - other) for one, other in zip(values, found[name], strict=True)]
        if not (apart[0] <= close and max(apart) <= close * SUMS):
            raise ValueError(
                f"cut into slices the module would train otherwise than by itself: {name} "
                f"differs ({here:.6g} for {norm:.6g}); its code reads something that is neither "
                "handed from module to module nor a parameter or buffer"
            )


def _by_author(slices: Slices, given: Inputs, ctx: Context) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with drawing(Pass(ctx, slices.model.draws)), held(slices.module, [*slices.frozen]):
            return loss_of(slices.module(**given), None).float()

    return run


def _by_slices(slices: Slices, given: Inputs, ctx: Context) -> Callable[[], Tensor]:
    def run() -> Tensor:
        x = tuple(given[value.name] for value in slices.layers[0].inputs)
        for layer in slices.layers:
            x = slices.model.forward(layer.index, layer.module, x, replace(ctx, unit=layer.index))
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
    found: Prints = {"the loss": (loss.item(),)}
    for name, gradient in zip(named, grads, strict=True):
        if gradient is not None:
            sums = gradient.sum(), gradient.flatten()[::3].sum()
            found[f"the gradient of {name!r}"] = (float(gradient.norm()), *map(float, sums))
    return found
