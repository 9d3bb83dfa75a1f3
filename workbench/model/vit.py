"""Vision transformers, as an ordinary module for the decomposer to cut.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021): square patches of a picture become
tokens by one matrix, a token of its own is put before them, learned positions are added, and blocks
of pre-normed attention and feed-forward follow; the first token is normed and classified. Dropout
follows every matrix but those of queries, keys and values. With 1,000 classes ViT-B/16 at 384
pixels has 86,859,496 parameters, ViT-L/32 has 306,632,680.

A layer is the embedding, a block, or the head with the last norm. Samples do not depend on each
other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.model.initial import draw_weights

INIT_STD = 0.02
NORM_EPS = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class VitShape:
    """Sizes of a vision transformer; the defaults are ViT-B/16 at 384 pixels."""

    layers: int = 12
    hidden: int = 768
    """Width h; the feed-forward is 4 h wide."""
    heads: int = 12
    image: int = 384
    """Height and width of a picture in pixels."""
    patch: int = 16
    """Height and width of a patch in pixels; must divide those of a picture."""
    classes: int = 1000
    dropout: float = 0.0
    """Probability in [0, 1) of every `nn.Dropout` in the model."""


class Vit(nn.Module):
    """Pictures [B, 3, image, image] -> logits [B, classes]."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.embedding = Patches(shape)
        self.blocks = nn.Sequential(*(VitBlock(shape) for _ in range(shape.layers)))
        self.head = VitHead(shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x)))


def initialize(layer: nn.Module, *, unit: int, seed: int) -> None:
    """Write the initial weights of layer number `unit` alone: matrices, positions and the first
    token N(0, 0.02), biases 0."""
    draw_weights(layer, unit, seed, lambda matrix: INIT_STD)


class Patches(nn.Module):
    """Pictures [B, 3, image, image] -> tokens [B, 1 + patches, H]."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        tokens = 1 + (shape.image // shape.patch) ** 2
        self.project = nn.Conv2d(3, shape.hidden, shape.patch, stride=shape.patch)
        self.first = nn.Parameter(torch.empty(1, 1, shape.hidden))
        self.positions = nn.Parameter(torch.empty(1, tokens, shape.hidden))
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.project(x).flatten(2).transpose(1, 2)
        first = self.first.expand(x.shape[0], -1, -1)
        return self.dropout(torch.cat((first, tokens), 1) + self.positions)


class VitBlock(nn.Module):
    """[B, S, H] -> [B, S, H]: attention, then feed-forward, each normed before and added."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        width = shape.hidden
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(width, eps=NORM_EPS)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=NORM_EPS)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # [B, heads, S, d] each
        read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(read))
        wide = self.dropout(F.gelu(self.wide(self.norm2(x))))
        return x + self.dropout(self.narrow(wide))


class VitHead(nn.Module):
    """[B, S, H] -> logits [B, classes] of the first token, normed."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.hidden, eps=NORM_EPS)
        self.linear = nn.Linear(shape.hidden, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x[:, 0]))
