"""Tensors without values on a CPU that take the memory which they would take on a GPU.

Most functions of torch make and keep equal tensors on both. Two do not, and matter: attention lays
its output out so that the projection behind it needs no copy, and an embedding's backward pass over
many tokens adds up in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.profile.unit_costs import SORTED, SORTED_ABOVE


class AttentionAsOnGpu(TorchFunctionMode):
    """Has `scaled_dot_product_attention` keep and make tensors as a fused kernel of a GPU does."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key = args[:2]
        if query.dtype == torch.float32 and query.shape[1] != key.shape[1]:
            # No fused kernel of fp32 takes groups of heads.
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **kwargs)
        return self._fused(*args, **kwargs)

    @staticmethod
    def _fused(query: Tensor, key: Tensor, value: Tensor, *mask: Any, **options: Any) -> Tensor:
        given = mask[0] if mask else options.get("attn_mask")
        return _Fused.apply(query, key, value, given)


class _Fused(torch.autograd.Function):
    """Tensors of attention over query [B, heads, S, d], key and value [B, groups, S, d]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, length, _ = query.shape
        made = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(batch, heads, length, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, made, sums, *([] if mask is None else [mask]))
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *_ = ctx.saved_tensors
        work = torch.empty_like(query, dtype=torch.float32)
        grads = [torch.empty_like(each) for each in (query, key, value)]
        del work
        return *grads, None


class EmbeddingAsOnGpu(TorchDispatchMode):
    """Has the backward pass of an embedding work in the memory that a GPU takes."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        work = None
        if func is torch.ops.aten.embedding_dense_backward.default:
            grad, tokens = args[:2]
            if tokens.numel() > SORTED_ABOVE:
                numel = int(SORTED * tokens.numel() * grad.shape[-1])
                work = torch.empty(numel, dtype=torch.float32, device=grad.device)
        made = func(*args, **(kwargs or {}))
        del work
        return made
