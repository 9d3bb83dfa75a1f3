"""Modules of somebody's own that use a module or its weights more than once, and layers without
weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from workbench.core.model_spec import ModelSpec


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(self.norm(x)))


class Stack(nn.Module):
    """Blocks between two matrices, called one after another."""

    def __init__(self, width: int, blocks: list[Block]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Looped(nn.Module):
    """One block, called again and again, and an embedding that every layer looks into."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.times, self.first, self.last = times, nn.Linear(4, width), nn.Linear(width, 3)
        self.words, self.block = nn.Embedding(7, width), Block(width)

    def forward(self, x: Tensor, word: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x, word = self.block(x + self.words(word)), (word + 1) % 7
        return self.last(x)


def looped(spec: ModelSpec):
    """Called `layers` times."""
    words = torch.randint(7, (32,))
    return Looped(spec.hidden, spec.layers), TensorDataset(*_points(words))


def shared(spec: ModelSpec):
    """Every second block is the same one."""
    one = Block(spec.hidden)
    blocks = [Block(spec.hidden) if place % 2 else one for place in range(spec.layers)]
    return Stack(spec.hidden, blocks), TensorDataset(*_points())


def listed(spec: ModelSpec):
    """A list whose activation is a layer of its own."""
    width = spec.hidden
    blocks = [part for _ in range(spec.layers) for part in (nn.Linear(width, width), nn.Tanh())]
    return [nn.Linear(4, width), *blocks, nn.Linear(width, 3)], TensorDataset(*_points())


class Words(nn.Module):
    """Its head owns nothing: it has the weights of the embedding."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embed = nn.Embedding(spec.vocab, spec.hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(spec.hidden, spec.hidden), nn.GELU())
            for _ in range(spec.layers)
        )
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def tied(spec: ModelSpec):
    """Trained on text."""
    return Words(spec)


def _points(*between: Tensor) -> tuple[Tensor, ...]:
    return torch.randn(32, 4), *between, torch.randint(3, (32,))
