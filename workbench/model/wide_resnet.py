"""Wide residual networks for small pictures, as an ordinary module for the decomposer to cut.

Zagoruyko and Komodakis, "Wide Residual Networks" (BMVC 2016): blocks of He et al. (ECCV 2016), in
which norm and ReLU stand before each convolution, with k times the channels, 16, 16 k, 32 k and
64 k, and dropout between the two convolutions of a block. A depth of 6 n + 4 is three groups of n
blocks; the second and the third begin by halving height and width. WRN-28-10 has 36,479,194
parameters for 10 classes and 36,536,884 for 100, WRN-16-4 has 2,748,890 and 2,772,020.

A layer is the first convolution, a block with its skip inside, or the head with the last norm.
BatchNorm makes the samples of a micro-batch depend on each other; GroupNorm (Wu and He, ECCV 2018),
of as many parameters, does not: of 32 groups, or as many as divide the channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from torch import Tensor, nn

STEM, GROUPS = 16, 32
"""Channels of the first convolution, however wide blocks are; groups of a GroupNorm at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WideResNetShape:
    """Sizes of a wide residual network; the defaults are WRN-28-10's."""

    blocks: tuple[int, ...] = (4, 4, 4)
    """Blocks of each group."""
    width: int = 160
    """Channels of the first group; they double from group to group."""
    classes: int = 10
    dropout: float = 0.0
    """Probability in [0, 1), between the two convolutions of a block."""
    group_norm: bool = False
    """Whether norms are GroupNorm instead of BatchNorm."""


class WideResNet(nn.Module):
    """Pictures [B, 3, height, width] of any size -> logits [B, classes]."""

    def __init__(self, shape: WideResNetShape) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        blocks, channels = [], STEM
        for group, count in enumerate(shape.blocks):
            width = shape.width << group
            for place in range(count):
                stride = 2 if group and not place else 1
                blocks.append(WideBlock(channels, width, stride, shape))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = WideHead(channels, shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class WideBlock(nn.Module):
    """Twice norm, ReLU and 3x3 convolution, and the input. Where its shape changes, a 1x1
    convolution of what the first 3x3 one reads is added instead."""

    def __init__(self, inputs: int, outputs: int, stride: int, shape: WideResNetShape) -> None:
        super().__init__()
        self.norm1 = _norm(inputs, shape)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm2 = _norm(outputs, shape)
        self.dropout = nn.Dropout(shape.dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        changes = stride != 1 or inputs != outputs
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        read = self.relu(self.norm1(x))
        y = self.dropout(self.relu(self.norm2(self.conv1(read))))
        return self.conv2(y) + (x if self.skip is None else self.skip(read))


class WideHead(nn.Module):
    """[B, channels, h, w] -> logits [B, classes]: norm, ReLU, the mean over pixels, a matrix."""

    def __init__(self, channels: int, shape: WideResNetShape) -> None:
        super().__init__()
        self.norm = _norm(channels, shape)
        self.relu = nn.ReLU(inplace=True)
        self.linear = nn.Linear(channels, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.relu(self.norm(x)).mean((2, 3)))


def _norm(channels: int, shape: WideResNetShape) -> nn.Module:
    grouped = shape.group_norm
    return nn.GroupNorm(gcd(GROUPS, channels), channels) if grouped else nn.BatchNorm2d(channels)
