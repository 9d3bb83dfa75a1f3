"""Users' own modules whose blocks all add a tensor that does not grow with the batch: made of one
table, as T5's relative positions are, or also of the samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from workbench.core.spec import RunSpec


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(self.norm(x)) + bias)


class Net(nn.Module):
    def __init__(self, width: int, times: int, *, of_samples: bool = False) -> None:
        super().__init__()
        self.of_samples = of_samples
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.table = nn.Embedding(5, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(times))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.table(torch.arange(5)).sum(0, keepdim=True)
        x = self.first(x)
        if self.of_samples:
            bias = bias + x.mean(0, keepdim=True)
        for block in self.blocks:
            x = block(x, bias)
        return self.last(x)


def net(spec: RunSpec) -> tuple[nn.Module, Dataset]:
    return Net(spec.hidden, spec.layers), data()


def summing(spec: RunSpec) -> tuple[nn.Module, Dataset]:
    return Net(spec.hidden, spec.layers, of_samples=True), data()


def data() -> Dataset:
    return TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
