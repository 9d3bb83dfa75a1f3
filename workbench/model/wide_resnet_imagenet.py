"""Wide residual networks with bottlenecks, as an ordinary module for the decomposer to cut.

Blocks of He et al. (CVPR 2016), three convolutions 1x1, 3x3, 1x1 in four groups, of which the 3x3
ones are k times as wide as the 1x1 ones before them (Zagoruyko and Komodakis, BMVC 2016): with c
channels c, k c and 4 c, twice as many from group to group. These are the networks of Aceso
(EuroSys'24) and Alpa (OSDI'22). With c = 320, k = 2 and 16 blocks there are 1,005,653,184
parameters, for which 1B stands.

Each of Aceso's operators is a submodule of its name (`operators`). The ReLUs after `bn1` and `bn2`
belong to these: the published list has no other place for them. What is added in `downsample` is
the input, or where its shape changes a 1x1 convolution of it and a norm. A layer is the first four
operators, a block, or the last two. BatchNorm takes its statistics from a whole micro-batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

EXPANSION = 4
"""Channels that a block puts out, for each that its first convolution makes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BottleneckShape:
    """Sizes of a wide residual network with bottlenecks; the defaults are 1B's."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks of each group."""
    width: int = 320
    """Channels c of the first group's 1x1 convolutions, and of the stem."""
    factor: int = 2
    """The factor k of the 3x3 convolutions."""
    classes: int = 1024
    """Classes that the model tells apart."""


class Chain(nn.Sequential):
    """Operators by their names, one after the other; together they are a layer."""

    def __init__(self, **operators: nn.Module) -> None:
        super().__init__(OrderedDict(operators))


class BottleneckResNet(nn.Module):
    """Pictures [B, 3, height, width] of any size -> logits [B, classes].

    They shrink to a thirty-second of both sides. BatchNorm cannot take statistics of a single
    pixel of one picture.
    """

    def __init__(self, shape: BottleneckShape) -> None:
        super().__init__()
        self.stem = Chain(
            conv1=nn.Conv2d(3, shape.width, 7, stride=2, padding=3, bias=False),
            bn1=nn.BatchNorm2d(shape.width),
            relu1=nn.ReLU(inplace=True),
            maxpool=nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks, channels = OrderedDict[str, nn.Module](), shape.width
        for group, count in enumerate(shape.blocks):
            width = shape.width << group
            for place in range(count):
                stride = 2 if group and not place else 1
                made = Bottleneck(channels, width, shape.factor, stride)
                blocks[f"block-{group}-{place}"] = made
                channels = EXPANSION * width
        self.blocks = nn.Sequential(blocks)
        self.head = Chain(avgpool=MeanPool(), fc=nn.Linear(channels, shape.classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))

    def operators(self) -> Iterator[tuple[str, nn.Module]]:
        """Aceso's operators in order, by their names."""
        yield from self.stem.named_children()
        for block, made in self.blocks.named_children():
            yield from ((f"{block}-{name}", each) for name, each in made.named_children())
        yield from self.head.named_children()


class Bottleneck(nn.Module):
    """[B, inputs, h, w] -> [B, 4 width, h / stride, w / stride]."""

    def __init__(self, inputs: int, width: int, factor: int, stride: int) -> None:
        super().__init__()
        inner, outputs = width * factor, EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.conv2 = nn.Conv2d(width, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.Sequential(nn.BatchNorm2d(inner), nn.ReLU(inplace=True))
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = Downsample(inputs, outputs, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x))))
        return self.relu(self.downsample(self.bn3(self.conv3(y)), x))


class Downsample(nn.Module):
    """A block's output and its input x, of the output's shape, added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.skip: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return y + (x if self.skip is None else self.skip(x))


class MeanPool(nn.Module):
    """[B, channels, h, w] -> [B, channels], the mean over pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))
