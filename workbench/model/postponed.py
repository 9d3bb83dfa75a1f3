"""Logits that a loss takes without their ever being there all at once, whoever wrote the two.

A head is a large product, something for each logit by itself (a cast, a factor, a cap), and a
cross-entropy; a user's loss function shifts rows between them, and so does that of Hugging Face's
models. Nothing is guessed of their code. While it runs, a large product with a matrix is not made:
in its place a tensor without values goes on, beside the calls that were made on it. Where such a
tensor comes to a cross-entropy, and all calls on the way are known to act on each logit by itself
or to leave rows out, `linear_cross_entropy` does the three at once, without the rows that do not
count. At any other call the product, and the calls since, are made as they were written. So every
code computes what it says, and only the order of sums within the loss is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from workbench.model.loss import CHUNK_BYTES, linear_cross_entropy

ROWS = {"view", "reshape", "flatten", "contiguous", "unsqueeze", "squeeze", "__getitem__"}
"""Names of functions that keep each row of logits whole, if the last dimension stays."""
EACH = {
    "float", "to", "type", "mul", "__mul__", "__rmul__", "div", "true_divide", "__truediv__",
    "tanh", "neg", "__neg__",
}  # fmt: skip
"""Names of functions of one logit, and of numbers beside it."""
ABOUT = {"size", "dim", "numel", "ndimension", "is_floating_point", "__len__", "__get__"}
"""Names of what a tensor without values tells, too."""
PLAIN = (int, float, bool, str, slice, EllipsisType, type(None), torch.dtype, torch.Size)


Call = tuple[Callable, tuple, dict]
"""A function, and its arguments behind the first one."""


@dataclass(frozen=True)
class _Late:
    """A product that is not made."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    made_of: tuple[Tensor, Call] | None = None
    """The tensor without values that this one came of, and by which call."""
    rows: Tensor | None = None
    """Numbers of the rows of x that are left, in the shape of the logits; all where None."""
    each: tuple[Call, ...] = ()
    """Calls since that change a logit."""


