"""BERT with a classifier on its first token, as an ordinary module for the decomposer to cut.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (NAACL 2019): post-norm
encoder, learned positions, the erf form of GELU, LayerNorm eps 1e-12. With 30522 words, 512
positions and 2 labels the sizes of Harmony (VLDB'22) come out to the last parameter: 335,143,938
for 24 layers of 1024, 1,242,072,066 for 96. The published runs had dropout taken out; here it is
there, as `nn.Dropout` modules, and 0 unless asked for. Its masks come from torch's default
generator, so whoever recomputes a layer has to put that generator back first.

Cut at its layers the model is the embeddings, the encoder layers, the pooler and the classifier:
27 for BERT-Large. Every encoder layer reads the mask, which is what a cut has to relay; it is
boolean, so it is small and has no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.model.initial import draw_weights

INIT_STD = 0.02
NORM_EPS = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class BertShape:
    """Sizes of a BERT; the defaults are BERT-Large, uncased."""

    layers: int = 24
    """Encoder layers n; the model has n + 3 layers."""
    hidden: int = 1024
    """Width h; the feed-forward is 4 h wide."""
    heads: int = 16
    """Attention heads; must divide hidden."""
    vocab: int = 30522
    """Token ids are below this."""
    positions: int = 512
    """Longest sample in tokens."""
    segments: int = 2
    """Segment ids are below this."""
    labels: int = 2
    """Classes that the classifier tells apart."""
    dropout: float = 0.0
    """Probability in [0, 1) of every `nn.Dropout` in the model."""


class Bert(nn.Module):
    """Token ids, segment ids and mask, each [B, S], -> logits [B, labels].

    The mask is True (or not 0) where there is a token and False where there is padding; no row may
    be padding alone. Every sample has at most `positions` tokens.
    """

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = Embeddings(shape)
        self.encoder = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.layers))
        self.pooler = Pooler(shape)
        self.classifier = nn.Linear(shape.hidden, shape.labels)

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        x = self.embeddings(ids, segments)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.classifier(self.pooler(x))


def initialize(layer: nn.Module, *, unit: int, seed: int) -> None:
    """Write the initial weights of layer number `unit` alone: matrices N(0, 0.02), biases 0."""
    draw_weights(layer, unit, seed, lambda matrix: INIT_STD)


class Embeddings(nn.Module):
    """Token ids and segment ids [B, S] -> [B, S, H]."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden)
        self.segments = nn.Embedding(shape.segments, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=NORM_EPS)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.segments(segments) + self.positions(places)
        return self.dropout(self.norm(x))


class EncoderLayer(nn.Module):
    """[B, S, H] and the mask [B, S] -> [B, S, H]: attention, then feed-forward, normed after."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.attention_out = AddNorm(shape.hidden, shape)
        self.feed_forward = nn.Linear(shape.hidden, 4 * shape.hidden)
        self.feed_forward_out = AddNorm(4 * shape.hidden, shape)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_out(self.attention(x, mask), x)
        return self.feed_forward_out(F.gelu(self.feed_forward(x)), x)


class Attention(nn.Module):
    """Self-attention to every token that the mask keeps; [B, S, H] -> [B, S, H]."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.hidden, shape.hidden)
        self.key = nn.Linear(shape.hidden, shape.hidden)
        self.value = nn.Linear(shape.hidden, shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, S, d]
            for projection in (self.query, self.key, self.value)
        )
        kept = mask.bool()[:, None, None, :]
        if self.dropout.p == 0:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=kept)
        else:  # unfused, so that the weights pass through the module that drops them
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            weights = scores.masked_fill(~kept, float("-inf")).softmax(-1)
            y = self.dropout(weights) @ v
        return y.transpose(1, 2).flatten(2)


class AddNorm(nn.Module):
    """A matrix [width -> H], dropout, the residual, then LayerNorm."""

    def __init__(self, width: int, shape: BertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(width, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=NORM_EPS)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.norm(self.dropout(self.dense(x)) + residual)


class Pooler(nn.Module):
    """[B, S, H] -> [B, H]: tanh of a matrix on the first token, then the classifier's dropout."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.hidden, shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.dense(x[:, 0])))
