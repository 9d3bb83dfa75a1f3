"""A module of somebody's own that draws random numbers in every way there is, and in whose blocks
one weight has two names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.model_spec import ModelSpec


class Block(nn.Module):
    """Drops as a module does, and by functions that nobody sees from outside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)
        self.again = nn.Linear(width, width)
        self.again.weight = self.inner.weight
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.again(torch.relu(self.inner(self.norm(x)))))
        y = y + 0.1 * torch.rand_like(y) if self.training else y
        return x + F.dropout(y, 0.2, self.training)


def net(spec: ModelSpec):
    """A list of blocks with dropout between them, and its samples."""
    parts: list[nn.Module] = [nn.Linear(4, spec.hidden), nn.Dropout(0.1)]
    for _ in range(spec.layers):
        parts += [Block(spec.hidden), nn.Dropout(0.1)]
    samples = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
    return nn.Sequential(*parts, nn.Linear(spec.hidden, 3)), samples
