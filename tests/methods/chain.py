"""A module of somebody's own whose many layers are drawn one after another from one generator."""

from __future__ import annotations

import time

from torch import nn

from workbench.model.spec import ModelSpec

PAUSE_S = 0.005
"""Between two draws, so that whoever draws at the same time draws in between."""


def net(spec: ModelSpec) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Embedding(spec.vocab, spec.hidden)]
    for width in [spec.hidden] * spec.layers + [spec.vocab]:
        time.sleep(PAUSE_S)
        parts.append(nn.Linear(spec.hidden, width))
    return nn.Sequential(*parts)
