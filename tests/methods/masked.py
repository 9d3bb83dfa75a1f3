"""A module of somebody's own whose samples have any number of labels, also none."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.methods.reusing import Block
from workbench.core.model_spec import ModelSpec

SAMPLES, LABELS = 32, 5


def net(spec: ModelSpec):
    """A module, and samples: number n has n % heads labels that count, its first ones."""
    blocks = [Block(spec.hidden) for _ in range(spec.layers)]
    module = nn.Sequential(nn.Linear(4, spec.hidden), *blocks, nn.Linear(spec.hidden, spec.vocab))
    labels = torch.randint(spec.vocab, (SAMPLES, LABELS))
    for sample in range(SAMPLES):
        labels[sample, sample % spec.heads :] = -100
    return module, TensorDataset(torch.randn(SAMPLES, LABELS, 4), labels)
