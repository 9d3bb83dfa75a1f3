"""T5, an encoder-decoder, as an ordinary module for the decomposer to cut.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(JMLR 2020): norms that only scale, stand before each part and have no bias, as no matrix has one;
attention that is not scaled; and positions that are learned numbers a head, added to the scores of
self-attention, by the distance of the two tokens in 32 buckets. The first block of each half owns
these numbers and all blocks of the half add them. A head that is the embedding's matrix reads the
decoder's output times hidden^-0.5. `gated` is the feed-forward of version 1.1 (Shazeer, "GLU
Variants Improve Transformer", 2020). T5-3B has 2,851,598,336 parameters, and 2,884,497,408 with a
head of its own.

Cut at its layers the model is the embedding, the encoder's blocks, the end of the encoder, the
decoder's blocks, the end of the decoder and the head: encoder and decoder layers and 4. A cut in
the encoder relays the encoder's bias, the mask, and the decoder's embedded tokens; a cut in the
decoder relays the decoder's bias, the encoder's output and the mask. Biases are of no sample, so
they have the size of one however large a micro-batch is. A bias made again in each block would
cross no cut, but its 32 numbers a head would belong to all blocks; and tokens of the decoder
embedded where the decoder begins would cross as numbers alone, but the embedding would belong to
three layers. Methods whose middle layers visit the device one by one have one owner for the
parameters of a middle layer, so here the first and the last layer share, and nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.model.initial import draw_weights

NORM_EPS = 1e-6
BUCKETS = 32
"""Distances of two tokens that the bias tells apart."""
FARTHEST = 128
"""All distances from this one on are in the last bucket."""


@dataclass(frozen=True, kw_only=True, slots=True)
class T5Shape:
    """Sizes of a T5; the defaults are T5-3B's."""

    layers: int = 24
    """Blocks of the encoder."""
    decoder_layers: int = 24
    """Blocks of the decoder."""
    hidden: int = 1024
    """Width h of the residual stream."""
    heads: int = 32
    """Attention heads."""
    head_size: int = 128
    """Width of one head; all together need not be as wide as `hidden`."""
    feed_forward: int = 16384
    """Width of the feed-forward."""
    gated: bool = False
    """Whether the feed-forward is a product of GELU (in its tanh form) and a second matrix; else it
    is ReLU."""
    vocab: int = 32128
    """Token ids are below this."""
    tied: bool = True
    """Whether the head's matrix is the embedding's."""
    dropout: float = 0.0
    """Probability in [0, 1) of every `nn.Dropout` in the model."""


