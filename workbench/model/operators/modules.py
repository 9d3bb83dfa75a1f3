"""Operators of a transformer as modules, each over the shards of one device of its row.

Arithmetic, names and weights are those of this project's GPT (model/gpt.py), so that plain training
is what any division of them is compared with. A matrix is divided by its outputs, or, where the
input comes sharded, by its inputs, and the terms are added up; so both partition dimensions of each
GEMM are one rule, which the operator's layouts decide. Tables of words are divided by their rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.division import even_share
from workbench.core.model_spec import ModelSpec
from workbench.model.base import Context
from workbench.model.dropout import (
    attention_factors,
    causal_attention,
    causal_attention_dropout,
    dropout,
)
from workbench.model.gpt import NORM_EPS
from workbench.model.loss import linear_cross_entropy
from workbench.model.operators.operator import Kind
from workbench.model.operators.places import Place
from workbench.model.operators.shards import WHOLE, Shard


class Columns(Protocol):
    """The devices of a row, which share matrices (runtime/transport/collectives.py)."""

    number: int
    count: int

    def summed(self, terms: Tensor) -> Tensor: ...

    def read(self, whole: Tensor) -> Tensor: ...

    def largest(self, values: Tensor) -> Tensor: ...


class Rows(NamedTuple):
    """Samples of an operator's row of devices."""

    tokens: Tensor
    targets: Tensor
    ctx: Context
    """Of its unit."""
    whole: int
    """Samples of the micro-batch, of all rows together."""


class Sharded(nn.Module):
    """An operator with its shards."""

    shards: Mapping[str, Shard] = {}
    """Parameter, by its name in the submodule -> its division."""

    def __init__(
        self, spec: ModelSpec, place: Place, columns: Columns, *, sharded: bool = False
    ) -> None:
        """`sharded`: whether the input comes in shards of its last dimension."""
        super().__init__()
        self.spec, self.place, self.columns, self.sharded = spec, place, columns, sharded
        self.shards = self.divided()

    def divided(self) -> dict[str, Shard]:
        """The parameters' divisions."""
        return {}

    def take(self, whole: Callable[[str], Tensor], device: torch.device) -> None:
        """Make the parameters from those of the whole model, by their names in the submodule."""
        columns = self.columns
        for name, shard in self.shards.items():
            own = shard.of(whole(name), columns.number, columns.count).to(device)
            self.register_parameter(name.replace(".", "_"), nn.Parameter(own))

    def owned(self) -> dict[str, nn.Parameter]:
        """Its shards, by their names in the submodule."""
        return {name: self.get_parameter(name.replace(".", "_")) for name in self.shards}

    def _dropped(self, x: Tensor, rows: Rows) -> Tensor:
        p = self.spec.dropout
        return dropout(x, p, rows.ctx, self.place.site) if p and rows.ctx.training else x


class Embedding(Sharded):
    """Token ids [B, S] -> [B, S, H]."""

    def divided(self) -> dict[str, Shard]:
        return {"wte.weight": Shard(0), "wpe.weight": WHOLE}

    def forward(self, _: None, rows: Rows) -> Tensor:
        tokens, table = rows.tokens, self.wte_weight
        if self.columns.count > 1:
            first, end = even_share(self.spec.vocab, self.columns.number, self.columns.count)
            here = (tokens >= first) & (tokens < end)
            found = F.embedding((tokens - first).where(here, 0), table) * here[..., None]
            x = self.columns.summed(found)
        else:
            x = F.embedding(tokens, table)
        x = x + self.wpe_weight[: tokens.shape[1]]
        return self._dropped(x, rows)


class LayerNorm(Sharded):
    """[B, S, H] -> [B, S, H]."""

    def divided(self) -> dict[str, Shard]:
        return {"weight": WHOLE, "bias": WHOLE}

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, NORM_EPS)


class Linear(Sharded):
    """[B, S, in] -> [B, S, out]: shards of the outputs of a whole input, or of sharded inputs the
    whole sum."""

    blocks = 1
    """Blocks of the outputs, each of which is divided."""

    def divided(self) -> dict[str, Shard]:
        if self.sharded:
            return {"weight": Shard(1), "bias": WHOLE}
        return {"weight": Shard(0, self.blocks), "bias": Shard(0, self.blocks)}

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        if self.columns.count == 1:
            return F.linear(x, self.weight, self.bias)
        if self.sharded:
            return self.columns.summed(F.linear(x, self.weight)) + self.bias
        return F.linear(self.columns.read(x), self.weight, self.bias)


