"""A module as its author wrote it, run over the weights of its layers.

Plain training trains this, and the layers that other methods run are compared with it
(training/compare.py).
No code of ours stands between its submodules; the random numbers that it draws are those of the
samples, as in the layers (drawn.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from workbench.model.base import Context, LayeredModel, move_buffers
from workbench.model.checkpointed import recomputed
from workbench.model.drawn import Draw, Pass, drawing
from workbench.model.frozen import held
from workbench.model.keyed import STATISTICS, norms_in, within


class AsWritten:
    """A copy of a module over the parameters, and BatchNorm's statistics, of its units. A
    `Written`."""

    def __init__(
        self,
        model: LayeredModel,
        module: nn.Module,
        units: Sequence[nn.Module],
        criterion: Callable[[Any, Tensor], Tensor],
        blocks: Sequence[str] = (),
        *,
        draws: Sequence[Draw],
        frozen: Collection[str],
    ) -> None:
        """The submodules at the paths `blocks` are computed again in the backward pass. `draws` of
        the model's random numbers; parameters of the `frozen` names stay as they are."""
        self.module = over(module, _state(model, units))
        self._draws, self._criterion = draws, criterion
        names = dict(module.named_parameters(remove_duplicate=False))
        self._frozen = [name for name in names if name in frozen]
        for path in dict.fromkeys(blocks):  # one that is called twice is two layers
            block = self.module.get_submodule(path)
            if block is not self.module:
                block.forward = partial(_recomputed, block.forward)

    def __call__(self, x: Any, targets: Tensor | None, ctx: Context) -> Tensor:
        inputs = x if isinstance(x, tuple) else (x,)
        if self.module.training != ctx.training:
            self.module.train(ctx.training)
        with drawing(Pass(ctx, self._draws)), held(self.module, self._frozen):
            out = self.module(*inputs)
            return out if targets is None else self._criterion(out, targets).float()


def over(module: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """A copy of a module with these tensors, by their names, in the place of its own; other buffers
    are copied to where these are."""
    own = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    with unset_fake_temporarily():
        whole = copy.deepcopy(module, {id(t): state[name] for name, t in own if name in state})
    move_buffers(whole, next(iter(state.values())).device)
    return whole


def _state(model: LayeredModel, units: Sequence[nn.Module]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for unit, module in enumerate(units):
        for name, parameter in module.named_parameters(remove_duplicate=False):
            found[model.state_name(unit, name)] = parameter
        for path, norm in norms_in(module).items():
            for what in STATISTICS:
                found[model.state_name(unit, within(path, what))] = getattr(norm, what)
    return found


def _recomputed(forward: Callable, *args: Any, **kwargs: Any) -> Any:
    """A block that is computed again in the backward pass, where there will be one."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return recomputed(forward, *args, **kwargs)