class Postponed(TorchFunctionMode):
    """Within, logits of more than so many bytes in fp32 wait for their loss."""

    def __init__(self, most: int = CHUNK_BYTES) -> None:
        super().__init__()
        self._most = most
        self._late = WeakIdKeyDictionary()
        """`_Late` of each tensor without values that somebody has, in the order of their calls."""
        self._real = WeakIdKeyDictionary()
        """Those that were made after all."""
        self.divided = 0
        """Losses that were told in parts."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is F.linear and len(args) > 1:
            return self._linear(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        held = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf in self._late]
        if not held:
            return func(*args, **kwargs)
        if len(held) == 1 and args and args[0] is held[0] and held[0] not in self._real:
            late = self._late[held[0]]
            if func is F.cross_entropy:
                found = self._loss(late, *args, **kwargs)
            elif name == "__get__" and func == Tensor.device.__get__:
                found = late.x.device
            elif name in ABOUT:
                found = func(*args, **kwargs)
                found = None if isinstance(found, Tensor) else found
            else:
                found = self._on(late, func, name, args, kwargs)
            if found is not None:
                return found
        self._make(held, all_of_them=name.rstrip("_") != name or "out" in kwargs)
        args, kwargs = tree_map_only(Tensor, self._made, (args, kwargs))
        return func(*args, **kwargs)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x = self._made(x)
        count = x.numel() // max(1, x.shape[-1]) * weight.shape[0]
        small = weight.dim() != 2 or 4 * count <= self._most or x.dtype != weight.dtype
        if small or torch.is_autocast_enabled(x.device.type):
            return F.linear(x, weight, bias)
        shape = *x.shape[:-1], weight.shape[0]
        return self._keep(torch.empty(shape, dtype=x.dtype, device="meta"), _Late(x, weight, bias))

    def _on(self, late: _Late, func: Callable, name: str, args: tuple, kwargs: dict) -> Any:
        """The result of a call on logits, without values; None where that needs them."""
        rest = tree_leaves((args[1:], kwargs))
        if name not in ROWS | EACH or not all(isinstance(leaf, PLAIN) for leaf in rest):
            return None
        if name == "to" and any(isinstance(leaf, str) for leaf in rest):
            return None
        bare = func(*args, **kwargs)
        if not isinstance(bare, Tensor) or not bare.dim() or bare.shape[-1] != args[0].shape[-1]:
            return None
        if bare is args[0]:  # as a cast to its own type
            return bare
        call = func, args[1:], kwargs
        late = replace(late, made_of=(args[0], call))
        if name in EACH:
            return self._keep(bare, replace(late, each=(*late.each, call)))
        if bare.numel() != args[0].numel():
            rows = self._rows_of(late, args[0])
            words = args[0].shape[-1]
            left = func(rows[..., None].expand(*rows.shape, words), *args[1:], **kwargs)
            if name != "__getitem__" or left.shape != bare.shape:
                return None
            return self._keep(bare, replace(late, rows=left[..., 0]))
        if late.rows is not None:
            late = replace(late, rows=late.rows.reshape(bare.shape[:-1]))
        return self._keep(bare, late)

    @staticmethod
    def _rows_of(late: _Late, logits: Tensor) -> Tensor:
        if late.rows is not None:
            return late.rows
        shape = logits.shape[:-1]
        return torch.arange(shape.numel(), device=late.x.device).view(shape)

    def _loss(self, late: _Late, *args: Any, **kwargs: Any) -> Tensor | None:
        """The cross-entropy; None where it is none of rows and words."""
        told = _Asked.of(*args, **kwargs)
        if told is None or args[0].dim() != 2 or args[0].dtype == torch.float16:
            return None
        x = late.x.reshape(-1, late.x.shape[-1])
        if late.rows is not None:
            x = x[late.rows.reshape(-1)]
        if any(of in self._real for of in self._sources(late)):
            return None
        weight, bias, counts = late.weight, late.bias, told.targets != told.left_out
        loss = linear_cross_entropy(
            x, weight, told.targets, bias=bias, left_out=told.left_out, chunk_bytes=self._most,
            after=(lambda logits: _again(late.each, logits)) if _changes(late.each) else None,
        )  # fmt: skip
        self.divided += 1
        # The mean of nothing is no number, and teaches nothing.
        loss = loss * counts.sum() if told.sums else loss.where(counts.any(), torch.nan)
        return loss.to(args[0].dtype)

    def _sources(self, late: _Late) -> Iterator[Tensor]:
        """Tensors that it came of, without values."""
        while late.made_of is not None:
            yield late.made_of[0]
            late = self._late[late.made_of[0]]

    def _keep(self, bare: Tensor, late: _Late) -> Tensor:
        self._late[bare] = late
        return bare

    def _make(self, asked: list[Tensor], *, all_of_them: bool) -> None:
        """Make those that are asked for, and before them what was called before, so that autograd
        keeps what it keeps in the order of the code; all where a call may write, and views see
        it."""
        places = [place for place, bare in enumerate(self._late) if any(bare is a for a in asked)]
        for place, bare in enumerate([*self._late]):
            if all_of_them or place <= places[-1]:
                self._made(bare)

    def _made(self, tensor: Tensor) -> Tensor:
        """A tensor with its values; views of one stay its views."""
        if tensor not in self._late:
            return tensor
        if tensor not in self._real:
            late = self._late[tensor]
            if late.made_of is None:
                self._real[tensor] = F.linear(late.x, late.weight, late.bias)
            else:
                source, (func, args, kwargs) = late.made_of
                self._real[tensor] = func(self._made(source), *args, **kwargs)
        return self._real[tensor]


@dataclass(frozen=True)
class _Asked:
    """Arguments of a cross-entropy beside its logits."""

    targets: Tensor
    left_out: int
    sums: bool

    @classmethod
    def of(
        cls, _: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
        ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> _Asked | None:  # fmt: skip
        """None for one that `linear_cross_entropy` is not."""
        plain = weight is None and size_average is None and reduce is None and not label_smoothing
        ids = target.dim() == 1 and target.dtype == torch.int64
        if not plain or not ids or reduction not in ("mean", "sum"):
            return None
        return cls(target, ignore_index, reduction == "sum")


def _changes(calls: tuple) -> bool:
    """Whether calls do more than to widen, which the loss does anyway."""
    return any(getattr(func, "__name__", "") != "float" for func, _, _ in calls)


def _again(calls: tuple, logits: Tensor) -> Tensor:
    for func, args, kwargs in calls:
        logits = func(logits, *args, **kwargs)
    return logits
