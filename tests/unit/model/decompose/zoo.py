"""Small models, each with something that makes it hard to cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.unit.model.decompose.zoo_memory import (
    Aliases,
    Constants,
    D,
    Expanded,
    InPlace,
    Modes,
    Overwriting,
)


class Block(nn.Module):
    """A residual block; with a mask it is told which positions count."""

    def __init__(self, dim: int = D, p: float = 0.1) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.down(torch.relu(self.up(x)))
        return x + self.drop(h if mask is None else h * mask)


class Tied(nn.Module):
    """A language model: embedding and head are one matrix, positions are counted in forward."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, D), nn.Embedding(8, D)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, *, mask: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)) * scale
        mask = mask.view(ids.size(0), -1, 1).float()
        for block in self.blocks:
            x = block(x, mask)
        return {"logits": self.head(self.norm(x))}


class ResNet(nn.Module):
    """Convolutions with BatchNorm and in-place steps; one skip lies inside a stage, one across."""

    class Unit(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            out = self.bn(self.conv(x))
            out += x
            return self.relu(out)

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.stages = nn.Sequential(self.Unit(4), self.Unit(4))
        self.conv2 = nn.Conv2d(4, 4, 1)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(image)))
        y = self.conv2(self.stages(x))
        y += x
        return self.head(torch.flatten(self.pool(y), 1))


class UNet(nn.Module):
    """Skips from the way down to the way up, joined by cat; a module of a class in two places."""

    class Double(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = self.Double(3, 4), self.Double(4, 6)
        self.middle = self.Double(6, 6)
        self.up2, self.up1 = self.Double(12, 4), self.Double(8, 2)

    def forward(self, image: Tensor) -> Tensor:
        a = self.down1(image)
        b = self.down2(F.max_pool2d(a, 2))
        x = self.middle(F.max_pool2d(b, 2))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2), b], 1))
        return self.up1(torch.cat([F.interpolate(x, scale_factor=2), a], dim=1))


class Twice(nn.Module):
    """One block and one BatchNorm are each called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.bn = nn.Linear(D, D), Block(), nn.BatchNorm1d(D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.block(self.first(x)))
        return self.bn(self.block(x))


class Pair(NamedTuple):
    left: Tensor
    right: tuple[Tensor, int]


@dataclass
class Report:
    logits: Tensor
    best: Tensor
    parts: dict[str, list[Tensor]]
    nothing: None = None
    number: int = 3


class Nested(nn.Module):
    """Blocks and the model put out tuples in tuples, dataclasses, integers and None."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(D, 2 * D))

        def forward(self, x: Tensor, unused: None, *, half: int) -> Pair:
            y = self.net(x)
            return Pair(y[:, :half], (y[:, half:], half))

    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(D))

        def forward(self, pair: Pair) -> tuple[Tensor, None, Tensor]:
            x = pair.left * self.scale + pair.right[0]
            return x, None, x.argmax(-1)

    def __init__(self) -> None:
        super().__init__()
        self.split, self.join, self.last = self.Split(), self.Join(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Report:
        x, nothing, best = self.join(self.split(x, None, half=D))
        y = self.last(x)
        return Report(y, best, {"list": [x, y > 0]}, nothing, 4 if self.training else 3)


class Folded(nn.Module):
    """[B, S, D] -> [S, B, D] -> [S * B, D]: the batch is not the first dimension everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, dim = x.shape
        y = self.one(x.transpose(0, 1))
        y = self.two(y.transpose(0, 1).reshape(batch * seq, dim))
        return self.three(y.view(batch, seq, dim)).sum() / batch


class Chunks(nn.Module):
    """Three views of one tensor cross cuts, and are used at different places."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.mid, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = self.mid(q.transpose(0, 1)).transpose(0, 1)
        return self.out(q * k) + v


class Weights(nn.Module):
    """Parameters that functions use: a class token, a tied projection, a frozen matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(7, D), Block()
        self.token = nn.Parameter(torch.randn(1, 1, D))
        self.frozen = nn.Parameter(torch.randn(D, D), requires_grad=False)
        self.unread = nn.Linear(2, 2)
        self.again = self.embed

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = self.embed(ids) @ self.frozen
        x = torch.cat([self.token.expand(ids.shape[0], -1, -1), self.embed(ids)], 1)
        x = self.block(x)[:, 1:] + fixed
        return F.linear(x, self.again.weight), self.token


class Values(nn.Module):
    """A block that looks at values inside, with a gradient rule of its own."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 0.5

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            right = x.sum(-1) > 0
            for expert, chosen in zip(self.experts, (right, ~right), strict=True):
                rows = chosen.nonzero(as_tuple=True)
                if len(rows[0]):
                    out = out.index_put(rows, expert(x[rows]))
            return Values.Half.apply(out)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.router, self.last = nn.Linear(D, D), self.Router(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.router(self.first(x)))


def ids(batch: int, seq: int = 5, top: int = 7) -> Tensor:
    return torch.randint(0, top, (batch, seq))


MODELS = {
    "tied": (Tied, lambda b: ((ids(b),), {"mask": torch.rand(b, 5) > 0.3, "scale": 2.0})),
    "resnet": (ResNet, lambda b: ((torch.randn(b, 3, 7, 7),), {})),
    "unet": (UNet, lambda b: ((torch.randn(b, 3, 8, 8),), {})),
    "twice": (Twice, lambda b: ((torch.randn(b, D),), {})),
    "nested": (Nested, lambda b: ((torch.randn(b, D),), {})),
    "folded": (Folded, lambda b: ((torch.randn(b, 4, D),), {})),
    "chunks": (Chunks, lambda b: ((torch.randn(b, 4, D),), {})),
    "constants": (Constants, lambda b: ((torch.randn(b, 4, D),), {})),
    "expanded": (Expanded, lambda b: ((torch.randn(b, D),), {})),
    "in place": (InPlace, lambda b: ((torch.randn(b, D),), {})),
    "aliases": (Aliases, lambda b: ((torch.randn(b, D),), {})),
    "overwriting": (Overwriting, lambda b: ((torch.randn(b, D),), {})),
    "modes": (Modes, lambda b: ((torch.randn(b, 4, D),), {})),
    "weights": (Weights, lambda b: ((ids(b),), {})),
    "values": (Values, lambda b: ((torch.randn(b, 4, D),), {})),
}
"""Name -> (class, function that makes args and kwargs for a batch size)."""
