"""Initial weights of a layer that is an ordinary module, drawn by names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from workbench.model.keys import key


@torch.no_grad()
def draw_weights(
    layer: nn.Module, unit: int, seed: int, deviation: Callable[[Tensor], float]
) -> None:
    """Write the weights of layer number `unit`, which depend on (seed, unit) only: biases 0, norms
    1, all else normal with a `deviation` of its shape."""
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            generator = torch.Generator().manual_seed(key(seed, "init", unit, name))
            parameter.normal_(0.0, deviation(parameter), generator=generator)
