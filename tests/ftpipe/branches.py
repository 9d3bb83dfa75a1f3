"""Modules of a user's: one whose graph is no chain, and one most of whose weights are frozen."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from workbench.core.model_spec import ModelSpec


class Twin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * torch.tanh(self.right(x))


class Woven(nn.Module):
    """Branches that share a scale, which depends on weights alone, and a head that is used twice;
    the input is read again at the end, and one call writes to what another made."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.twins = nn.ModuleList([Twin() for _ in range(count)])
        self.scale, self.drop = nn.Parameter(torch.zeros(8)), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        a, scale = self.first(x), self.scale.exp()
        made = [self.drop(twin(a)) * scale for twin in self.twins]
        out = torch.stack(made).sum(0) + x
        out.mul_(2)
        return self.last(out) + self.last(a)


def make(spec: ModelSpec) -> tuple[nn.Module, TensorDataset]:
    return Woven(spec.layers), TensorDataset(torch.randn(16, 8), torch.randint(4, (16,)))


class Tuned(nn.Module):
    """Words that are read twice, at the begin and at the end, are frozen, and layers among them, as
    people tune a model; a scale, too, is read in two layers, and trained."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(16, 8), nn.Parameter(torch.ones(8))
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(count)])
        self.words.weight.requires_grad_(False)
        for layer in self.layers[1::2]:
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x).mean(1)
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x)) * (self.scale if number in (0, 3) else 2)
        return x @ self.words.weight.T


def tuned(spec: ModelSpec) -> tuple[nn.Module, TensorDataset]:
    words, classes = torch.randint(16, (16, 4)), torch.randint(16, (16,))
    return Tuned(spec.layers), TensorDataset(words, classes)
