"""Dropout whose masks belong to (seed, step, sample, unit, site) and to nothing else.

Torch draws masks from one stream per device, so a mask depends on how the batch was split, on how
often a layer was recomputed, and on which device it ran before. Here each sample's mask has a
generator of its own, seeded by name. Hence a forward pass repeated during the backward pass sees
the same mask, and any split of the batch, order of units or placement gives the same training.
Masks on a CPU and on a GPU differ (their generators do), and are fixed on each.

Attention weights are dropped inside the fused attention kernel, which takes no mask and no
generator: a mask given from outside would cost heads * S * S values a sample and the unfused path.
So samples run one by one with the default generator set to their key, and its state is put back
after. One sample already fills a GPU at the sizes of interest (heads * S / 128 thread blocks).
With p = 0 nothing of this happens: one fused call for the whole micro-batch.

Blocks that drop are not compiled: a generator cannot be traced.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.model.keys import key

if TYPE_CHECKING:
    from workbench.model.base import Context

_DEFAULT_GENERATOR = threading.RLock()
"""Default generators belong to the process: two trainings in two threads take turns."""


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Inside, the default generator of `device` starts at `seed`; after, it is as it was before."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[index]
    else:
        generator = torch.default_generator
    with _DEFAULT_GENERATOR:
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)


def dropout(x: Tensor, p: float, ctx: Context, site: str) -> Tensor:
    """Zero elements of x [B, ...] with probability p and scale the others by 1 / (1 - p).

    `site` names the place inside the unit: two sites of one unit have unlike masks.
    """
    return dropped(x, p, _seeds(len(x), ctx, site))


def dropped(x: Tensor, p: float, seeds: Sequence[int]) -> Tensor:
    """As `dropout`, by the seed of each row."""
    return x * kept(x, p, seeds) * (1.0 / (1.0 - p))


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax(q k^T / sqrt(d)) v under the causal mask; q, k, v and result [B, heads, S, d]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_attention_dropout(q: Tensor, k: Tensor, v: Tensor, p: float, ctx: Context) -> Tensor:
    """As `causal_attention`, the attention weights dropped with probability p."""
    seeds = _seeds(len(q), ctx, "attention")
    rows = []
    for row_q, row_k, row_v, seed in zip(q.split(1), k.split(1), v.split(1), seeds, strict=True):
        with seeded(q.device, seed):
            row = F.scaled_dot_product_attention(row_q, row_k, row_v, dropout_p=p, is_causal=True)
        rows.append(row)
    return torch.cat(rows)


def attention_factors(like: Tensor, heads: int, p: float, ctx: Context) -> Tensor:
    """Factors of the attention weights [B, heads, S, S] of all `heads`, 0 or 1 / (1 - p), as the
    unfused `causal_attention_dropout` of a CPU draws them; `like` are weights of some heads."""
    found = []
    for seed in _seeds(len(like), ctx, "attention"):
        with seeded(like.device, seed):
            found.append(F.dropout(like.new_ones(1, heads, *like.shape[2:]), p))
    return torch.cat(found) if found else like.new_ones(0, heads, *like.shape[2:])


def kept(x: Tensor, p: float, seeds: Sequence[int]) -> Tensor:
    """True where an element of x stays; one byte an element is what the backward pass keeps."""
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    generator = torch.Generator(x.device)
    for row, seed in zip(mask, seeds, strict=True):
        row.bernoulli_(1.0 - p, generator=generator.manual_seed(seed))
    return mask


def _seeds(rows: int, ctx: Context, site: str) -> list[int]:
    if rows != len(ctx.samples):
        raise ValueError(f"{len(ctx.samples)} samples are named for a micro-batch of {rows} rows")
    return [key(ctx.seed, "dropout", ctx.step, sample, ctx.unit, site) for sample in ctx.samples]
