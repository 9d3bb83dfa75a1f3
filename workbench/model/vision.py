"""VGG and ResNet of any depth, as ordinary modules for the decomposer to cut.

Simonyan and Zisserman (ICLR 2015) and He et al. (CVPR 2016, basic blocks). Harmony (VLDB'22) made
both very deep: VGG416 has groups of 82, 82, 83, 83 and 83 convolutions, no BatchNorm, and three
matrices (577,894,184 parameters, 416 layers); ResNet1026 has four groups of 128 basic blocks
(801,800,232 parameters, 514 layers). A layer here is a convolution with what follows it up to the
next one, or a block with its skip inside, so that one tensor flows between layers.

* Dropout of VGG's matrices is there and 0 unless asked for. The published VGG kept it, and was
  trained on synthetic data only.
* BatchNorm takes its statistics from the micro-batch, so runs compare only at equal micro-batches,
  and each training forward moves the running statistics: a recomputation must not move them again.
* 413 convolutions without norms or skips hardly learn: their outputs depend ever less on the
  picture. VGG416 is a load to be moved and timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from workbench.model.initial import draw_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class VggShape:
    """Sizes of a VGG; the defaults are VGG416."""

    convs: tuple[int, ...] = (82, 82, 83, 83, 83)
    """Convolutions of each group; a group ends with a pooling that halves height and width."""
    width: int = 64
    """Channels of the first group; they double from group to group, up to 8 times as many."""
    image: int = 224
    """Height and width of a picture in pixels."""
    hidden: int = 4096
    """Width of the first two matrices."""
    classes: int = 1000
    dropout: float = 0.0
    """Probability in [0, 1), after the first two matrices."""

    def __post_init__(self) -> None:
        if self.image % (1 << len(self.convs)):
            raise ValueError(
                f"pictures of {self.image} pixels cannot be halved {len(self.convs)} times; "
                f"use a multiple of {1 << len(self.convs)}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetShape:
    """Sizes of a ResNet of basic blocks; the defaults are ResNet1026."""

    blocks: tuple[int, ...] = (128, 128, 128, 128)
    """Blocks of each group; all groups but the first begin by halving height and width."""
    width: int = 64
    """Channels of the first group; they double from group to group."""
    classes: int = 1000


class Vgg(nn.Module):
    """Pictures [B, 3, image, image] -> logits [B, classes]."""

    def __init__(self, shape: VggShape) -> None:
        super().__init__()
        self.shape = shape
        widths = [min(shape.width << group, 8 * shape.width) for group in range(len(shape.convs))]
        channels = [3, *(w for w, n in zip(widths, shape.convs, strict=True) for _ in range(n))]
        pools = [place + 1 == n for n in shape.convs for place in range(n)]
        self.features = nn.Sequential(
            *(ConvLayer(i, o, pool) for (i, o), pool in zip(pairwise(channels), pools, strict=True))
        )
        pixels = (shape.image >> len(shape.convs)) ** 2
        self.classifier = nn.Sequential(
            LinearLayer(channels[-1] * pixels, shape.hidden, shape.dropout),
            LinearLayer(shape.hidden, shape.hidden, shape.dropout),
            nn.Linear(shape.hidden, shape.classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class ResNet(nn.Module):
    """Pictures [B, 3, height, width] of any size -> logits [B, classes].

    Four groups shrink 32 pixels to one, of which BatchNorm cannot take the statistics of a
    micro-batch of 1: take larger pictures for that.
    """

    def __init__(self, shape: ResNetShape) -> None:
        super().__init__()
        self.shape = shape
        self.stem = Stem(shape.width)
        blocks, channels = [], shape.width
        for group, count in enumerate(shape.blocks):
            for place in range(count):
                width = shape.width << group
                blocks.append(BasicBlock(channels, width, stride=2 if group and not place else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = Head(channels, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


def initialize(layer: nn.Module, *, unit: int, seed: int) -> None:
    """Write the initial weights of layer number `unit` alone.

    Convolutions N(0, 2 / fan in), which keeps the size of what flows through ReLUs (He et al., ICCV
    2015, equation 10), matrices N(0, 1 / fan in), norms 1, biases 0.
    """
    draw_weights(layer, unit, seed, _deviation)


def _deviation(weight: Tensor) -> float:
    gain = 2.0 if weight.dim() == 4 else 1.0
    return (gain / weight[0].numel()) ** 0.5


class ConvLayer(nn.Module):
    """3x3 convolution and ReLU; the last of a group also halves height and width."""

    def __init__(self, inputs: int, outputs: int, pool: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.relu(self.conv(x)))


class LinearLayer(nn.Module):
    """[B, ...] -> [B, outputs]: flatten, matrix, ReLU, dropout."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.relu(self.linear(x.flatten(1))))


class Stem(nn.Module):
    """[B, 3, height, width] -> [B, width, height / 4, width / 4]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.relu(self.norm(self.conv(x))))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm around which the input is added, by a 1x1 convolution
    where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.skip(x))


class Head(nn.Module):
    """[B, channels, h, w] -> logits [B, classes] of the mean over pixels."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))
