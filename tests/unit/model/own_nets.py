"""Modules of somebody's own that are hard to look at: what they do follows values, or is said not
to; tensors are made without a device; code stands where it cannot be followed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from workbench.core.model_spec import ModelSpec

WIDTH = 8


class Masks(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[x > 0].sum()


class Numpy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(x.detach().numpy().max())


class Wide(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.cat([x, torch.tensor([1.0, 2.0]).expand(len(x), 2)], -1))


class Steps(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        for scale in torch.linspace(0.5, 1, 3).tolist():
            x = super().forward(x) * scale
        return x


class Experts(nn.Linear):
    """Without values torch takes no numbers but bfloat16 for grouped products."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.tensor([len(x)], dtype=torch.int32, device=x.device)
        return F.grouped_mm(x, self.weight.T[None], offs=ends) + x


BLOCKS = {
    "masks": Masks,
    "numpy": Numpy,
    "wide": lambda width, out: Wide(width + 2, out),
    "steps": Steps,
    "experts": Experts,
}


class Words(nn.Module):
    """Two blocks, and something done to what comes to them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(spec.vocab, WIDTH), nn.Linear(WIDTH, spec.vocab)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def forward(self, ids: Tensor) -> Tensor:
        x = self.prepare(self.words(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Drops(nn.Linear):
    def __init__(self, p: float) -> None:
        super().__init__(WIDTH, WIDTH)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), self.p) if self.p else super().forward(x)


class Deeper(Words):
    """The deeper a block, the more it drops; the first one nothing."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.blocks = nn.ModuleList(Drops(0.2 * place) for place in range(2))


class Between(Words):
    def prepare(self, x: Tensor) -> Tensor:
        return x + torch.ones(x.size(0), 1, WIDTH) * torch.arange(WIDTH)


class Mixes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x.mT @ x).float()


class Switches(Words):
    """It switches autocast in its own code."""

    def prepare(self, x: Tensor) -> Tensor:
        return Mixes.forward(self, x)


class Submodule(Words):
    """`Mixes` as a module of its own."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.prepare = Mixes()


class Picks(Words):
    def prepare(self, x: Tensor) -> Tensor:
        return x + x[x > 0].sum()


class Chooses(Words):
    """`Picks` for any values."""

    def prepare(self, x: Tensor) -> Tensor:
        return x + torch.where(x > 0, x, 0).sum()


def listed(spec: ModelSpec) -> list[nn.Module]:
    made = Words(spec)
    return [made.words, Mixes(), *made.blocks, made.head]


def narrow(spec: ModelSpec) -> list[nn.Module]:
    made = Words(spec)
    return [made.words, *made.blocks, nn.Linear(WIDTH + 1, spec.vocab)]


class Wrong(Words):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.blocks.insert(1, nn.Linear(WIDTH + 1, WIDTH))


def __getattr__(name: str):
    """A function that gives a chain with two such blocks, and its samples."""
    if name not in BLOCKS:
        raise AttributeError(name)

    def chain(spec: ModelSpec):
        blocks = [BLOCKS[name](WIDTH, WIDTH) for _ in range(2)]
        samples = TensorDataset(torch.randn(32, WIDTH), torch.randint(3, (32,)))
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, nn.Linear(WIDTH, 3)), samples

    return chain