class T5(nn.Module):
    """Token ids [B, S], mask [B, S] and ids for the decoder [B, T] -> logits [B, T, vocab].

    The mask is True where there is a token of the source and False where there is padding; no row
    may be padding alone. Padding of the decoder's ids stands at their end, where nothing reads it.
    """

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.scale = shape.hidden**-0.5 if shape.tied else 1.0
        self.embedding = Embedding(shape)
        self.encoder = nn.ModuleList(
            Block(shape, first=n == 0, decodes=False) for n in range(shape.layers)
        )
        self.encoder_end = End(shape)
        self.decoder = nn.ModuleList(
            Block(shape, first=n == 0, decodes=True) for n in range(shape.decoder_layers)
        )
        self.decoder_end = End(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.words.weight

    def forward(self, ids: Tensor, mask: Tensor, decoder_ids: Tensor) -> Tensor:
        x, y = self.embedding(ids, decoder_ids)
        kept = mask.bool()[:, None, None, :]
        bias = None
        for block in self.encoder:
            x, bias = block(x, bias, kept)
        x = self.encoder_end(x)
        bias = None
        for block in self.decoder:
            y, bias = block(y, bias, kept, x)
        return self.head(self.decoder_end(y) * self.scale)


def initialize(layer: nn.Module, *, unit: int, seed: int) -> None:
    """Write the initial weights of layer number `unit` alone: matrices N(0, 1 / width of their
    input), the embedding N(0, 1), queries narrower by the root of a head's width, which stands for
    the scale of the scores; norms 1. A head of its own begins as narrow as other matrices."""
    own: dict[int, float] = {}
    for part in layer.modules():
        if isinstance(part, Attention):
            query = part.query.weight
            own[id(query)] = (query.shape[1] * query.shape[0] // part.heads) ** -0.5
        elif isinstance(part, Block) and part.relative is not None:
            own[id(part.relative.weight)] = part.attention.query.weight.shape[1] ** -0.5
        elif isinstance(part, Embedding):
            own[id(part.words.weight)] = 1.0
    draw_weights(layer, unit, seed, lambda matrix: own.get(id(matrix), matrix.shape[-1] ** -0.5))


class Embedding(nn.Module):
    """Ids of the source [B, S] and for the decoder [B, T] -> [B, S, H] and [B, T, H]."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocab, shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, ids: Tensor, decoder_ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.dropout(self.words(ids)), self.dropout(self.words(decoder_ids))


class Block(nn.Module):
    """Self-attention, in the decoder attention to the encoder's output, and feed-forward."""

    def __init__(self, shape: T5Shape, *, first: bool, decodes: bool) -> None:
        super().__init__()
        self.relative = RelativeBias(shape.heads, causal=decodes) if first else None
        self.attention = Attention(shape)
        self.cross = Attention(shape) if decodes else None
        self.feed_forward = FeedForward(shape)

    def forward(
        self, x: Tensor, bias: Tensor | None, kept: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """[B, L, H] -> [B, L, H], and the bias [heads, L, L], which the first block makes. `kept`
        [B, 1, 1, S]: tokens of the source that are no padding; `memory` [B, S, H]: the encoder's
        output, of a block of the decoder."""
        bias = self.relative(x.shape[1]) if bias is None else bias
        if self.cross is None:
            x = self.attention(x, bias=bias, kept=kept)
        else:
            x = self.attention(x, bias=bias)
            x = self.cross(x, memory=memory, kept=kept)
        return self.feed_forward(x), bias


class RelativeBias(nn.Embedding):
    """A number a head for each distance of two tokens; `causal`: of the tokens before alone."""

    def __init__(self, heads: int, *, causal: bool) -> None:
        super().__init__(BUCKETS, heads)
        self.causal = causal

    def forward(self, length: int) -> Tensor:
        """[heads, length of the queries, length of the keys]; causal ones are -inf where the key is
        after the query."""
        places = torch.arange(length, device=self.weight.device)
        ahead = places[None, :] - places[:, None]
        bias = super().forward(bucket(ahead, causal=self.causal)).permute(2, 0, 1)
        return bias.masked_fill(ahead > 0, float("-inf")) if self.causal else bias


def bucket(ahead: Tensor, *, causal: bool) -> Tensor:
    """The bucket of each number of tokens by which a key is ahead of its query, int64.

    Half of a side's buckets are a distance each, the others as wide as their distance's logarithm.
    Unless `causal`, the keys ahead have the upper half of all buckets.
    """
    count = BUCKETS if causal else BUCKETS // 2
    distance = (-ahead).clamp(min=0) if causal else ahead.abs()
    single = count // 2
    width = log(FARTHEST / single) / (count - single)
    far = single + (torch.log(distance.clamp(min=1).float() / single) / width).long()
    found = torch.where(distance < single, distance, far.clamp(max=count - 1))
    return found if causal else found + count * (ahead > 0)


class Attention(nn.Module):
    """A norm, attention of [B, L, H] to itself or to a memory [B, S, H], and the residual."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        width = shape.heads * shape.head_size
        self.heads = shape.heads
        self.norm = nn.RMSNorm(shape.hidden, eps=NORM_EPS)
        self.query = nn.Linear(shape.hidden, width, bias=False)
        self.key = nn.Linear(shape.hidden, width, bias=False)
        self.value = nn.Linear(shape.hidden, width, bias=False)
        self.out = nn.Linear(width, shape.hidden, bias=False)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        bias: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> Tensor:
        """`bias` [heads, L, keys] is added to the scores; keys that are not `kept` [B, 1, 1, keys]
        are not read."""
        normed = self.norm(x)
        read = normed if memory is None else memory
        q, k, v = (
            made.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, length, d]
            for made in (self.query(normed), self.key(read), self.value(read))
        )
        scores = q @ k.transpose(-1, -2)
        if bias is not None:
            scores = scores + bias
        if kept is not None:
            scores = scores.masked_fill(~kept, float("-inf"))
        weights = self.dropout(scores.float().softmax(-1).type_as(scores))
        return x + self.dropout(self.out((weights @ v).transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """A norm, two matrices (gated: three), and the residual; [B, L, H] -> [B, L, H]."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.hidden, eps=NORM_EPS)
        self.into = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        if shape.gated:
            self.gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        else:
            self.gate = None
        self.out = nn.Linear(shape.feed_forward, shape.hidden, bias=False)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        if self.gate is None:
            inner = F.relu(self.into(normed))
        else:
            inner = F.gelu(self.gate(normed), approximate="tanh") * self.into(normed)
        return x + self.dropout(self.out(self.dropout(inner)))


class End(nn.Module):
    """The norm after the last block, and dropout; [B, L, H] -> [B, L, H]."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.hidden, eps=NORM_EPS)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x))