class Qkv(Linear):
    """[B, S, H] -> queries and keys [B, S, 2, heads, d], values [B, S, heads, d]."""

    blocks = 3

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        width = self.spec.hidden // self.spec.heads
        qkv = super().forward(x, rows).unflatten(-1, (3, -1, width))  # [B, S, 3, heads, d]
        return qkv[:, :, :2], qkv[:, :, 2]


class Score(Sharded):
    """Queries and keys [B, S, 2, heads, d] -> [B, heads, S, S]."""

    def forward(self, pair: Tensor, rows: Rows) -> Tensor:
        q, k = pair.permute(2, 0, 3, 1, 4)  # each [B, heads, S, d]
        return q @ k.transpose(2, 3) * (1 / math.sqrt(q.shape[-1]))


class Softmax(Sharded):
    """[B, heads, S, S] -> weights of the positions up to each one's own."""

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        size = x.shape[-1]
        later = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(1)
        return x.masked_fill(later, float("-inf")).softmax(-1)


class Dropout(Sharded):
    """Drops attention weights [B, heads, S, S]."""

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        if not (self.spec.dropout and rows.ctx.training):
            return x
        first, end = even_share(self.spec.heads, self.columns.number, self.columns.count)
        factors = attention_factors(x, self.spec.heads, self.spec.dropout, rows.ctx)
        return x * factors[:, first:end]


class Weighted(Sharded):
    """Weights [B, heads, S, S] and values [B, S, heads, d] -> [B, S, H]."""

    def forward(self, x: Tensor, rows: Rows, values: Tensor) -> Tensor:
        return (x @ values.transpose(1, 2)).transpose(1, 2).flatten(2)


class Attention(Sharded):
    """`places.FUSED` in one call, but where heads that are shared out are dropped: their masks are
    parts of those of all heads, which no kernel takes."""

    def forward(self, pair: Tensor, rows: Rows, values: Tensor) -> Tensor:
        q, k = pair.permute(2, 0, 3, 1, 4)  # each [B, heads, S, d]
        v, p = values.transpose(1, 2), self.spec.dropout
        if not (p and rows.ctx.training and len(q)):
            return causal_attention(q, k, v).transpose(1, 2).flatten(2)
        if self.columns.count == 1:
            y = causal_attention_dropout(q, k, v, p, rows.ctx)
            return y.transpose(1, 2).flatten(2)
        for kind in (Score, Softmax, Dropout):
            pair = kind.forward(self, pair, rows)
        return Weighted.forward(self, pair, rows, values)


class AddDropout(Sharded):
    """Dropout of [B, S, H], and the residual stream."""

    def forward(self, x: Tensor, rows: Rows, residual: Tensor) -> Tensor:
        return residual + self._dropped(x, rows)


class Gelu(Sharded):
    """The tanh form."""

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return F.gelu(x, approximate="tanh")


class Head(Sharded):
    """[B, S, H] -> this row's part of the mean loss of the micro-batch, an fp32 scalar."""

    def divided(self) -> dict[str, Shard]:
        return {"weight": Shard(0)}

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        part = len(x) / rows.whole
        if self.columns.count == 1 and len(x):
            return linear_cross_entropy(x, self.weight, rows.targets) * part
        columns = self.columns
        logits = F.linear(columns.read(x), self.weight).float()  # [B, S, words here]
        first, end = even_share(self.spec.vocab, columns.number, columns.count)
        most = columns.largest(logits.amax(-1))  # [B, S]
        logits = logits - most[..., None]
        total = columns.summed(logits.exp().sum(-1)).log()
        here = (rows.targets >= first) & (rows.targets < end)
        index = (rows.targets - first).where(here, 0)[..., None]
        chosen = columns.summed(logits.gather(-1, index)[..., 0] * here)
        return (total - chosen).sum() / (rows.whole * x.shape[1])


MODULES: dict[Kind, type[Sharded]] = {
    "embedding": Embedding, "layernorm": LayerNorm, "qkv": Qkv, "score": Score,
    "softmax": Softmax, "dropout": Dropout, "context": Weighted, "linear": Linear,
    "add-dropout": AddDropout, "gelu": Gelu, "head": Head,
}  # fmt: skip


def of_unit(ctx: Context, unit: int, first: int, end: int) -> Context:
    """The context of some rows of a micro-batch in a unit."""
    return replace(ctx, unit=unit, samples=ctx.samples[first:end])
