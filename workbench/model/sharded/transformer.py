"""Operators of transformers as modules, each over the shards of one device of its row.

Arithmetic, names and weights are those of this project's GPT (gpt.py) and T5 (t5_like_gpt.py), so
that plain training is what any division of them is compared with. A matrix is divided by its
outputs, or, where the input comes sharded, by its inputs, and the terms are added up; so both
partition dimensions of each GEMM are one rule, which the operator's layouts decide. Tables of words
are divided by their rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.core.division import even_share
from workbench.model.dropout import (
    attention_factors,
    causal_attention,
    causal_attention_dropout,
    kept,
)
from workbench.model.gpt import NORM_EPS
from workbench.model.loss import linear_cross_entropy
from workbench.model.operators.operator import Kind
from workbench.model.operators.place import Heads
from workbench.model.sharded.base import Rows, Sharded
from workbench.model.sharded.shards import WHOLE, Shard
from workbench.model.text import IGNORED


class Embedding(Sharded):
    """Token ids [B, S] -> [B, S, H], with the vectors of their positions where there are any."""

    pure = False

    def divided(self) -> dict[str, Shard]:
        words, positions = self.place.tables
        return {words: Shard(0)} | ({positions: WHOLE} if positions else {})

    def forward(self, _: None, rows: Rows) -> Tensor:
        tokens, (table, *positions) = rows.inputs[self.place.input], self.owned().values()
        columns, untrained = self.columns, self.place.padding
        first, end = even_share(self.spec.vocab, columns.number, columns.count)
        if untrained is not None:
            untrained = untrained - first if first <= untrained < end else None
        if columns.count > 1:
            here = (tokens >= first) & (tokens < end)
            own = (tokens - first).where(here, 0)
            x = columns.summed(F.embedding(own, table, untrained) * here[..., None])
        else:
            x = F.embedding(tokens, table, untrained)
        for vectors in positions:
            x = x + vectors[: tokens.shape[1]]
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
        outputs = Shard(0, self.blocks)
        weight, bias = (Shard(1), WHOLE) if self.sharded else (outputs, outputs)
        return {"weight": weight} | ({"bias": bias} if self.place.biased else {})

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        bias = self.bias if self.place.biased else None
        if self.columns.count == 1:
            return F.linear(x, self.weight, bias)
        if self.sharded:
            y = self.columns.summed(F.linear(x, self.weight))
            return y if bias is None else y + bias
        return F.linear(self.columns.read(x), self.weight, bias)


class Qkv(Linear):
    """[B, S, H] -> queries and keys [B, S, 2, heads, d], values [B, S, heads, d]."""

    blocks = 3

    def forward(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        width = self.place.heads.width
        qkv = super().forward(x, rows).unflatten(-1, (3, -1, width))  # [B, S, 3, heads, d]
        return qkv[:, :, :2], qkv[:, :, 2]


class CrossQkv(Sharded):
    """[B, T, H] and memory [B, S, H] -> queries and keys [B, T + S, heads, d], values
    [B, S, heads, d]."""

    def divided(self) -> dict[str, Shard]:
        parts = {"query": Shard(0), "key_value": Shard(0, 2)}
        return {f"{n}.{what}": s for n, s in parts.items() for what in ("weight", "bias")}

    def forward(self, x: Tensor, rows: Rows, memory: Tensor) -> tuple[Tensor, Tensor]:
        wq, bq, wkv, bkv = self.owned().values()
        width, read = self.place.heads.width, self.columns.read
        query = F.linear(read(x), wq, bq).unflatten(-1, (-1, width))
        key, value = F.linear(read(memory), wkv, bkv).unflatten(-1, (2, -1, width)).unbind(2)
        return torch.cat([query, key], dim=1), value


def queries_keys(pair: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """Each [B, heads, length, d]."""
    if heads.shared:
        q = pair[..., :-1, :].flatten(2, 3).transpose(1, 2)
        k = repeated(pair[..., -1, :].transpose(1, 2), heads)
    elif heads.memory:
        q, k = pair.transpose(1, 2).split((heads.queries, heads.keys), dim=2)
    else:
        q, k = pair.permute(2, 0, 3, 1, 4)
    return q, k


def repeated(held: Tensor, heads: Heads) -> Tensor:
    """Keys or values [B, heads of them, S, d], one for each head of queries."""
    return held.repeat_interleave(heads.shared, dim=1) if heads.shared > 1 else held


class Score(Sharded):
    """Queries and keys -> [B, heads, queries, keys]."""

    def forward(self, pair: Tensor, rows: Rows) -> Tensor:
        q, k = queries_keys(pair, self.place.heads)
        return q @ k.transpose(2, 3) * q.shape[-1] ** -0.5


class Softmax(Sharded):
    """[B, heads, queries, keys] -> weights of the keys that are read."""

    pure = False

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        size, heads = x.shape[-1], self.place.heads
        if heads.masked:
            x = x.masked_fill(~rows.inputs[1].bool()[:, None, None, :], float("-inf"))
        if heads.causal:
            later = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(1)
            x = x.masked_fill(later, float("-inf"))
        return x.float().softmax(-1).type_as(x)


class Dropout(Sharded):
    """Drops attention weights [B, heads, queries, keys]; masks are parts of those of all heads."""

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        if not self.drops(rows):
            return x
        heads, p = self.place.heads.count, self.spec.dropout
        first, end = even_share(heads, self.columns.number, self.columns.count)
        if self.place.draw is None:
            return x * attention_factors(x, heads, p, rows.ctx)[:, first:end]
        every = x.new_empty((), dtype=x.dtype).expand(len(x), heads, *x.shape[2:])
        return x * kept(every, p, self.seeds(rows.ctx))[:, first:end] * (1.0 / (1.0 - p))


class Weighted(Sharded):
    """Weights [B, heads, S, S] and values [B, S, heads, d] -> [B, S, H]."""

    def forward(self, x: Tensor, rows: Rows, values: Tensor) -> Tensor:
        v = repeated(values.transpose(1, 2), self.place.heads)
        return (x @ v).transpose(1, 2).flatten(2)


class Attention(Sharded):
    """`places.FUSED` in one call, but where heads that are shared out are dropped: their masks are
    parts of those of all heads, which no kernel takes."""

    def forward(self, pair: Tensor, rows: Rows, values: Tensor) -> Tensor:
        q, k = queries_keys(pair, self.place.heads)
        v, p = repeated(values.transpose(1, 2), self.place.heads), self.spec.dropout
        if not (self.drops(rows) and len(q)):
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

    pure = False

    def divided(self) -> dict[str, Shard]:
        return {"weight": Shard(0)}

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        columns, counts = self.columns, rows.targets != IGNORED
        if columns.count == 1 and len(x) and rows.all_count:
            part = rows.targets.numel() / rows.labels
            return linear_cross_entropy(x, self.weight, rows.targets) * part
        logits = F.linear(columns.read(x), self.weight).float()  # [B, S, words here]
        first, end = even_share(self.spec.vocab, columns.number, columns.count)
        most = columns.largest(logits.amax(-1))  # [B, S]
        logits = logits - most[..., None]
        total = columns.summed(logits.exp().sum(-1)).log()
        here = (rows.targets >= first) & (rows.targets < end)
        index = (rows.targets - first).where(here, 0)[..., None]
        chosen = columns.summed(logits.gather(-1, index)[..., 0] * here)
        return ((total - chosen) * counts).sum() / rows.labels


TRANSFORMERS: dict[Kind, type[Sharded]] = {
    "embedding": Embedding, "layernorm": LayerNorm, "qkv": Qkv, "cross-qkv": CrossQkv,
    "score": Score,
    "softmax": Softmax, "dropout": Dropout, "context": Weighted, "linear": Linear,
    "add-dropout": AddDropout, "gelu": Gelu, "head": Head,
}  # fmt: skip
