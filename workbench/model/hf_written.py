"""A Hugging Face causal-LM model run by its own undivided forward pass, over the units' weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from workbench.model.base import Context, move_buffers, set_parameter
from workbench.model.frozen import held

if TYPE_CHECKING:
    from workbench.model.hf import HFModel


def as_written(
    model: HFModel, whole: nn.Module, units: Sequence[nn.Module], *, checkpoint: bool
) -> Callable[[Tensor, Tensor | None, Context], Tensor]:
    """See `HFModel.as_written`; `whole` is a copy of the source without weights."""
    for unit, module in enumerate(units):
        for name, p in module.named_parameters(remove_duplicate=False):
            set_parameter(whole, model.state_name(unit, name), p)
    device = next(units[0].parameters()).device
    move_buffers(whole, device)
    frozen = [model.state_name(u, name) for u in (0, model.head) for name in model.frozen(u)]
    running: list[Context] = []

    def placed(unit: int, layer: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        ctx = replace(running[-1], unit=unit)

        def run(*args: Any, **kwargs: Any) -> Any:
            with model.keyed(device, ctx), held(layer, model.frozen(unit)):
                return forward(*args, **kwargs)

        if not checkpoint:
            return run(*args, **kwargs)
        keyed = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpointed(run, *args, **keyed, **kwargs)

    for unit, layer in enumerate(model.layers_of(whole), start=1):
        layer.forward = partial(placed, unit, layer, layer.forward)

    def forward(tokens: Tensor, targets: Tensor | None, ctx: Context) -> Tensor:
        whole.train(ctx.training)
        running.append(replace(ctx, unit=0))
        try:
            with model.keyed(device, running[-1]), held(whole, frozen):
                made = whole(tokens, use_cache=False)
        finally:
            running.pop()
        return model.told(made, targets)

    return forward
