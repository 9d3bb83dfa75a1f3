"""Small models, each with something that makes it hard to cut, and what their layers must do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.model.decompose import Layer
from workbench.model.decompose.program import flatten

D = 6


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
        return Report(y, best, {"list": [x, y > 0]}, nothing)


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


class Constants(nn.Module):
    """Causal mask, a table that is a plain attribute, zeros of the batch's size, random noise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.table = torch.linspace(0, 1, D)
        self.lists = [torch.full((D,), 0.5)]
        self.register_buffer("mask", torch.tril(torch.ones(9, 9)), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        seq = x.shape[1]
        causal = torch.full((seq, seq), 2.0, device=x.device)
        causal.triu_(1)
        causal[0] = 0
        zeros = torch.zeros_like(x)
        noise = torch.rand(D)
        self.steps += 1
        x = self.a(causal @ x) + self.table
        x = self.b(self.mask[:seq, :seq] @ x + zeros) * self.lists[0]
        state = x.new_zeros(x.size(0), D)
        causal.mul_(0.5)  # layers before saw it as it was
        return self.c(causal @ x + noise) + state.unsqueeze(1) + self.table


class Expanded(nn.Module):
    """Views of constants in the shape of an input, of constants that are written to later."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        ones, zeros = torch.ones(D), torch.zeros(D)
        view = ones.expand_as(x)
        x = self.b(self.a(x) + view)
        ones.mul_(3)
        view = zeros.expand_as(x)
        x = self.c(x * 2 + view + ones)
        zeros.add_(1)  # and so does the view
        return x + view


class InPlace(nn.Module):
    """Writes to the input, to a tensor that crossed cuts, and to two views that would cross."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(D, D) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        total = self.a(x)
        total += self.b(total.detach() * 1.5)
        left = total[:, :3]
        y = self.c(total * 2)
        left.mul_(2)
        y = self.d(y) + total
        filled = torch.zeros_like(y)
        filled[:, 1:] = y[:, 1:]
        total.add_(filled)
        return self.e(total) + left.sum()


class Aliases(nn.Module):
    """In eval mode dropout puts out what it is given, so a write there is a write to both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.drop(x)
        z = self.b(x * 2)
        y += 1
        return self.c(z) + x + y


class Modes(nn.Module):
    """Dropout as a function, told by `self.training`; a loop with attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.a(x), 0.2, self.training)
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.3 if self.training else 0.0)
        return F.dropout(x, 0.5, self.training) + self.b(x)


class Overwriting(nn.Module):
    """A block looks at values, and writes to its argument, which is used once more."""

    class Clamp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(D))

        def forward(self, x: Tensor) -> Tensor:
            return x.clamp_(min=0) * self.scale if x.abs().max() < 1e6 else x

    def __init__(self) -> None:
        super().__init__()
        self.a, self.clamp, self.b = nn.Linear(D, D), self.Clamp(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(self.clamp(y)) + y


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
        def forward(ctx, x):  # noqa: ANN001, ANN205
            return x * 0.5

        @staticmethod
        def backward(ctx, grad):  # noqa: ANN001, ANN205
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


def tensors(thing: object) -> list[Tensor]:
    return [leaf for leaf in flatten(thing)[0] if isinstance(leaf, Tensor)]


def scalar(outputs: object) -> Tensor:
    """A number that depends on all outputs, unevenly."""
    floats = [t for t in tensors(outputs) if t.requires_grad]
    return sum((t.float() * (i + 1)).pow(2).sum() for i, t in enumerate(floats))


def grads(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def by_pieces(layers: list[Layer], inputs: tuple[Tensor, ...]) -> None:
    """Gradients as with packs that visit a device: each layer alone, twice forward, from a stash.

    Random numbers of a layer are the same both times. What a layer does not get is not there.
    """
    stashes, states = [inputs], []
    with torch.no_grad():
        for layer in layers[:-1]:
            states.append(torch.get_rng_state())
            values = tuple(t.clone(memory_format=torch.contiguous_format) for t in stashes[-1])
            buffers = [b.clone() for b in layer.module.buffers()]
            stashes.append(layer.module(*values))
            for buffer, before in zip(layer.module.buffers(), buffers, strict=True):
                buffer.copy_(before)
    states.append(torch.get_rng_state())
    gradients: dict[str, Tensor] = {}
    for layer in reversed(layers):
        torch.set_rng_state(states[layer.index])
        given = [
            t.detach().clone(memory_format=torch.contiguous_format).requires_grad_(v.differentiable)
            for t, v in zip(stashes[layer.index], layer.inputs, strict=True)
        ]
        out = layer.module(*given)
        if layer is layers[-1]:
            scalar(layer.module.restore(out)).backward()
        else:
            pairs = zip(out, layer.outputs, strict=True)
            ends = [(t, gradients[v.name]) for t, v in pairs if v.name in gradients]
            torch.autograd.backward([t for t, _ in ends], [g for _, g in ends])
        named = zip(given, layer.inputs, strict=True)
        gradients = {v.name: t.grad for t, v in named if t.grad is not None}
