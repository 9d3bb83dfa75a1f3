"""A module of somebody's own whose many layers are drawn one after another from one generator."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from workbench.core.model_spec import ModelSpec

PAUSE_S = 0.005
"""Between two draws, so that whoever draws at the same time draws in between."""


def net(spec: ModelSpec) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Embedding(spec.vocab, spec.hidden)]
    for width in [spec.hidden] * spec.layers + [spec.vocab]:
        time.sleep(PAUSE_S)
        parts.append(nn.Linear(spec.hidden, width))
    return nn.Sequential(*parts)


class Buffered(nn.Linear):
    """Unlike its neighbours by a buffer."""

    def __init__(self, width: int, by: float) -> None:
        super().__init__(width, width)
        self.register_buffer("by", torch.full((1,), by))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.by


def buffered(spec: ModelSpec) -> nn.Sequential:
    inner = [Buffered(spec.hidden, 1.0 + place) for place in range(spec.layers)]
    embed, head = nn.Embedding(spec.vocab, spec.hidden), nn.Linear(spec.hidden, spec.vocab)
    return nn.Sequential(embed, *inner, head)


def frozen(spec: ModelSpec) -> nn.Sequential:
    """The first layer is not trained, nor a whole block, a matrix and a bias further on."""
    made = buffered(spec)
    for part in (made[0], made[3], made[4].weight, made[6].bias):
        part.requires_grad_(False)
    return made
