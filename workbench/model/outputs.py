"""A user's module whose loss is the user's own matter: made outside, of what the module puts out.

Its last layer puts out a number like any other, of which nobody sees the value: the gradient that
begins in it is the one that has come back from outside. Where the outputs have a loss of their own,
one number, the gradient begins there, and further outputs are for reading. Before there is any
gradient, when layers are compared with the module and profiled, a number of the outputs stands in
for the user's loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from workbench.model.decompose.plan import build, flatten
from workbench.model.objective import Objective


def given_out(outputs: Any, batch: Any) -> Any:
    """Outputs as they are: the loss is made outside."""
    return outputs


class Ends:
    """Outputs of a forward pass, and the gradients that come back to them. A criterion: called with
    the module's outputs it gives a number. Copies of layers share it."""

    def __init__(self) -> None:
        self.live = False
        """Whether gradients will come from outside."""
        self.outputs: Any = None
        """Of the last forward pass, cut from its graph."""
        self.begins: list[int] = []
        """Among the leaves of these outputs, the places of those at which gradients come back."""
        self.further: list[int] = []
        """Places of others that are there and depend on parameters."""
        self.gradients: Sequence[Tensor] = ()
        """One for each of these."""

    def __deepcopy__(self, memo: dict) -> Ends:
        return self

    def __call__(self, out: Any, _: Any) -> Tensor:
        leaves, form = flatten(out)
        floats = [n for n, leaf in enumerate(leaves) if _differentiable(leaf)]
        begins = [n for n in floats if not leaves[n].dim()] or floats
        if not begins:
            raise ValueError("the module puts out no tensor that depends on its parameters")
        if not self.live:
            return torch.stack([_number(leaves[n]) for n in begins]).sum()
        wide = {n: leaves[n].float() if leaves[n].itemsize < 4 else leaves[n] for n in begins}
        cut = [_apart(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        for n, leaf in wide.items():
            cut[n] = leaf.detach()
        self.outputs, self.begins = build(form, cut), begins
        self.further = [n for n in floats if n not in begins and isinstance(cut[n], Tensor)]
        return _Begun.apply(self, *wide.values())


class Unmade:
    """Stands for logits of a training pass that were never there all at once, since the module's
    own loss took them in parts (postponed.py). Raises ValueError wherever values are asked for."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._told)

    def __getitem__(self, _: Any) -> Any:
        raise ValueError(self._told)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = [*args, *(kwargs or {}).values()]
        raise ValueError(next((leaf._told for leaf in flat if isinstance(leaf, cls)), _UNMADE))

    @property
    def _told(self) -> str:
        return f"values of {[*self.shape]} {_UNMADE}"


_UNMADE = (
    "were not made in this training pass, since the loss of the model took them in parts; leave "
    "labels out and make the loss of them yourself, or call the model under torch.no_grad()"
)


class Called(Objective):
    """What a module puts out, called with the arguments and named arguments that a batch has."""

    def __init__(self, module: nn.Module, *args: Any, ends: Ends, **kwargs: Any) -> None:
        self.ends = ends
        super().__init__(module, *args, **kwargs)

    def _called(self, _: nn.Module) -> Callable[[Any], tuple[Sequence, Mapping]]:
        return lambda batch: (batch["args"], batch["kwargs"])

    @property
    def criterion(self) -> Ends:
        return self.ends


class _Begun(torch.autograd.Function):
    """The number in which a backward pass begins, with the gradients from outside."""

    @staticmethod
    def forward(ctx: FunctionCtx, ends: Ends, *begins: Tensor) -> Tensor:
        ctx.ends = ends
        loss, *_ = begins
        return loss.new_zeros(()) if loss.dim() else loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.ends.gradients


def _apart(leaf: Tensor) -> Tensor | Unmade:
    """An output for reading."""
    return Unmade(leaf.shape) if leaf.is_meta else leaf.detach()


def _differentiable(leaf: Any) -> bool:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return False
    return leaf.requires_grad or not torch.is_grad_enabled()


def _number(out: Tensor) -> Tensor:
    return out.float() if not out.dim() else out.float().square().mean()
