"""How a user's module and loss function are called with a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map


class Widened(TorchFunctionMode):
    """Gives functions that are called meanwhile an fp32 copy of what a module put out in fewer
    bits, made when the first one asks: a loss is told, and begins its gradients, in fp32."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        leaves = (t for t in tree_flatten(outputs)[0] if isinstance(t, Tensor))
        self._own = {id(t): t for t in leaves if t.is_floating_point() and t.itemsize <= 4}
        self._wide: dict[int, Tensor] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") != "__get__":  # of a shape, which takes no copy
            args, kwargs = tree_map(self._widened, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _widened(self, leaf: Any) -> Any:
        if id(leaf) not in self._own:
            return leaf
        if id(leaf) not in self._wide:
            self._wide[id(leaf)] = leaf.float()
        return self._wide[id(leaf)]


def one_number(out: Any, _: Any) -> Tensor:
    """What a loss function returned. Raises ValueError unless it is one number."""
    if not isinstance(out, Tensor) or out.dim():
        what = f"a tensor of {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"loss_fn returns {what}; it must return the mean loss, one number")
    return out


def call_of(module: nn.Module, batch: Any) -> Callable[[Any], tuple[Sequence, Mapping]]:
    """How a module is called with a batch: of a dictionary it takes the entries that its forward
    pass names, of a tuple or list as many of the first ones as it needs, else the batch itself."""
    asked = inspect.signature(module.forward).parameters.values()
    if isinstance(batch, Mapping):
        every = any(p.kind is p.VAR_KEYWORD for p in asked)
        names = [name for name in batch if every or name in {p.name for p in asked}]
        if not names:
            raise ValueError(
                f"the batch has {', '.join(map(str, batch))}, and the forward pass of "
                f"{type(module).__name__} takes {', '.join(p.name for p in asked)}; name one alike"
            )
        return lambda batch: ((), {name: batch[name] for name in names})
    if isinstance(batch, tuple | list):
        needed = [p for p in asked if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
        every = any(p.kind is p.VAR_POSITIONAL for p in asked)
        count = max(1, len(batch) - 1 if every else len(needed))
        return lambda batch: (tuple(batch[:count]), {})
    return lambda batch: ((batch,), {})
