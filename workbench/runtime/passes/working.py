"""Weights of a stage in the 16 bits of its passes, cast once a step.

Mixed precision keeps fp32 weights and casts them in each pass, for every operation that computes in
16 bits: with N micro-batches up to 3 N times a step. Here each parameter that operations read in no
other form has a copy in 16 bits, which passes use instead. Its gradient is added to the fp32
gradient as soon as autograd has made it, so that all numbers are those of mixed precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

CAST = torch.ops.aten._to_copy.default


class Uses(TorchDispatchMode):
    """Within, notices how operations read some parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        super().__init__()
        self._known, self._dtype = {id(each) for each in parameters}, dtype
        self.cast: set[int] = set()
        """Ids of parameters that were cast."""
        self.read: set[int] = set()
        """Those that operations read as they are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        casts = func is CAST and kwargs.get("dtype") == self._dtype
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        met = {id(each) for each in leaves if isinstance(each, Tensor)} & self._known
        (self.cast if casts else self.read).update(met)
        return func(*args, **kwargs)


class WorkingWeights:
    """Copies of the parameters of a stage's modules."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype) -> None:
        """Parameters of `dtype`, of less than 32 bits, are made of fp32 ones that are trained."""
        self._places = [
            (part._parameters, name)
            for module in modules
            for part in module.modules()
            for name, parameter in part._parameters.items()
            if parameter is not None and parameter.dtype == torch.float32
        ]
        self._masters = [own[name] for own, name in self._places]
        self._uses, self._dtype = Uses(self._masters, dtype), dtype
        self._copies: dict[int, nn.Parameter] | None = None
        """By the ids of their masters; None until the uses of parameters are known."""
        self._lent: list[tuple[dict[str, nn.Parameter | None], str, Tensor, Tensor]] = []

    @property
    def nbytes(self) -> int:
        """Of all copies that there are."""
        return sum(copy.nbytes for copy in (self._copies or {}).values())

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, modules compute with the copies; before there are any, it is seen how parameters
        are used."""
        if self._copies is None:
            with self._uses:
                yield
            return
        for own, name, copy, _ in self._lent:
            own[name] = copy
        try:
            yield
        finally:
            for own, name, _, master in self._lent:
                own[name] = master

    @torch.no_grad()
    def refresh(self) -> bool:
        """Before a step: copies have their masters' values. Returns whether they were made now,
        which is the first time after a pass."""
        made = self._copies is None and bool(self._uses.cast | self._uses.read)
        if made:
            self._copies = self._made()
        if self._copies:
            masters = {id(each): each for each in self._masters}
            of = [masters[key] for key in self._copies]
            torch._foreach_copy_([*self._copies.values()], of)
        return made

    def _made(self) -> dict[int, nn.Parameter]:
        found: dict[int, nn.Parameter] = {}
        for (own, name), master in zip(self._places, self._masters, strict=True):
            key = id(master)
            if key not in self._uses.cast - self._uses.read:
                continue
            if key not in found:
                found[key] = nn.Parameter(
                    master.detach().to(self._dtype), requires_grad=master.requires_grad
                )
                if master.requires_grad:
                    _add_to(master, found[key])
            self._lent.append((own, name, found[key], master))
        return found


def _add_to(master: nn.Parameter, copy: nn.Parameter) -> None:
    """Have the gradient of a copy added to its master's, as soon as it is there."""

    def added(copy: Tensor) -> None:
        master.grad.add_(copy.grad)
        copy.grad = None

    copy.register_post_accumulate_grad_hook(added)
