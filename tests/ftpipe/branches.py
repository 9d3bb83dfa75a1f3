"""A module of a user's whose graph is no chain."""

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
