"""Small modules as people write them, each with a habit that a list of layers could miss."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from workbench.core.model_spec import ModelSpec

WIDTH, CLASSES = 12, 4


def points() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (48,), generator=generator)
    return TensorDataset(torch.randn(48, WIDTH, generator=generator), labels)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def change(self, x: Tensor) -> Tensor:
        return torch.tanh(self.mix(self.norm(x)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.change(x)


class Tower(nn.Module):
    def __init__(self, block=Mixer, depth: int = 3) -> None:
        super().__init__()
        self.entry, self.exit = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.floors = nn.ModuleList(block() for _ in range(depth))

    def climb(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for floor in self.floors:
            x = floor(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.exit(self.climb(x))


# -- that train ------------------------------------------------------------------------------


class Augmented(Dataset):
    """Its samples are drawn when they are asked for, from three libraries."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        label = random.randrange(CLASSES)
        centre = torch.full((WIDTH,), label - 1.5) * (1 if np.random.rand() < 0.9 else -1)  # noqa: NPY002
        return centre + 0.3 * torch.randn(WIDTH), torch.tensor(label)


def augmented(spec: ModelSpec):
    return Tower(), Augmented()


class Batched(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.norm.running_mean.uniform_(-1, 1)


class HalfFrozen(Tower):
    """The statistics of its first floors are not to change."""

    def __init__(self) -> None:
        super().__init__(Batched)

    def train(self, mode: bool = True) -> HalfFrozen:
        super().train(mode)
        self.floors[:2].eval()
        return self


def half_frozen(spec: ModelSpec):
    return HalfFrozen(), points()


class Siamese(Tower):
    """Both branches pass each BatchNorm, in layers of their own."""

    def __init__(self) -> None:
        super().__init__(Batched)

    def forward(self, x: Tensor) -> Tensor:
        return self.exit(self.climb(x) + self.climb(x.flip(-1)))


def siamese(spec: ModelSpec):
    return Siamese(), points()


class Twice(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x) + self.change(self.drop(self.change(x)))


def counted_twice(spec: ModelSpec):
    return Tower(Twice), points()


class Delta(Mixer):
    """Begins as nothing: it learns the difference to what its weight was."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("origin", self.mix.weight.detach().clone())

    def change(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.mix(x) - F.linear(x, self.origin)


def deltas(spec: ModelSpec):
    return Tower(Delta), points()


class Numbered(Mixer):
    """Differs from its like in a whole number and a word."""

    def __init__(self, how: str, times: int) -> None:
        super().__init__()
        self.how, self.times = how, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = super().forward(x)
        return x + 0.1 * torch.randn_like(x) if self.how == "wet" and self.training else x


def numbered(spec: ModelSpec):
    ways = iter([("dry", 1), ("wet", 1), ("wet", 2)])
    return Tower(lambda: Numbered(*next(ways))), points()


class Fourier(Mixer):
    """Its features are drawn by numpy and Python."""

    def __init__(self) -> None:
        super().__init__()
        waves = np.random.randn(WIDTH, WIDTH) * random.random()  # noqa: NPY002
        self.register_buffer("waves", torch.from_numpy(waves).float())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.sin(x @ self.waves))


def fourier(spec: ModelSpec):
    return Tower(Fourier), points()


class Taught(Tower):
    """One part is read without learning, one is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.guide, self.unread = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.guide(x).detach())


def taught(spec: ModelSpec):
    return Taught(), points()


def normed() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh())


def formerly_normed() -> nn.Module:
    """By a hook that computes the weight before each pass."""
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh())


def normed_weights(spec: ModelSpec):
    blocks = iter([normed, formerly_normed, normed])
    return Tower(lambda: next(blocks)()), points()


class Relative(Mixer):
    """A sample sees how it stands among the others."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y - 0.5 * y.mean(0)


def relative(spec: ModelSpec):
    return Tower(Relative), points()


class Together(HalfFrozen):
    """All of these in one."""

    def __init__(self) -> None:
        super().__init__()
        self.guide = nn.Linear(WIDTH, WIDTH)
        floors = Twice(), Delta(), Numbered("wet", 2), Fourier(), formerly_normed(), Relative()
        self.floors.extend(floors)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.guide(x).detach())


def together(spec: ModelSpec):
    return Together(), Augmented()


class TimeFirst(nn.Module):
    """[S, B, H], as torch's transformer layers have it unless they are asked otherwise."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.words, self.exit = nn.Embedding(spec.vocab, 16), nn.Linear(16, spec.vocab)
        self.floors = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 24) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(0, 1)
        for floor in self.floors:
            x = floor(x)
        return self.exit(x.transpose(0, 1))


def time_first(spec: ModelSpec):
    return TimeFirst(spec)


# -- that are refused -----------------------------------------------------------------------


def masked_gradients(spec: ModelSpec):
    net = Tower()
    net.floors[1].mix.weight.register_hook(lambda gradient: gradient.tril())
    return net, points()


class Scaled(Tower):
    def climb(self, x: Tensor) -> Tensor:
        x = super().climb(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: 0.5 * gradient)
        return x


def scaled_gradients(spec: ModelSpec):
    return Scaled(), points()


class Annealed(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x + self.change(x) / self.seen


def annealed(spec: ModelSpec):
    return Tower(Annealed), points()


class Remembering(Mixer):
    before = None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.before is not None:
            y = 0.9 * y + 0.1 * self.before
        self.before = y.detach().mean(0)
        return y


def remembering(spec: ModelSpec):
    return Tower(Remembering), points()


class _Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view(x.shape)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.neg()


class Opposed(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.climb(x)
        return self.exit(x) + self.critic(_Negated.apply(x))


def opposed(spec: ModelSpec):
    return Opposed(), points()


class Sometimes(Mixer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if torch.rand(()) < 0.5 else x


def sometimes(spec: ModelSpec):
    return Tower(Sometimes), points()


class Pythons(Mixer):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.change(x) * random.random()


def pythons(spec: ModelSpec):
    return Tower(Pythons), points()


def replaced(spec: ModelSpec):
    net = Tower()
    net.floors[0].forward = lambda x, own=net.floors[0].forward: own(2 * x)
    return net, points()


def sparse(spec: ModelSpec):
    parts = nn.Embedding(spec.vocab, 8, sparse=True), nn.Linear(8, 8), nn.Linear(8, spec.vocab)
    return nn.Sequential(*parts)


class Penalized(Tower):
    def forward(self, x: Tensor) -> Tensor:
        y = self.climb(x.requires_grad_())
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return self.exit(y + slope)


def penalized(spec: ModelSpec):
    return Penalized(), points()


CLOCK = iter(range(10**9))


def unlike_itself(spec: ModelSpec):
    net = Tower()
    nn.init.constant_(net.exit.bias, 0.01 * next(CLOCK))
    return net, points()


class Counting(Augmented):
    asked = 0

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        self.asked += 1
        return torch.full((WIDTH,), float(self.asked)), torch.tensor(at % CLASSES)


def counting(spec: ModelSpec):
    return Tower(), Counting()
